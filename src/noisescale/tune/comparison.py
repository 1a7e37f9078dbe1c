"""Does a recipe lose more than a tolerance? Differences by seed, looked at K times at the most.

A comparison looks at n_1 < .. < n_K seeds. With d the mean of n differences, candidate minus
reference, sd their standard deviation, u what that usually is, tau the tolerance, and t(q)
Student's quantile of n - 1 degrees of freedom:

    s = max(sd, u/2)/sqrt(n)
    rose     d - t(1 - alpha_K) s > 0        take it: better beyond its noise
    held     d - t(1 - alpha_K) s >= -tau    take it: it loses no more than tau
    fell     d + t(.95) s < -tau             leave it: more seeds are hardly worth while
    unclear  else                            look again; after the last look, leave it

alpha_K makes 5 % of all looks together: a loss of exactly tau is taken in no more comparisons.

    K          1     2      3      4      5
    alpha_K   .05  .0285  .0215  .0175  .015

They are from 300,000 simulated comparisons that look at 3, 5, 7, .. seeds, rounded down, and hold
from 3 seeds on for steps of at most 2. Any other schedule takes .05/K, the union bound. Neither u,
which can only widen s, nor "fell", which can only end a comparison, makes errors more frequent.

Without a tolerance (tau = None), as the critical batch is measured, there is no loss that is shown
not to be there:

    fell: d <= -t(1 - alpha_K) s,  rose: d >= t(1 - alpha_K) s,  held: d >= -s,  else unclear
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
Finding = Literal["fell", "rose", "held", "unclear"]

ERROR = 0.05  # one-sided, of a comparison
_A_LOOK = {1: ERROR, 2: 0.0285, 3: 0.0215, 4: 0.0175, 5: 0.015}


@dataclass(frozen=True)
class Difference:
    """Candidate minus reference over the same seeds, its standard error, and what it means.

    ``std`` is s, and ``reach`` is t(1 - alpha_K) s: the lower bound is the mean less it.
    """

    mean: float
    std: float
    n_seeds: int
    finding: Finding
    reach: float = math.nan

    def __str__(self) -> str:
        seeds = f"{self.n_seeds} seeds" if self.n_seeds > 1 else "1 seed"
        return f"{self.mean:+.3g} ± {self.std:.2g} ({seeds})"


def looks(seeds: int, max_seeds: int) -> tuple[int, ...]:
    """From ``seeds`` by twos to ``max_seeds``; if these are more than 5, 5 that are as far apart.

    >>> looks(3, 9), looks(3, 20)
    ((3, 5, 7, 9), (3, 7, 12, 16, 20))
    """
    each = (*range(seeds, max_seeds, 2), max_seeds)
    if len(each) <= max(_A_LOOK):
        return each
    return tuple(round(n) for n in np.linspace(seeds, max_seeds, max(_A_LOOK)).tolist())


def error_of_a_look(schedule: tuple[int, ...]) -> float:
    """alpha_K of so many seeds, one look after the other."""
    near = schedule[0] >= 3 and all(b - a <= 2 for a, b in pairwise(schedule))
    return _A_LOOK[len(schedule)] if near or len(schedule) == 1 else ERROR / len(schedule)


def compare(
    candidate: Array,
    reference: Array,
    tolerance: float | None,
    *,
    usual: float = 0.0,
    alpha: float = ERROR,
    among: int = 1,
) -> Difference:
    """Scores by seed, NaN where a run gave none, at one look.

    Args:
        candidate, reference: as many scores; a candidate that lacks one has fallen. With fewer than
            two seeds in common all is unclear: then it is the reference that lacks them.
        tolerance: tau, or None.
        usual: u; a few seeds tell their own spread badly, and may happen to agree.
        alpha: of this look, see :func:`error_of_a_look`.
        among: so many comparisons share the errors.
    """
    both = np.isfinite(candidate) & np.isfinite(reference)
    differences = candidate[both] - reference[both]
    n = len(differences)
    mean = round(float(differences.mean()), 12) + 0.0 if n else math.nan
    std = reach = futile = math.nan
    if n > 1:
        spread = round(float(differences.std(ddof=1)), 12)
        std = max(spread, usual / 2) / math.sqrt(n)
        reach, futile = (std * _quantile(level / among, n) for level in (alpha, ERROR))
    if np.isnan(candidate).any():
        finding: Finding = "fell"
    elif n < 2:
        finding = "unclear"
    elif tolerance is None:
        finding = _by_noise(mean, std, reach)
    else:
        finding = _by_tolerance(mean, reach, futile, tolerance)
    return Difference(mean, std, n, finding, reach)


def seeds_to_decide(
    found: Difference, tolerance: float, most: int, *, first: int | None = None
) -> int | None:
    """The fewest ``max_seeds``, up to ``most``, that decide if the difference and its spread stay.

    Of a comparison that begins with ``first`` seeds; None if it has one look, at all of them.
    """
    if found.n_seeds < 2:
        return None
    gap = found.mean + tolerance  # below 0 it is a loss that seeds would show
    for n in range(found.n_seeds + 1, most + 1):
        once = first is None or gap < 0
        alpha = ERROR if once else error_of_a_look(looks(first or n, n))
        if _quantile(alpha, n) * found.std * math.sqrt(found.n_seeds / n) <= abs(gap):
            return n
    return None


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


def _quantile(alpha: float, n: int) -> float:
    return float(special.stdtrit(n - 1, 1 - alpha))


def _by_noise(mean: float, std: float, reach: float) -> Finding:
    if mean and abs(mean) >= reach:  # without noise every difference counts
        return "rose" if mean > 0 else "fell"
    # A rise that is not certain is no fall; a fall that is not certain may be one.
    return "held" if mean >= -std else "unclear"


def _by_tolerance(mean: float, reach: float, futile: float, tolerance: float) -> Finding:
    if mean - reach > 0:
        return "rose"
    if mean - reach >= -tolerance * (1 + 1e-9):  # a loss of exactly the tolerance, without noise
        return "held"
    return "fell" if mean + futile < -tolerance else "unclear"
