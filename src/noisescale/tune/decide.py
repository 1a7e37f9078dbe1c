"""Whether one recipe scores less than another, paired by seed: fell, rose, held, or unclear."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Array = NDArray[np.float64]
Finding = Literal["fell", "rose", "held", "unclear"]

_LEVEL = 0.95  # one-sided, of a fall or a rise that is told from noise
_CLOSE = 1.0  # standard errors within which a difference is no difference


@dataclass(frozen=True)
class Difference:
    """Candidate minus reference over the same seeds, and what it means."""

    mean: float
    error: float
    n_seeds: int
    finding: Finding

    def __str__(self) -> str:
        seeds = f"{self.n_seeds} seeds" if self.n_seeds > 1 else "1 seed"
        return f"{self.mean:+.4g} ± {self.error:.2g} ({seeds})"


def compare(candidate: Array, reference: Array) -> Difference:
    """Scores by seed, NaN where a run gave none.

    A candidate that breaks down in some seed where the reference does not has fallen.
    """
    both = np.isfinite(candidate) & np.isfinite(reference)
    differences = candidate[both] - reference[both]
    n = len(differences)
    mean = float(differences.mean()) if n else math.nan
    error = float(differences.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    if (np.isnan(candidate) & np.isfinite(reference)).any():
        return Difference(mean, error, n, "fell")
    return Difference(mean, error, n, _finding(mean, error, n))


def _finding(mean: float, error: float, n: int) -> Finding:
    if n < 2:
        return "unclear"
    if error == 0:  # a function without noise: every difference counts
        return "held" if mean == 0 else "fell" if mean < 0 else "rose"
    t = mean / error
    if abs(t) >= float(stats.t.ppf(_LEVEL, n - 1)):
        return "rose" if t > 0 else "fell"
    # A rise that is not certain is no fall; a fall that is not certain may be one.
    return "held" if t >= -_CLOSE else "unclear"
