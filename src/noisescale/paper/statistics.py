"""Student's t over seeds, by which second readings compare what was measured.

With three or five seeds a standard error is itself hardly known, and a value on the right side of a
bound may be there by chance. So "2 SE" is the two-sided 95 % interval here, "3 SE" the 99 %, and a
bound is kept if the whole 95 % interval is inside, broken if it is wholly outside, and undecided
else. Answers are True, False (surely not), or None (neither). The criteria of the paper's claims
count standard errors instead.
"""

import math

from noisescale.uncertainty import Estimate

_LEVELS = {2: 0.95, 3: 0.99}
SLOPES = (0.85, 1.15)  # that count as 1: a noisy slope must not pass because it is noisy


def above(estimate: Estimate, bound: float, *, by: int) -> bool | None:
    """Whether it exceeds the bound by what stands for ``by`` standard errors."""
    at = estimate.interval(_LEVELS[by])
    return True if at.low > bound else False if at.high < bound else None


def inside(estimate: Estimate, low: float = -math.inf, high: float = math.inf) -> bool | None:
    """Whether it is between the bounds."""
    at = estimate if estimate.has_interval else estimate.interval()
    if at.low >= low and at.high <= high:
        return True
    return False if at.high < low or at.low > high else None
