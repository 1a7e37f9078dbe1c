"""Whether one recipe scores less than another, paired by seed: fell, rose, held, or unclear.

With d the mean difference, s its standard error and t Student's 95 % quantile, one-sided:

    without a margin        fell: d <= -t s,  rose: d >= t s,  held: d >= -s,  else unclear
    with a tolerance tau    fell: d + t s < -tau,  rose: d - t s > 0,  held: d - t s >= -tau

so that with a margin "held" is shown, not merely not refuted: a test of non-inferiority.
"""

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
_WEIGHT = 4  # differences that the usual spread counts for


@dataclass(frozen=True)
class Difference:
    """Candidate minus reference over the same seeds, its standard error, and what it means.

    ``reach`` is t s: one-sided 95 % bounds are the mean less and plus it.
    """

    mean: float
    std: float
    n_seeds: int
    finding: Finding
    reach: float = math.nan

    def __str__(self) -> str:
        seeds = f"{self.n_seeds} seeds" if self.n_seeds > 1 else "1 seed"
        return f"{self.mean:+.3g} ± {self.std:.2g} ({seeds})"


def paired_difference(
    candidate: Array,
    reference: Array,
    usual: float = 0.0,
    tolerance: float | None = None,
    among: int = 1,
) -> Difference:
    """Scores by seed, NaN where a run gave none.

    ``usual`` is the standard deviation that such differences usually have. A few seeds tell their
    own spread badly (three accuracies may happen to differ by the same amount), so it counts as
    four differences more. A candidate that breaks down in some seed where the reference does not
    has fallen. ``tolerance`` is the loss that is no loss; None for the rule without a margin.
    ``among`` comparisons share the 5 % of false findings.
    """
    both = np.isfinite(candidate) & np.isfinite(reference)
    differences = candidate[both] - reference[both]
    n = len(differences)
    mean = round(float(differences.mean()), 12) + 0.0 if n else math.nan
    std, freedom = math.nan, n - 1
    if n > 1:
        squares = freedom * float(differences.var(ddof=1))
        if usual > 0:
            squares, freedom = squares + _WEIGHT * usual**2, freedom + _WEIGHT
        std = math.sqrt(squares / freedom / n)
    if (np.isnan(candidate) & np.isfinite(reference)).any():
        return Difference(mean, std, n, "fell")
    if n < 2:
        return Difference(mean, std, n, "unclear")
    reach = float(stats.t.ppf(1 - (1 - _LEVEL) / among, freedom)) * std
    if tolerance is None:
        return Difference(mean, std, n, _finding(mean, std, freedom), reach)
    return Difference(mean, std, n, _within(mean, reach, tolerance), reach)


def seeds_to_decide(found: Difference, usual: float, tolerance: float, most: int) -> int | None:
    """The fewest seeds, up to ``most``, that decide if the difference and its spread stay.

    With v the variance of n differences and u the usual spread, the rule asks for

        t s <= |d + tau|,    s^2 = ((n - 1) v + 4 u^2)/((n - 1 + 4) n),

    t of n - 1 + 4 degrees of freedom; without the fours if u = 0.
    """
    weight = _WEIGHT if usual > 0 else 0
    own = found.n_seeds - 1
    v = max(0.0, ((own + weight) * found.n_seeds * found.std**2 - weight * usual**2) / own)
    n = np.arange(found.n_seeds + 1, most + 1)
    freedom = n - 1 + weight
    s = np.sqrt(((n - 1) * v + weight * usual**2) / freedom / n)
    enough = stats.t.ppf(_LEVEL, freedom) * s <= abs(found.mean + tolerance)
    return int(n[enough.argmax()]) if enough.any() else None


def usual_spread(scores: Array) -> float:
    """The standard deviation of differences paired by seed, from (recipes, seeds) of a first look.

    The median over recipes, of their difference from the best: where training breaks down, the
    spread is that of something else.
    """
    good = scores[~np.isnan(scores).any(axis=1)]
    if len(good) < 2 or good.shape[1] < 2:
        return 0.0
    best = int(good.mean(axis=1).argmax())
    spreads = (np.delete(good, best, axis=0) - good[best]).std(axis=1, ddof=1)
    return float(np.median(spreads))


def _finding(mean: float, std: float, freedom: int) -> Finding:
    if std < 1e-12:  # a function without noise: every difference counts
        return "held" if mean == 0 else "fell" if mean < 0 else "rose"
    t = mean / std
    if abs(t) >= float(stats.t.ppf(_LEVEL, freedom)):
        return "rose" if t > 0 else "fell"
    # A rise that is not certain is no fall; a fall that is not certain may be one.
    return "held" if t >= -_CLOSE else "unclear"


def _within(mean: float, reach: float, tolerance: float) -> Finding:
    """By non-inferiority; a function without noise has a reach of 0."""
    if mean - reach > 0:
        return "rose"
    if mean - reach >= -tolerance * (1 + 1e-9):  # a margin of exactly the loss is kept
        return "held"
    return "fell" if mean + reach < -tolerance else "unclear"
