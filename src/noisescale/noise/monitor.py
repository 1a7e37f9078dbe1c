"""The critical batch size while training, from two gradient norms an update, in any framework."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError


@dataclass
class NoiseScaleMonitor:
    """Averages |G|^2 and tr S over updates; their ratio is the critical batch size.

    Each update needs the squared norms of two mean gradients, over a small and a large batch (the
    small one may be one device's share of the large one). By McCandlish et al. (2018)

        |G|^2 = (B_l |G_l|^2 - B_s |G_s|^2)/(B_l - B_s),
        tr S  = (|G_s|^2 - |G_l|^2)/(1/B_s - 1/B_l),

    both unbiased. They are averaged separately before dividing: the mean of ratios is biased.

    Attributes:
        decay: 0 averages over all updates alike; 0.99 forgets after about a hundred.
    """

    decay: float = 0.0
    n_updates: int = 0
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
        small, large = (
            check_number(name, value, "at least 0", lambda v: v >= 0)
            for name, value in (("small_sq_norm", small_sq_norm), ("large_sq_norm", large_sq_norm))
        )
        check_whole("n_small", n_small, at_least=1)
        if check_whole("n_large", n_large, at_least=1) <= n_small:
            raise InputError(f"n_large must be above n_small = {n_small}, got {n_large}.")
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
        return self.interval()[0]

    def interval(self) -> tuple[float | None, float, float]:
        """The critical batch size with a 95 % interval, taking updates as independent."""
        if self.n_updates < 2:
            return None, 0.0, math.inf
        # Variance of a weighted mean: sum of squared weights over the square of their sum.
        scale = self.weight_sq / self.weight**2 / (self.weight - self.weight_sq / self.weight)
        var_signal, var_noise, covariance = (
            scale * value for value in (self.signal_sq, self.noise_sq, self.product)
        )
        error = math.sqrt(var_signal)
        if self.signal <= 2 * error or self.noise <= 0:
            low = max(self.noise - 2 * math.sqrt(var_noise), 0) / max(
                self.signal + 2 * error, 1e-300
            )
            return None, low, math.inf
        ratio = self.noise / self.signal
        relative = (
            var_noise / self.noise**2
            + var_signal / self.signal**2
            - 2 * covariance / (self.noise * self.signal)
        )
        spread = math.exp(1.96 * math.sqrt(max(relative, 0.0)))
        return ratio, ratio / spread, ratio * spread

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
