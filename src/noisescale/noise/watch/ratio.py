"""Running averages of |G|^2 and tr S, and the interval of their ratio.

Every update gives unbiased readings s of |G|^2 and n of tr S. They are averaged separately, with
weights that decay, because the mean of ratios is biased; the critical batch size is the ratio of
the averages. Its interval is Fieller's: all r for which n - r s, whose mean is 0 at the true ratio,
is within t standard errors of 0,

    (n - r s)^2 <= t^2 (var n - 2 r cov(n, s) + r^2 var s),

with Student's t for the effective number of updates. It is bounded exactly if s itself is t
standard errors away from 0; else only a lower bound is known. Readings of different updates are
taken as independent.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from scipy.special import stdtrit

from noisescale.checks import check_number
from noisescale.errors import InputError
from noisescale.uncertainty import Estimate

LARGEST = 1e100  # readings beyond it would overflow when squared
_NAMES = ("weight", "signal_sq", "noise_sq", "product")  # what decays


@dataclass(repr=False)
class RunningRatio:
    """Weighted means of |G|^2 and tr S over updates, with their covariance.

    Attributes:
        decay: 0 averages over all updates alike; 0.99 forgets after about a hundred.
        n_updates: updates taken in.
        n_skipped: updates left out, because a reading was not finite.
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

    def take(self, signal: float, noise: float) -> bool:
        """Take in one update's readings; False, and counted, if they are not finite."""
        if not (abs(signal) <= LARGEST and abs(noise) <= LARGEST):  # NaN is not
            self.n_skipped += 1
            return False
        keep = self.decay or 1.0
        for name in _NAMES:
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
        return True

    @property
    def critical_batch_size(self) -> float | None:
        """tr S/|G|^2, or None while |G|^2 is not about two standard errors above zero."""
        value = self.estimate.value
        return None if math.isnan(value) else value

    @property
    def estimate(self) -> Estimate:
        """The critical batch size with its 95 % interval; see :meth:`interval`."""
        return self.interval()

    def interval(self, level: float = 0.95) -> Estimate:
        """The critical batch size with its interval, taking updates as independent.

        While |G|^2 is not resolved its value is NaN, ``low`` a lower bound and ``high`` infinite.
        """
        check_number("level", level, "between 0 and 1", lambda v: 0 < v < 1)
        if self.n_updates < 2:
            return Estimate(math.nan, low=0.0, high=math.inf, n=self.n_updates)
        var_s, var_n, covariance = self._variances()
        effective = self.weight**2 / self.weight_sq
        t = float(stdtrit(effective - 1, 0.5 + level / 2))
        s, n = self.signal, self.noise
        a, b, c = s**2 - t**2 * var_s, n * s - t**2 * covariance, n**2 - t**2 * var_n
        root = math.sqrt(max(b**2 - a * c, 0.0))
        if a <= 0 or s <= 0 or n <= 0:
            # Beyond the root on the right; or anywhere, if tr S is not above zero either.
            bound = c / (b + root) if c > 0 and n > 0 and b + root > 0 else 0.0
            return Estimate(math.nan, low=bound, high=math.inf, n=self.n_updates)
        ratio = n / s
        relative = var_n / n**2 + var_s / s**2 - 2 * covariance / (n * s)
        std = ratio * math.sqrt(max(relative, 0.0))
        low, high = max((b - root) / a, 0.0), (b + root) / a
        return Estimate(ratio, std, low=low, high=high, n=self.n_updates)

    @property
    def signal_estimate(self) -> Estimate:
        """|G|^2 with its standard error."""
        std = math.sqrt(self._variances()[0]) if self.n_updates > 1 else math.nan
        return Estimate(self.signal if self.n_updates else math.nan, std, n=self.n_updates)

    @property
    def noise_estimate(self) -> Estimate:
        """Tr S with its standard error."""
        std = math.sqrt(self._variances()[1]) if self.n_updates > 1 else math.nan
        return Estimate(self.noise if self.n_updates else math.nan, std, n=self.n_updates)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        names = {field.name for field in fields(self)}
        if not isinstance(state, dict) or set(state) != names:
            shown = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(f"the state must have {sorted(names)}, got {shown}.")
        for name, value in state.items():
            setattr(self, name, value)
        self.__post_init__()

    def described(self) -> str:
        """The answer in a line."""
        skipped = f", {self.n_skipped} skipped" if self.n_skipped else ""
        return f"{self._answer()} after {self.n_updates} updates{skipped}"

    def _answer(self) -> str:
        estimate = self.estimate
        if math.isnan(estimate.value):
            return f"critical batch size not resolved yet, at least {estimate.low:.3g},"
        return f"critical batch size {estimate}"

    def _variances(self) -> tuple[float, float, float]:
        """Of the means of |G|^2 and of tr S, and their covariance.

        The variance of a weighted mean: the sum of squared weights over the square of their sum.
        """
        scale = self.weight_sq / self.weight**2 / (self.weight - self.weight_sq / self.weight)
        return scale * self.signal_sq, scale * self.noise_sq, scale * self.product
