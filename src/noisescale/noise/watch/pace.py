"""How often to measure, and on how many examples, so that a run is slowed by a given part at most.

Measuring m examples of a batch takes about f + s m seconds, an update without it u seconds. The
norm of the batch's gradient is known from every measured update whatever m, so that frequent
readings from few examples tell more than rare ones from all of them: first m shrinks, down to an
eighth of the batch or to where the fixed part f is the larger, then only every k-th update is
measured.

The seconds are those of a run's first updates, of which one is measured and the next is not: what
measuring takes by its own clock, or by how much longer an update takes with it if that is more, as
what it drives out of the caches costs time elsewhere.

>>> choose(0.1, update=1.0, fixed=0.01, each=0.01, batch_size=64)
Pace(every=1, examples=9)
>>> choose(0.1, update=1.0, fixed=0.2, each=0.01, batch_size=64)
Pace(every=4, examples=20)
"""

import math
from dataclasses import dataclass, field
from statistics import median

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


@dataclass
class Pilot:
    """Timings of a run's first updates, measured ones and bare ones in turns.

    Attributes:
        measured: by how many examples: seconds of measuring by its own clock, and of the update.
        bare: seconds of updates that were not measured.
        extra: seconds spent once, to find out how to measure.

    >>> pilot = Pilot(bare=[1.0, 1.0, 9.0])  # whose median is 1
    >>> for examples, own, whole in ((8, 0.2, 1.3), (8, 0.2, 7.0), (8, 0.2, 1.3), (32, 0.9, 1.1)):
    ...     pilot.add(examples, own, whole)
    >>> timings = pilot.settled()
    >>> timings.update, round(timings.fixed, 6), round(timings.each, 6), round(timings.spent, 6)
    (1.0, 0.1, 0.025, 1.8)
    """

    measured: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    bare: list[float] = field(default_factory=list)
    extra: float = 0.0

    def add(self, examples: int, own: float, whole: float) -> None:
        """A measured update."""
        self.measured.setdefault(examples, []).append((own, whole))

    def __len__(self) -> int:
        return sum(map(len, self.measured.values()))

    def settled(self) -> "Timings":
        """What follows for measuring; an update takes for ever if nothing was measured."""
        if not self.measured:
            return Timings(math.inf, 0.0, 0.0, self.extra)
        every = [pair for pairs in self.measured.values() for pair in pairs]
        update = median(self.bare or [max(whole - own, 1e-9) for own, whole in every])
        points = []
        for examples, pairs in self.measured.items():
            own, whole = (median(values) for values in zip(*pairs, strict=True))
            points += [(float(examples), max(own, whole - update))] * len(pairs)
        spent = sum(cost for _, cost in points) + self.extra
        return Timings(max(update, 1e-9), *line(points), spent)


@dataclass(frozen=True)
class Timings:
    """Seconds: of an update; of measuring, apart from and for each example; and spent so far."""

    update: float
    fixed: float
    each: float
    spent: float


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The fixed part and the slope of seconds over examples, neither below zero; least squares."""
    n = len(points)
    x, y = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((p[0] - x) ** 2 for p in points)
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), y / x if x else 0.0)
    return y - slope * x, slope
