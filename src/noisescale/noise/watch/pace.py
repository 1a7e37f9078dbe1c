"""Which updates to measure, and on how many examples, so that a run is slowed by a given part.

Measuring m examples of a batch takes about f + s m seconds, an update without it u seconds. The
norm of the batch's gradient is known from every measured update whatever m, so that frequent
readings from few examples tell more than rare ones from all of them: first m shrinks, down to an
eighth of the batch or to where the fixed part f is the larger, then only every k-th update is
measured; but never more rarely than every 20th, or than a twentieth of the updates so far.

Two things come on top. What measuring has taken too much, as it does while it is timed, is saved
by longer gaps afterwards. And where measuring takes three milliseconds at most, which only small
networks do, two updates of three are measured until that has taken a second in all: short runs of
updates of a millisecond would else have too few readings for an answer.

The seconds are those between steps, of measured updates, of those right after, and of others: f
holds hooks, and caches that are driven out. They are medians over the latest, chosen from anew
through the run. What is slow once, as compilation and checks are, does not count.

>>> choose(0.1, update=1.0, fixed=0.01, each=0.01, batch_size=64)
Pace(every=1, examples=9)
>>> choose(0.1, update=1.0, fixed=0.2, each=0.01, batch_size=64)
Pace(every=4, examples=20)
>>> choose(0.1, update=1.0, fixed=4.0, each=0.5, batch_size=64)  # which costs more
Pace(every=20, examples=8)
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median_low

_FEWEST = 8  # at least one in so many examples
_LONGEST = 20  # updates from one reading to the next, or a part of the updates so far
_STRIDE = 3  # a measured update, the one after it, and one that is neither
_FIRST = 4  # measured updates from which the pace is chosen first, of a quarter of the examples
_PILOT = 8  # measured updates after which it is known what all of them take
_AGAIN = 4  # measured updates from one choice to the next
_WINDOW = 16  # the latest timings of a kind
_FREE = 1.0  # seconds that may be spent in all, whatever the overhead,
_CHEAP = 3e-3  # where one reading of all examples takes at most so many


def longest_gap(update: int) -> int:
    """How many updates after this one the next is measured at the latest."""
    return max(_LONGEST, update // _LONGEST)


@dataclass(frozen=True)
class Pace:
    """Every how many updates to measure, and how many examples of a batch (None: all)."""

    every: int
    examples: int | None


def choose(
    overhead: float,
    *,
    update: float,
    fixed: float,
    each: float,
    batch_size: int,
    longest: int = _LONGEST,
) -> Pace:
    """The pace that costs ``overhead`` of a run's time, or the cheapest one with the longest gap.

    Args:
        overhead: the part of the time, such as 0.1.
        update: seconds of an update without measuring.
        fixed, each: seconds of measuring, apart from and for each example.
        batch_size: examples in a batch.
        longest: every so many updates one is measured whatever it costs.
    """
    allowed = overhead * update
    if fixed + each * batch_size <= allowed:
        return Pace(1, None)
    fewest = min(batch_size, max(2, math.ceil(batch_size / _FEWEST)))

    def examples_for(seconds: float) -> int:
        most = seconds / each if each > 0 else math.inf
        return math.floor(min(max(most, 0.0), batch_size)) if seconds > 0 else 0

    examples = examples_for(allowed - fixed)
    if examples < fewest:
        examples = max(fewest, examples_for(fixed))
    if fixed + each * examples > allowed * longest:
        examples = min(examples, max(fewest, examples_for(allowed * longest - fixed)))
    every = math.ceil((fixed + each * examples) / allowed)
    return Pace(min(max(every, 1), longest), None if examples == batch_size else examples)


@dataclass(frozen=True)
class Timings:
    """Seconds: of an update; of measuring, apart from and for each example."""

    update: float
    fixed: float
    each: float

    def reading(self, pace: Pace, batch_size: int) -> float:
        """Seconds of measuring one update."""
        examples = batch_size if pace.examples is None else pace.examples
        return self.fixed + self.each * examples

    def part(self, pace: Pace, batch_size: int) -> float:
        """The part of a run's time that a pace costs."""
        return self.reading(pace, batch_size) / (pace.every * self.update)


@dataclass
class Pacer:
    """Chooses what is measured from what measuring has taken.

    Attributes:
        overhead: the part of the time that measuring may take.
        pace: None until it is chosen.
        given: whether the pace is the user's own, which stays.
        next: the update that is measured next.
        n_measured: measured updates, whether or not that succeeded.
        measured: examples, seconds of measuring by its own clock, and of the update.
        after, bare: seconds of updates right after a measured one, and of those right before.
        spent, passed: seconds of measuring, beyond those that are free, and of updates without
            it, by the timings that all processes share.
    """

    overhead: float
    pace: Pace | None = None
    given: bool = False
    next: int = 0
    n_measured: int = 0
    measured: deque[tuple[int, float, float]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    after: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    bare: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    spent: float = 0.0
    passed: float = 0.0
    _free: float = _FREE  # seconds that are left of it
    _chosen: tuple[int, int] = (0, 0)  # measured updates, and all, when the pace was last chosen
    _follows: bool = False  # whether the last update was measured
    _kinds: set[Hashable] = field(default_factory=set)

    def longest(self, update: int) -> int:
        """The longest gap between readings from here on."""
        return self.pace.every if self.given and self.pace else longest_gap(update)

    def begins(self, update: int) -> bool:
        """Whether this update is measured."""
        if update < self.next:
            return False
        self.next = update + self._gap(update)
        return True

    def resumes(self, update: int, *, before: int, last: int) -> bool:
        """Whether a run that goes on from another update, and another reading, measures at once."""
        due = last + self.longest(last)
        self.next = min(update + self.next - before, max(update, due))
        self._chosen = self.n_measured, update
        return self.next == update

    def _gap(self, update: int) -> int:
        if self.pace is None:
            return _STRIDE
        if self.given:
            return self.pace.every
        # At first, and now and then, with a bare update in between, whose time is compared.
        spaced = self.n_measured < _PILOT or self.n_measured % _AGAIN == 1
        return min(max(self.pace.every, _STRIDE * spaced), self.longest(update))

    def examples(self, n: int) -> int | None:
        """On how many of n examples to measure next: now and then on fewer, for the slope."""
        usual = None if self.pace is None else self.pace.examples
        if self.given:
            return usual
        if self.n_measured < _PILOT:
            usual, fewer = None, self.n_measured < _FIRST or self.n_measured % 2 == 1
        else:
            fewer = self.n_measured % (2 * _AGAIN) == 0
        m = n if usual is None else min(usual, n)
        return max(2, m // 4) if fewer and m >= 4 else usual

    def is_timed(self, update: int, measured: bool) -> bool:
        """Whether it matters when this update ends."""
        return measured or self._follows or self.next - update <= 2

    def add(
        self, update: int, seconds: float, *, measured: bool, examples: int = 0, own: float = 0.0
    ) -> None:
        """Learn what an update has taken.

        Args:
            update: which one.
            seconds: from the last step to this one; NaN if that is not known.
            measured: whether it was measured.
            examples: on so many; 0 if that failed, or if it was checked first.
            own: seconds of measuring by its own clock.
        """
        follows, self._follows = self._follows, measured
        self.n_measured += measured
        known = seconds > 0
        if measured:
            if known and examples and self._counts(examples):
                self.measured.append((examples, own, seconds))
        elif known and follows and self._counts("after"):
            self.after.append(seconds)
        elif known and not follows and self.next == update + 1 and self._counts("bare"):
            self.bare.append(seconds)

    def _counts(self, kind: Hashable) -> bool:
        """Not the first of a kind: it may compile, or fill caches."""
        counts = kind in self._kinds
        self._kinds.add(kind)
        return counts

    @property
    def due(self) -> bool:
        """Whether it is time to choose; the same in all processes, whatever each could measure."""
        return not self.given and self.n_measured >= _FIRST and self.n_measured % _AGAIN == 0

    def settled(self) -> Timings:
        """What follows for measuring; an update takes for ever if nothing was measured."""
        if not self.measured:
            return Timings(math.inf, 0.0, 0.0)
        alone = self.bare or self.after or [max(w - own, 1e-9) for _, own, w in self.measured]
        update = max(median_low(alone), 1e-9)
        late = max(0.0, median_low(self.after) - update) if len(self.after) > 1 else 0.0
        by_examples: dict[int, list[tuple[float, float]]] = {}
        for examples, own, whole in self.measured:
            by_examples.setdefault(examples, []).append((own, whole))
        points = []
        for examples, pairs in by_examples.items():
            own, whole = (median_low(values) for values in zip(*pairs, strict=True))
            points += [(float(examples), max(own, whole - update) + late)] * len(pairs)
        return Timings(update, *line(points))

    def choose(self, timings: Timings, batch_size: int, passes: int, update: int) -> str | None:
        """Choose the pace after a measured update; says so if it costs more than it may."""
        if timings.update == math.inf:  # none could measure anything
            return None
        pace = choose(
            self.overhead,
            update=timings.update,
            fixed=timings.fixed,
            each=timings.each,
            batch_size=batch_size,
            longest=self.longest(update),
        )
        part = timings.part(pace, batch_size)
        self._account(timings, batch_size, passes, update)
        if self._is_free(timings, batch_size):
            part, pace = 0.0, Pace(1, None)
        else:
            pace = replace(pace, every=self._repaid(timings, pace, batch_size, update))
        if pace.examples is not None:  # of every micro-batch
            pace = Pace(pace.every, max(1, pace.examples // passes))
        self.pace = pace
        self.next = update + self._gap(update)
        if part <= self.overhead * (1 + 1e-9):
            return None
        return (
            f"{DEAR} {1e3 * timings.update:.3g} ms: measuring one in {pace.every} takes "
            f"{part:.0%} of the run's time, more than the {100 * self.overhead:.3g}% asked for"
        ).replace("%", " %")

    def _account(self, timings: Timings, batch_size: int, passes: int, update: int) -> None:
        """Add up what has been spent since the pace was chosen last."""
        n_measured, last = self._chosen
        self._chosen = self.n_measured, update + 1
        before = self.pace or Pace(1, None)
        if before.examples is not None:  # of every micro-batch
            before = Pace(before.every, before.examples * passes)
        seconds = (self.n_measured - n_measured) * timings.reading(before, batch_size)
        if timings.reading(Pace(1, None), batch_size) <= _CHEAP:
            free = min(seconds, self._free)
            self._free, seconds = self._free - free, seconds - free
        self.spent += seconds
        self.passed += max(update + 1 - last, 0) * timings.update

    def _is_free(self, timings: Timings, batch_size: int) -> bool:
        """Whether every update may be measured, because that takes next to nothing."""
        each = timings.reading(Pace(1, None), batch_size)
        return each <= _CHEAP and _AGAIN * each <= self._free

    def _repaid(self, timings: Timings, pace: Pace, batch_size: int, update: int) -> int:
        """Every how many updates, so that what was spent too much is saved, in gaps that double."""
        due = self.spent + _AGAIN * timings.reading(pace, batch_size)
        wanted = (due / self.overhead - self.passed) / (_AGAIN * timings.update)
        most = min(max(_LONGEST, 2 * pace.every), self.longest(update))
        return max(pace.every, min(math.ceil(wanted - 1e-9), most))


DEAR, GAP = "every update takes", "no reading between updates"  # how notes begin


def gaps_in_words(updates: Sequence[int], longest: Callable[[int], int] = longest_gap) -> str:
    """The longest stretch without a reading, where one is longer than it should be.

    >>> gaps_in_words([0, 3, 6, 11, 92, 100])
    'no reading between updates 11 and 92'
    """
    gaps = [(a, b) for a, b in pairwise(updates) if b - a > longest(a)]
    a, b = max(gaps, key=lambda gap: gap[1] - gap[0])
    others = f", the longest of {len(gaps)} such gaps" if len(gaps) > 1 else ""
    return f"{GAP} {a:,} and {b:,}{others}"


def line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """The fixed part and the slope of seconds over examples, neither below zero; least squares."""
    n = len(points)
    x, y = (sum(p[i] for p in points) / n for i in (0, 1))
    spread = sum((p[0] - x) ** 2 for p in points)
    slope = sum((p[0] - x) * (p[1] - y) for p in points) / spread if spread else 0.0
    slope = min(max(slope, 0.0), y / x if x else 0.0)
    return y - slope * x, slope
