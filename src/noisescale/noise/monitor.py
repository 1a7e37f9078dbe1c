"""The critical batch size while training, from two gradient norms an update, in any framework.

By McCandlish et al. (2018), with mean gradients G_s and G_l over B_s and B_l examples,

    |G|^2 = (B_l |G_l|^2 - B_s |G_s|^2)/(B_l - B_s),
    tr S  = (|G_s|^2 - |G_l|^2)/(1/B_s - 1/B_l),

both unbiased. They are averaged separately before dividing: the mean of ratios is biased.
"""

from dataclasses import dataclass
from typing import Any

from noisescale.checks import check_whole, shown
from noisescale.errors import InputError
from noisescale.noise.watch.ratio import RunningRatio


@dataclass(repr=False)
class NoiseScaleMonitor(RunningRatio):
    """Averages |G|^2 and tr S over recent updates; their ratio is the critical batch size.

    Each update needs the squared norms of two mean gradients, over a small and a large batch (the
    small one may be one device's share of the large one). A norm that is not finite, as in a step
    that mixed precision throws away, is left out and counted.

    Attributes:
        decay: None averages over the recent half of the run so far, 0 over all updates alike;
            0.99 forgets after about a hundred updates.
        n_updates: updates taken in.
        n_skipped: updates left out, because a norm was not finite.
        n_spikes: updates left out, because they were far beyond their neighbours.

    >>> import noisescale as ns
    >>> monitor = ns.NoiseScaleMonitor(decay=0)
    >>> for small, large in [(4.1, 1.6), (3.9, 1.5), (4.2, 1.7), (float("inf"), 1.6)]:
    ...     monitor.update(small, large, n_small=32, n_large=256)
    >>> print(monitor)
    NoiseScaleMonitor: critical batch size 72.3 [63.7, 84.6] (3 of 3 updates measured, 1 skipped)
    """

    def update(
        self, small_sq_norm: float, large_sq_norm: float, n_small: int, n_large: int
    ) -> None:
        """Take in one update's squared gradient norms over ``n_small`` and ``n_large`` examples."""
        check_whole("n_small", n_small, at_least=1)
        if check_whole("n_large", n_large, at_least=1) <= n_small:
            raise InputError(f"n_large must be above n_small = {n_small}, got {n_large}.")
        small = _sq_norm("small_sq_norm", small_sq_norm)
        large = _sq_norm("large_sq_norm", large_sq_norm)
        signal = (n_large * large - n_small * small) / (n_large - n_small)
        noise = (small - large) / (1 / n_small - 1 / n_large)
        self.take(signal, noise)

    def __repr__(self) -> str:
        return f"NoiseScaleMonitor: {self.described()}"


def _sq_norm(name: str, value: Any) -> float:
    try:
        number = -1.0 if isinstance(value, (str, bytes, bool)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if number < 0:
        raise InputError(f"{name} must be a number that is at least 0, got {shown(value)}.")
    return number  # which may be infinite or NaN
