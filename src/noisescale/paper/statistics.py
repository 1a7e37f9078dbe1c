"""How a criterion's numbers are compared, in two ways.

The first criteria say "by 2 SE" and compare bounds with the value alone. With three or five seeds a
standard error is itself hardly known, and a value on the right side of a bound may be there by
chance; so everything is judged a second time, with Student's t over seeds: "2 SE" becomes its
two-sided 95 % interval, "3 SE" its 99 %, and a bound is kept if the whole 95 % interval is inside,
broken if it is wholly outside, and undecided else. Where a first criterion asks that accuracies do
not surely differ, which noise alone fulfils, they must agree within a margin. The second verdicts
are shown beside the first.
"""

import math
from typing import Protocol

from noisescale.uncertainty import Estimate

_LEVELS = {2: 0.95, 3: 0.99}
SLOPES = (0.85, 1.15)  # that count as 1: a noisy slope must not pass because it is noisy
# Accuracies that differ by less count as equal, in criteria that have no margin: C34's, the
# narrowest that the first criteria name for them.
MARGIN = 0.005


class Statistics(Protocol):
    """Answers are True, False (surely not), or None (neither)."""

    def above(self, estimate: Estimate, bound: float, *, by: int) -> bool | None:
        """Whether it exceeds the bound by ``by`` standard errors, or by what stands for them."""

    def inside(
        self, estimate: Estimate, low: float = -math.inf, high: float = math.inf
    ) -> bool | None:
        """Whether it is between the bounds."""


class _StandardErrors:
    def above(self, estimate: Estimate, bound: float, *, by: int) -> bool | None:
        return estimate.above(bound, by=by)

    def inside(
        self, estimate: Estimate, low: float = -math.inf, high: float = math.inf
    ) -> bool | None:
        return low <= estimate.value <= high


class _StudentsT:
    def above(self, estimate: Estimate, bound: float, *, by: int) -> bool | None:
        at = estimate.interval(_LEVELS[by])
        return True if at.low > bound else False if at.high < bound else None

    def inside(
        self, estimate: Estimate, low: float = -math.inf, high: float = math.inf
    ) -> bool | None:
        at = estimate if estimate.has_interval else estimate.interval()
        if at.low >= low and at.high <= high:
            return True
        return False if at.high < low or at.low > high else None


FIRST: Statistics = _StandardErrors()
SECOND: Statistics = _StudentsT()
