"""A number with its uncertainty: the one type for peaks, rules, noise, evidence and tuning.

``std`` is the standard error of ``value``; ``low`` and ``high`` bound its 95 % interval. What is
not known is NaN. An estimate over seeds knows their number, and by it its interval (Student's t).
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Estimate:
    """A value, its standard error, and its 95 % interval.

    Attributes:
        value: the estimate.
        std: its standard error; NaN if unknown.
        low, high: its 95 % interval; NaN if none was computed.
        n: how many independent values it rests on; None if that has no meaning.

    >>> print(Estimate(1.043, low=0.986, high=1.1))
    1.04 [0.986, 1.1]
    >>> print(mean_of([1.0, 1.1, 0.9]))
    1 ± 0.058
    >>> print(Estimate(math.nan, low=12.3, high=math.inf))
    at least 12.3
    """

    value: float
    std: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int | None = None

    @property
    def has_interval(self) -> bool:
        """Whether a 95 % interval was computed."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def above(self, threshold: float, *, by: float) -> bool | None:
        """Whether it is above the threshold by so many standard errors; False if below by as many.

        None if neither, or if its standard error is not known.
        """
        distance = self.value - threshold
        return distance > 0 if abs(distance) > by * self.std else None

    def interval(self, level: float = 0.95) -> "Estimate":
        """With its interval by Student's t; needs a standard error and ``n`` of at least 2."""
        if self.n is None or self.n < 2:
            return self
        from scipy.special import stdtrit  # here, because most users of this type need no SciPy

        reach = float(stdtrit(self.n - 1, 0.5 + level / 2)) * self.std
        return Estimate(self.value, self.std, self.value - reach, self.value + reach, self.n)

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name; None for what is not known."""
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        if self.has_interval:
            return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"
        if math.isfinite(self.std):
            return f"{self.value:.4g} ± {self.std:.2g}"
        if math.isnan(self.value) and self.high == math.inf:  # a bound alone, 0 if there is none
            return f"at least {self.low:.3g}" if self.low > 0 else "not resolved"
        return f"{self.value:.4g}"


def mean_of(values: ArrayLike) -> Estimate:
    """Mean and standard error of independent values, such as differences paired by seed."""
    array = np.asarray(values, float)
    n = len(array)
    std = float(np.std(array, ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(float(np.mean(array)), std, n=n)


def finite_only(value: Any) -> Any:
    """Nested dictionaries and lists ready for JSON: None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite_only(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_only(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
