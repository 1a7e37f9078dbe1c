"""The running answer: |G|^2 and tr S averaged over a recent share of a run, and their ratio.

Every measured update gives unbiased readings s of |G|^2 and n of tr S. They are averaged apart,
because the mean of ratios is biased; the critical batch size is the ratio of the averages. A run
changes as it goes on, so the average is of its recent part: after U updates, update u has the
weight (u/U)^3. Nineteen twentieths of the weight lie in the last half of the run, whether it has
200 or 200,000 updates. A reading stands for all updates since the one before, so that the average
is over updates, however many of them were measured.

Readings of neighbouring updates are alike, and a run drifts. The interval is therefore made of the
means of at most eight stretches of equal weight, which differ by more if either is so. With the
variances and the covariance of the averages from these means, it is Fieller's: all r for which
n - r s, whose mean is 0 at the true ratio, is within t standard errors of 0,

    (n - r s)^2 <= t^2 (var n - 2 r cov(n, s) + r^2 var s),

with Student's t for their number. It is bounded exactly if s itself is t standard errors away from
0; else only a lower bound is known.

What is kept has a fixed size: sums over blocks of updates, whose length doubles when they are full
(or of which the oldest goes, if ``decay`` sets a fixed memory), and the last readings, to tell a
spike by. The functions take NumPy's or JAX's arrays, so that optax averages in the same way.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError
from noisescale.uncertainty import Estimate

LARGEST = 1e100  # readings beyond it would overflow when squared
POWER = 3  # of the updates so far, in the weights
LATEST = 0.1  # of the run so far: the latest stretch
_BLOCKS = 128
_GROUPS = 8
_NEIGHBOURS = 31  # readings that a spike is compared with
_FEWEST = 8  # of them, before any reading is called a spike
_FAR = math.log(30.0)  # over the median of its neighbours
_DEVIATIONS = 6.0  # and over their usual spread, of logarithms

Array = NDArray[np.float64]


class Averages(NamedTuple):
    """What is kept of a run's readings; arrays of NumPy or of JAX.

    Attributes:
        blocks: (128, 3), of each block of updates: how many updates its readings stand for, and
            the sums of s and n over these.
        recent: (31, 2), the latest s and n, the newest last; zeros before there are as many.
        length: updates in a block.
        first: the number of the first block, counted in blocks from the run's beginning.
        last: the last update that was taken in; -1 before there is one.
        n_taken, n_skipped, n_spikes: readings averaged, left out because they were not finite,
            and left out because they were far beyond their neighbours.
    """

    blocks: Any
    recent: Any
    length: Any
    first: Any
    last: Any
    n_taken: Any
    n_skipped: Any
    n_spikes: Any


def no_readings(xp: Any = np) -> Averages:
    """Before the first reading."""
    whole = [xp.asarray(v, dtype=xp.int32) for v in (1, 0, -1, 0, 0, 0)]
    recent = xp.zeros((_NEIGHBOURS, 2))
    return Averages(xp.zeros((_BLOCKS, 3)), recent, *whole)


def with_reading(
    a: Averages, signal: Any, noise: Any, update: Any, decay: float | None, xp: Any = np
) -> Averages:
    """The averages with one more reading, at an update after all that were taken in."""
    reading = xp.stack([xp.asarray(signal), xp.asarray(noise)]).astype(a.blocks.dtype)
    largest = min(LARGEST, math.sqrt(float(np.finfo(a.blocks.dtype).max)) / 16)
    finite = xp.all(xp.abs(reading) <= largest)  # NaN is not
    reading = xp.where(finite, reading, 0.0)
    spike = finite & _is_far(reading, a, xp)
    taken = finite & ~spike

    # Blocks: two, four, ... become one, until the oldest are forgotten and leave.
    excess = xp.maximum(update // a.length - a.first - (_BLOCKS - 1), 0)
    doublings = xp.ceil(xp.log2((excess + _BLOCKS) / _BLOCKS))
    doublings = xp.minimum(doublings, xp.log2(_longest(decay) / a.length)).astype(xp.int32)
    merged = 2**doublings
    gone = xp.maximum(update // (a.length * merged) - a.first - (_BLOCKS - 1), 0)
    numbers = xp.arange(_BLOCKS)
    blocks = a.blocks
    if xp is not np or excess:  # where it may be traced, always
        moved = (numbers // merged - gone)[None] == numbers[:, None]  # (after, before)
        blocks = moved.astype(blocks.dtype) @ blocks
    length, first = a.length * merged, a.first + gone
    here = numbers == update // length - first
    stretch = update - a.last  # that the reading stands for
    share = stretch * xp.concatenate([xp.ones(1, reading.dtype), reading])
    recent = xp.concatenate([a.recent[1:], reading[None]])
    return Averages(
        blocks=xp.where(taken, blocks + here[:, None] * share, a.blocks),
        recent=xp.where(finite, recent, a.recent),
        length=xp.where(taken, length, a.length),
        first=xp.where(taken, first, a.first),
        last=xp.where(taken, update, a.last),
        n_taken=a.n_taken + taken,
        n_skipped=a.n_skipped + ~finite,
        n_spikes=a.n_spikes + spike,
    )


def _longest(decay: float | None) -> int:
    """Updates in the longest blocks: a sixteenth of a fixed memory, so that all hold eight."""
    return 2**30 if not decay else 2 ** max(0, math.ceil(math.log2(1 / (1 - decay) / 16)))


def _is_far(reading: Any, a: Averages, xp: Any) -> Any:
    """Whether a reading is a spike, for its own logarithm against those of its neighbours.

    It is 30 times their median, and six of their usual deviations beyond it: a heavy tail has
    many large readings, so its deviations are large, and nothing is left out.
    """
    tiny = np.finfo(a.recent.dtype).tiny
    n = xp.minimum(a.n_taken + a.n_spikes, _NEIGHBOURS)
    missing = xp.arange(_NEIGHBOURS)[:, None] < _NEIGHBOURS - n
    logs = xp.log(xp.abs(a.recent) + tiny)
    median = _median(xp.where(missing, xp.inf, logs), n, xp)
    usual = 1.4826 * _median(xp.where(missing, xp.inf, xp.abs(logs - median)), n, xp)
    beyond = xp.log(xp.abs(reading) + tiny) - median
    return (n >= _FEWEST) & xp.any(beyond > xp.maximum(_FAR, _DEVIATIONS * usual))


def _median(rows: Any, n: Any, xp: Any) -> Any:
    """Of n rows; the others are infinite, which sorting puts last."""
    ordered = xp.sort(rows, axis=0)
    return (ordered[xp.maximum(n - 1, 0) // 2] + ordered[n // 2]) / 2


def weights_of(a: Averages, decay: float | None, xp: Any = np) -> Any:
    """(128,), of each block in the running average, not normalised."""
    so_far = a.last + 1
    begin = (a.first + xp.arange(_BLOCKS)) * a.length
    middle = (begin + xp.minimum(begin + a.length, so_far)) / 2
    if decay is None:
        density = xp.clip(middle / xp.maximum(so_far, 1), 0.0, 1.0) ** POWER
    else:
        density = (decay or 1.0) ** xp.maximum(so_far - middle, 0.0)
    return a.blocks[:, 0] * density


def means_of(a: Averages, weights: Any, xp: Any = np) -> Any:
    """The averages of s and n; NaN before the first reading."""
    means = a.blocks[:, 1:] / xp.where(a.blocks[:, :1] > 0, a.blocks[:, :1], 1.0)
    total = weights.sum()
    return xp.where(total > 0, weights @ means / xp.where(total > 0, total, 1.0), xp.nan)


@dataclass(repr=False)
class RunningRatio:
    """Averages of |G|^2 and tr S over updates, their ratio, and its interval.

    Attributes:
        decay: None averages over the recent half of the run, 0 over all updates alike; 0.99
            forgets after about a hundred updates.
        n_updates: readings taken in.
        n_skipped: left out, because they were not finite.
        n_spikes: left out, because they were far beyond their neighbours.
    """

    decay: float | None = None

    def __post_init__(self) -> None:
        if self.decay is not None:
            check_number("decay", self.decay, "in [0, 1)", lambda v: 0 <= v < 1)
        self._averages = no_readings()
        self._lost = 0  # updates of which there is no reading at all

    @classmethod
    def of(cls, averages: Averages, decay: float | None) -> "RunningRatio":
        """With averages that were made elsewhere, such as by JAX."""
        made = cls(decay=decay)
        kinds = (v.dtype for v in made._averages)
        made._averages = Averages(
            *(np.asarray(v, dtype=k) for v, k in zip(averages, kinds, strict=True))
        )
        return made

    @property
    def n_updates(self) -> int:
        """Readings taken in."""
        return int(self._averages.n_taken)

    @property
    def n_skipped(self) -> int:
        """Readings left out, because they were not finite."""
        return int(self._averages.n_skipped) + self._lost

    @property
    def n_spikes(self) -> int:
        """Readings left out, because they were far beyond their neighbours."""
        return int(self._averages.n_spikes)

    @property
    def last(self) -> int:
        """The last update that was taken in; -1 before there is one."""
        return int(self._averages.last)

    @property
    def window(self) -> tuple[int, int]:
        """The updates that hold nineteen twentieths of the weight: from, and up to but without."""
        so_far = self.last + 1
        if self.decay is None:
            return round(0.05 ** (1 / (POWER + 1)) * so_far), so_far
        memory = math.inf if self.decay == 0 else math.log(0.05) / math.log(self.decay)
        return max(0, so_far - math.ceil(min(memory, so_far))), so_far

    def take(self, signal: float, noise: float, update: int | None = None) -> bool:
        """Take in one update's readings; False, and counted, if they were left out.

        Args:
            signal, noise: unbiased readings of |G|^2 and of tr S.
            update: which it is, counted from 0; the one after the last unless given.
        """
        before = self._averages
        number = before.last + 1 if update is None else max(int(update), int(before.last) + 1)
        with np.errstate(invalid="ignore"):  # infinity minus infinity, before any reading
            self._averages = with_reading(before, signal, noise, number, self.decay)
        return bool(self._averages.n_taken > before.n_taken)

    def lose(self, n: int = 1) -> None:
        """Count updates of which there is no reading at all."""
        self._lost += n

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
        """The critical batch size over the window, with its interval.

        While |G|^2 is not resolved its value is NaN, ``low`` a lower bound and ``high`` infinite.
        """
        check_number("level", level, "between 0 and 1", lambda v: 0 < v < 1)
        return self._interval(weights_of(self._averages, self.decay), level)

    def latest(self, level: float = 0.95) -> Estimate:
        """The same over the last tenth of the run so far, all of its updates alike."""
        check_number("level", level, "between 0 and 1", lambda v: 0 < v < 1)
        a = self._averages
        begin = (a.first + np.arange(_BLOCKS)) * a.length
        since = (1 - LATEST) * (a.last + 1)
        return self._interval(np.where(begin + a.length / 2 >= since, a.blocks[:, 0], 0.0), level)

    @property
    def signal(self) -> float:
        """|G|^2, averaged."""
        return float(means_of(self._averages, weights_of(self._averages, self.decay))[0])

    @property
    def noise(self) -> float:
        """Tr S, averaged."""
        return float(means_of(self._averages, weights_of(self._averages, self.decay))[1])

    @property
    def signal_estimate(self) -> Estimate:
        """|G|^2 with its standard error."""
        return self._average(0)

    @property
    def noise_estimate(self) -> Estimate:
        """Tr S with its standard error."""
        return self._average(1)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        kept = {name: np.asarray(v).tolist() for name, v in self._averages._asdict().items()}
        return {"decay": self.decay, "lost": self._lost} | kept

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        names = {"decay", "lost", *Averages._fields}
        if not isinstance(state, dict) or set(state) != names:
            shown = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise InputError(f"the state must have {sorted(names)}, got {shown}.")
        self.decay = state["decay"]
        self.__post_init__()
        own = self._averages._asdict()
        kept = {}
        for name, empty in own.items():
            try:
                given = np.asarray(state[name], dtype=float)
            except (TypeError, ValueError, OverflowError):
                given = np.asarray(math.nan)
            least = {"blocks": -LARGEST, "recent": -LARGEST, "length": 1, "last": -1}.get(name, 0)
            most = LARGEST if empty.ndim else 2**31 - 1
            if given.shape != empty.shape or not ((given >= least) & (given <= most)).all():
                raise InputError(f"the state's {name} is none that a watch gave.")
            kept[name] = given.astype(empty.dtype)
        if (kept["blocks"][:, 0] < 0).any():
            raise InputError("the state's blocks stand for fewer than no updates.")
        self._averages = Averages(**kept)
        self._lost = check_whole("lost", state["lost"], at_least=0)

    def described(self, n_seen: int | None = None, counted: str = "") -> str:
        """The answer in a line, with the part of the run that it is an average of.

        ``n_seen`` says how many updates there were, if more than the last that was taken in, and
        ``counted`` what batch sizes are counted in.
        """
        begin, end = self.window
        part = "" if begin == 0 else f", averaged over updates {begin:,} to {end:,}"
        counts = [f"{self.n_updates:,} of {n_seen or end:,} updates measured"]
        if self.n_skipped:
            counts.append(f"{self.n_skipped:,} skipped")
        if self.n_spikes:
            counts.append(f"{self.n_spikes:,} spike{'s' * (self.n_spikes > 1)} left out")
        answer = in_words(self.estimate)
        if counted:
            answer += f" {counted}" if any(map(str.isdigit, answer)) else f", in {counted}"
        return f"critical batch size {answer}{part} ({', '.join(counts)})"

    def _interval(self, weights: Array, level: float) -> Estimate:
        means, covariance, k = self._groups(weights)
        n = self.n_updates
        if k < 2:
            return Estimate(math.nan, low=0.0, high=math.inf, n=n)
        s, noise = means.tolist()
        (var_s, both), (_, var_n) = covariance.tolist()
        t = float(stdtrit(k - 1, 0.5 + level / 2))
        a, b, c = s**2 - t**2 * var_s, noise * s - t**2 * both, noise**2 - t**2 * var_n
        root = math.sqrt(max(b**2 - a * c, 0.0))
        if a <= 0 or s <= 0 or noise <= 0:
            # Beyond the root on the right; or anywhere, if tr S is not above zero either.
            bound = c / (b + root) if c > 0 and noise > 0 and b + root > 0 else 0.0
            return Estimate(math.nan, low=bound, high=math.inf, n=n)
        ratio = noise / s
        relative = var_n / noise**2 + var_s / s**2 - 2 * both / (noise * s)
        std = ratio * math.sqrt(max(relative, 0.0))
        return Estimate(ratio, std, low=max((b - root) / a, 0.0), high=(b + root) / a, n=n)

    def _average(self, which: int) -> Estimate:
        means, covariance, k = self._groups(weights_of(self._averages, self.decay))
        std = math.sqrt(covariance[which, which]) if k > 1 else math.nan
        return Estimate(float(means[which]), std, n=self.n_updates)

    def _groups(self, weights: Array) -> tuple[Array, Array, int]:
        """The means of s and n, their covariance, and from how many groups of blocks it is.

        Groups are neighbouring blocks with about as much weight each. For readings that are alike
        and independent a group's mean has a variance of one over its weight, whatever that is.
        """
        held = weights > 0
        w, total = weights[held], float(weights.sum())
        if not held.any():
            return np.full(2, np.nan), np.full((2, 2), np.nan), 0
        w = w / total
        means = self._averages.blocks[held, 1:] / self._averages.blocks[held, :1]
        average = w @ means
        n = min(_GROUPS, len(w))
        group = np.minimum(((np.cumsum(w) - w / 2) * n).astype(int), n - 1)
        weight = np.bincount(group, w, n)
        some = weight > 0
        by_group = np.stack([np.bincount(group, w * means[:, k], n) for k in (0, 1)], axis=1)
        away = by_group[some] / weight[some, None] - average  # (groups, 2)
        k = int(some.sum())
        return average, (away.T * weight[some]) @ away / max(k - 1, 1), k


def in_words(b: Estimate) -> str:
    """A critical batch size with its interval, or what is known while it is not resolved.

    >>> in_words(Estimate(math.nan, low=12.3, high=math.inf))
    'not resolved yet, at least 12.3'
    """
    if not math.isnan(b.value):
        return str(b)
    return f"not resolved yet, at least {b.low:.3g}" if b.low > 0 else "not resolved yet"
