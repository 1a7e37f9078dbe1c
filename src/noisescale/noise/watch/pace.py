"""How often to measure, and on how many examples, so that a run is slowed by a given part at most.

Measuring m examples of a batch takes about f + s m seconds, an update without it u seconds. The
norm of the batch's gradient is known from every measured update whatever m, so that frequent
readings from few examples tell more than rare ones from all of them: first m shrinks, down to an
eighth of the batch or to where the fixed part f is the larger, then only every k-th update is
measured.

>>> choose(0.1, update=1.0, fixed=0.01, each=0.01, batch_size=64)
Pace(every=1, examples=9)
>>> choose(0.1, update=1.0, fixed=0.2, each=0.01, batch_size=64)
Pace(every=4, examples=20)
"""

import math
from dataclasses import dataclass

_FEWEST = 8  # at least one in so many examples


@dataclass(frozen=True)
class Pace:
    """Every how many updates to measure, and how many examples of a batch (None: all)."""

    every: int
    examples: int | None


def choose(overhead: float, *, update: float, fixed: float, each: float, batch_size: int) -> Pace:
    """The pace that costs ``overhead`` of a run's time at most.

    Args:
        overhead: the part of the time, such as 0.1.
        update: seconds of an update without measuring.
        fixed, each: seconds of measuring, apart from and for each example.
        batch_size: examples in a batch.
    """
    allowed = overhead * update
    if fixed + each * batch_size <= allowed:
        return Pace(1, None)
    fewest = min(batch_size, max(2, math.ceil(batch_size / _FEWEST)))
    affordable = math.floor((allowed - fixed) / each) if each > 0 else 0
    if affordable >= fewest:
        return Pace(1, affordable)
    balanced = math.floor(fixed / each) if each > 0 else batch_size
    examples = min(batch_size, max(fewest, balanced))
    every = math.ceil((fixed + each * examples) / allowed)
    return Pace(max(every, 1), None if examples == batch_size else examples)


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The fixed part and the slope of seconds over examples, neither below zero; least squares."""
    n = len(points)
    x, y = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((p[0] - x) ** 2 for p in points)
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), y / x if x else 0.0)
    return y - slope * x, slope
