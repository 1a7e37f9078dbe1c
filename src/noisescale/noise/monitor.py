"""The critical batch size while training, from two gradient norms an update, in any framework.

By McCandlish et al. (2018), with mean gradients G_s and G_l over B_s and B_l examples,

    |G|^2 = (B_l |G_l|^2 - B_s |G_s|^2)/(B_l - B_s),
    tr S  = (|G_s|^2 - |G_l|^2)/(1/B_s - 1/B_l),

both unbiased. They are averaged separately before dividing: the mean of ratios is biased.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError
from noisescale.uncertainty import Estimate

_LARGEST = 1e100  # squared norms beyond it would overflow when squared


@dataclass(repr=False)
class NoiseScaleMonitor:
    """Averages |G|^2 and tr S over updates; their ratio is the critical batch size.

    Each update needs the squared norms of two mean gradients, over a small and a large batch (the
    small one may be one device's share of the large one). A norm that is not finite, as in a step
    that mixed precision throws away, is left out and counted.

    Attributes:
        decay: 0 averages over all updates alike; 0.99 forgets after about a hundred.
        n_updates: updates taken in.
        n_skipped: updates left out, because a norm was not finite.

    >>> import noisescale as ns
    >>> monitor = ns.NoiseScaleMonitor()
    >>> for small, large in [(4.1, 1.6), (3.9, 1.5), (4.2, 1.7), (float("inf"), 1.6)]:
    ...     monitor.update(small, large, n_small=32, n_large=256)
    >>> print(monitor)
    NoiseScaleMonitor: critical batch size 72.3 [67.9, 77.1] after 3 updates, 1 skipped
    """

    decay: float = 0.0
    n_updates: int = 0
    n_skipped: int = 0
    weight: float = 0.0
    weight_sq: float = 0.0
    signal: float = 0.0  # weighted mean of |G|^2
    noise: float = 0.0  # weighted mean of tr S
    signal_sq: float = 0.0  # weighted sums of squared deviations
    noise_sq: float = 0.0
    product: float = 0.0

    def __post_init__(self) -> None:
        check_number("decay", self.decay, "in [0, 1)", lambda v: 0 <= v < 1)

    def update(
        self, small_sq_norm: float, large_sq_norm: float, n_small: int, n_large: int
    ) -> None:
        """Take in one update's squared gradient norms over ``n_small`` and ``n_large`` examples."""
        check_whole("n_small", n_small, at_least=1)
        if check_whole("n_large", n_large, at_least=1) <= n_small:
            raise InputError(f"n_large must be above n_small = {n_small}, got {n_large}.")
        small = _sq_norm("small_sq_norm", small_sq_norm)
        large = _sq_norm("large_sq_norm", large_sq_norm)
        if small is None or large is None:
            self.n_skipped += 1
            return
        signal = (n_large * large - n_small * small) / (n_large - n_small)
        noise = (small - large) / (1 / n_small - 1 / n_large)
        keep = self.decay or 1.0
        for name in ("weight", "signal_sq", "noise_sq", "product"):
            setattr(self, name, keep * getattr(self, name))
        self.weight_sq = keep**2 * self.weight_sq + 1
        self.weight += 1
        self.n_updates += 1
        by_signal, by_noise = signal - self.signal, noise - self.noise
        self.signal += by_signal / self.weight
        self.noise += by_noise / self.weight
        self.signal_sq += by_signal * (signal - self.signal)
        self.noise_sq += by_noise * (noise - self.noise)
        self.product += by_signal * (noise - self.noise)

    @property
    def critical_batch_size(self) -> float | None:
        """tr S/|G|^2, or None while |G|^2 is not two standard errors above zero."""
        value = self.estimate.value
        return None if math.isnan(value) else value

    @property
    def estimate(self) -> Estimate:
        """The critical batch size with a 95 % interval, taking updates as independent.

        While |G|^2 is not resolved its value is NaN, ``low`` a lower bound and ``high`` infinite.
        """
        if self.n_updates < 2:
            return Estimate(math.nan, low=0.0, high=math.inf, n=self.n_updates)
        # Variance of a weighted mean: sum of squared weights over the square of their sum.
        scale = self.weight_sq / self.weight**2 / (self.weight - self.weight_sq / self.weight)
        var_signal, var_noise, covariance = (
            scale * value for value in (self.signal_sq, self.noise_sq, self.product)
        )
        signal_std = math.sqrt(var_signal)
        if self.signal <= 2 * signal_std or self.noise <= 0:
            low = max(self.noise - 2 * math.sqrt(var_noise), 0) / max(
                self.signal + 2 * signal_std, 1e-300
            )
            return Estimate(math.nan, low=low, high=math.inf, n=self.n_updates)
        ratio = self.noise / self.signal
        relative = (
            var_noise / self.noise**2
            + var_signal / self.signal**2
            - 2 * covariance / (self.noise * self.signal)
        )
        relative_std = math.sqrt(max(relative, 0.0))
        spread = math.exp(1.96 * relative_std)
        return Estimate(
            ratio, ratio * relative_std, low=ratio / spread, high=ratio * spread, n=self.n_updates
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        if set(state) != set(asdict(self)):
            raise InputError(f"the state must have {sorted(asdict(self))}, got {sorted(state)}.")
        for name, value in state.items():
            setattr(self, name, value)
        self.__post_init__()

    def __repr__(self) -> str:
        estimate = self.estimate
        if math.isnan(estimate.value):
            shown = f"not resolved yet, at least {estimate.low:.3g},"
        else:
            shown = str(estimate)
        skipped = f", {self.n_skipped} skipped" if self.n_skipped else ""
        updates = f"{self.n_updates} updates{skipped}"
        return f"NoiseScaleMonitor: critical batch size {shown} after {updates}"


def _sq_norm(name: str, value: Any) -> float | None:
    """``value`` as a squared norm, or None if it has overflowed."""
    try:
        number = float(value) if not isinstance(value, str) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if number < 0:
        raise InputError(f"{name} must be a number that is at least 0, got {value!r}.")
    return number if number <= _LARGEST else None  # NaN is not
