"""Shipped runs run again: which of them to choose, and whether the two agree.

Of one run, d = accuracy here - accuracy shipped. The same configuration and seed differ by
rounding alone, and how far rounding carries depends on the regime. From the peak upwards training
settles, and d is small against the noise sigma between seeds; below the peak it is chaotic, and
another machine lands anywhere in that noise, Var(d) <= 2 sigma^2. With u = d / (sqrt(2) sigma):

- mean: of a section's settled runs, |mean of d| (weights 1/sigma^2) beyond the margin by more
  than its error refutes, the error from the spread of d within sections (Student's t); of its
  chaotic ones, sqrt(n) |mean of u| beyond a standard normal's quantile;
- spread: sum of u^2 beyond a chi-square's quantile with n degrees of freedom refutes;
- one run: |u| beyond a standard normal's quantile refutes.

All tests together raise a false alarm with a probability of at most ``LEVEL`` (Bonferroni): half of
it is for the means, which find a section that is off, half for spreads and single runs. That
nothing refutes does not show agreement: this takes the 95 % interval of the mean d of settled runs
to lie within the margin.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from noisescale.seeds import random_stream
from noisescale.uncertainty import Estimate, mean_of

Array = NDArray[np.float64]
Regime = Literal["settled", "chaotic"]
Conclusion = Literal["agree", "disagree", "not enough runs"]

MARGIN = 0.003  # a mean difference of accuracies below it changes no verdict
LEVEL = 0.01  # the probability of any false alarm
_FEWEST = 5  # settled runs that agreement can rest on
_LARGEST_SHARE = 10  # a run may take a tenth of the time at the most
_NEAR = 1.5  # how much larger than the lowest an error may be where training is stable
_TURN = ("settled", "settled", "chaotic")  # what a section gives each time round
_DRAWS = 200  # of samples, to know a run's chance of being drawn
SHIFT = 0.01  # of a whole section, that a check is asked to notice
ERRORS = (0.01, 0.03, 0.1)  # of a single run, whose chance to be noticed is told
_SETTING = [
    "data",
    "learning_rate",
    "momentum",
    "n_train",
    "steps",
    "prior_precision",
    "cost_convention",
    "hidden_widths",
]


@dataclass(frozen=True)
class Pair:
    """A shipped run and the same run made here.

    Attributes:
        noise: the standard deviation of the accuracy from seed to seed, sigma.
        relative_size: its batch size over the best of its setting; NaN where no best is known.
    """

    key: str
    section: str
    regime: Regime
    run: str
    shipped: float
    here: float
    noise: float
    relative_size: float
    seconds: float

    @property
    def difference(self) -> float:
        """Here minus shipped."""
        return self.here - self.shipped


@dataclass(frozen=True)
class Alarm:
    """A test that refutes agreement."""

    section: str
    what: str
    p_value: float


@dataclass(frozen=True)
class Chance:
    """How likely a single wrong run is noticed.

    Attributes:
        error: by how much its accuracy is wrong.
        noticed: if it is drawn.
        overall: drawn and noticed, over all shipped runs.
    """

    error: float
    noticed: float
    overall: float


@dataclass(frozen=True)
class Agreement:
    """What a sample of runs says.

    Attributes:
        settled: the mean difference with its 95 % interval, from the peak upwards.
        chaotic: the mean difference below the peak, in units of sqrt(2) sigma, with its interval.
        spread: root mean square of u by regime: at most 1 where only the seed's noise is at work.
    """

    conclusion: Conclusion
    n_shipped: int
    pairs: list[Pair]
    settled: Estimate
    chaotic: Estimate
    spread: dict[str, float]
    alarms: list[Alarm]

    def __str__(self) -> str:
        told = f"{self.n_shipped:,} shipped runs, {len(self.pairs)} run again here: "
        told += self.conclusion
        if self.alarms:
            return f"{told} ({'; '.join(alarm.what for alarm in self.alarms[:3])})"
        if not self.settled.has_interval:
            return told
        value, low, high = self.settled.value, self.settled.low, self.settled.high
        return f"{told} (mean difference {value:+.4f}, 95 % interval [{low:+.4f}, {high:+.4f}])"


def classify(runs: pd.DataFrame) -> pd.DataFrame:
    """``runs`` with ``regime``, ``noise`` and ``relative_size``, from the shipped runs alone.

    A run is settled if its batch is at least the best of its setting and every seed trains there
    about as well as the network does at its best on so many images (error at most half as large
    again). A setting of one batch size or two
    has the best of those that differ from it in the prior or the network alone; where there are
    none, the same is asked of the learning rate, at most the best at its batch size.
    """
    runs = runs.assign(hidden_widths=runs["hidden_widths"].map(tuple))
    if "data" not in runs:
        runs = runs.assign(data="mnist")
    along_size = _compare(runs, _SETTING, "batch_size")
    others = _compare(runs, _without("prior_precision", "hidden_widths"), "batch_size")
    along_size = along_size.where(along_size["known"], others)
    along_rate = _compare(
        runs, [*_without("learning_rate", "steps"), "batch_size"], "learning_rate"
    )
    settled = np.where(
        along_size["known"],
        along_size["relative"] >= 1,
        along_rate["known"] & (along_rate["relative"] <= 1),
    )
    regime = np.where(settled & _trains(runs), "settled", "chaotic")
    relative = along_size["relative"].where(along_size["known"])
    runs = runs.assign(regime=regime, relative_size=relative)
    return runs.assign(noise=_noise(runs))


def _trains(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Whether every seed of a run's setting and batch trains about as well as the network can."""
    cell = runs.groupby([*_SETTING, "batch_size"])["test_accuracy"]
    means = runs.assign(mean=cell.transform("mean"))
    # Of all settings: where even the best trains badly, training is not stable.
    top = means.groupby(["data", "n_train", "hidden_widths"])["mean"].transform("max")
    return 1 - cell.transform("min") <= _NEAR * (1 - top)


def _without(*names: str) -> list[str]:
    return [name for name in _SETTING if name not in names]


def _compare(runs: pd.DataFrame, setting: list[str], axis: str) -> pd.DataFrame:
    """Each run's place along ``axis`` relative to the best, if at least three places were tried."""
    cell = runs.groupby([*setting, axis])["test_accuracy"]
    mean = cell.transform("mean")
    whole = runs.assign(mean=mean, n=cell.transform("size"))
    whole = whole[whole["n"] > 1]
    best = whole.sort_values("mean").groupby(setting).tail(1)
    best = best[[*setting, axis]].rename(columns={axis: "best"})
    tried = runs.groupby(setting)[axis].nunique().rename("tried").reset_index()
    placed = runs[[*setting, axis]].merge(best, on=setting, how="left")
    placed = placed.merge(tried, on=setting, how="left").set_index(runs.index)
    return pd.DataFrame(
        {
            "known": placed["best"].notna() & (placed["tried"] >= 3),
            "relative": placed[axis] / placed["best"],
        }
    )


def _noise(runs: pd.DataFrame) -> "pd.Series[float]":
    """sigma: over settled runs of the same training-set size, or what is loudest nearby.

    A chaotic run has the variance of its own seeds or the mean of its setting's, whichever is
    larger: a few seeds in a wide distribution may lie close together.
    """
    cell = runs.groupby([*_SETTING, "batch_size", "regime"])["test_accuracy"]
    variance, n = cell.transform("var"), cell.transform("size")
    table = runs.assign(square=variance * (n - 1) / n, freedom=(n - 1) / n, variance=variance)
    alike = table.groupby(["data", "n_train", "regime"])
    pooled = alike["square"].transform("sum") / alike["freedom"].transform("sum")
    nearby = table.groupby([*_SETTING, "regime"])["variance"].transform("mean")
    loudest = pd.concat([variance, nearby], axis=1).max(axis=1).fillna(pooled)
    chosen = pooled.where(runs["regime"] == "settled", loudest)
    # No accuracy is known better than the images it is counted on.
    error = (1 - runs["test_accuracy"]).clip(lower=1e-3)
    return chosen.fillna(0).clip(lower=error / N_TEST_IMAGES) ** 0.5


N_TEST_IMAGES = 10_000


def choose(
    runs: pd.DataFrame, *, seconds: float, seed: int, without: Sequence[str] = ()
) -> list[str]:
    """Keys of a random sample that takes ``seconds`` by the shipped durations.

    The sections take turns, in each two settled runs to a chaotic one. Within them a run's chance
    goes with one over the square root of its duration, which learns most in the time.
    """
    rng = random_stream(seed, "spot check")
    durations = runs["duration"].to_numpy(float)
    order = np.argsort(rng.exponential(size=len(runs)) * np.sqrt(durations))
    taken, most = set(without), seconds / _LARGEST_SHARE
    keys, sections, regimes = (runs[name].tolist() for name in ("key", "section", "regime"))
    heaps: dict[tuple[str, str], list[int]] = {}
    for row in order[::-1]:  # a heap is taken from its end
        if durations[row] <= most and keys[row] not in taken:
            heaps.setdefault((sections[row], regimes[row]), []).append(int(row))
    turns = rng.permutation(sorted({section for section, _ in heaps})).tolist()
    chosen, left = [], seconds
    while any(heaps.values()):
        for regime in _TURN:
            for section in turns:
                heap = heaps.get((section, regime), [])
                while heap:
                    row = heap.pop()
                    if durations[row] <= left:
                        chosen.append(keys[row])
                        left -= durations[row]
                        break
    return chosen


def conclude_agreement(pairs: Sequence[Pair], n_shipped: int) -> Agreement:
    """All tests, and what follows from them."""
    pairs = list(pairs)
    groups = {regime: _of(pairs, regime) for regime in ("settled", "chaotic")}
    settled = mean_of([p.difference for p in groups["settled"]]) if groups["settled"] else NOTHING
    chaotic = mean_of(_standardised(groups["chaotic"])) if groups["chaotic"] else NOTHING
    settled, chaotic = settled.interval(), chaotic.interval()
    alarms = list(_alarms(pairs))
    within = settled.has_interval and max(-settled.low, settled.high) <= MARGIN
    enough = len(groups["settled"]) >= _FEWEST
    conclusion: Conclusion = "agree" if within and enough else "not enough runs"
    return Agreement(
        conclusion="disagree" if alarms else conclusion,
        n_shipped=n_shipped,
        pairs=pairs,
        settled=settled,
        chaotic=chaotic,
        spread={
            regime: float(np.sqrt(np.mean(_standardised(group) ** 2)))
            for regime, group in groups.items()
            if group
        },
        alarms=alarms,
    )


NOTHING = Estimate(math.nan, n=0)


def _of(pairs: Sequence[Pair], regime: str, section: str | None = None) -> list[Pair]:
    return [p for p in pairs if p.regime == regime and section in (None, p.section)]


def _standardised(pairs: Sequence[Pair]) -> Array:
    """u = d / (sqrt(2) sigma)."""
    return np.array([p.difference / (math.sqrt(2) * p.noise) for p in pairs])


def _alarms(pairs: Sequence[Pair]) -> Iterator[Alarm]:
    """The tests that refute agreement, of each section in each regime and of each run."""
    groups = [
        (section, regime, group)
        for section in sorted({p.section for p in pairs})
        for regime in ("settled", "chaotic")
        if (group := _of(pairs, regime, section))
    ]
    level_of_means, level = _levels(len(groups), len(pairs))
    spread, freedom = _within_sections(pairs)
    for section, regime, group in groups:
        u = _standardised(group)
        where = f"section {section}, {_WORDS[regime]}"
        mean, error = _weighted_mean(group)
        if regime == "settled":
            beyond = max(abs(mean) - MARGIN, 0) / (error * spread)
            p_mean = 2 * float(stats.t.sf(beyond, freedom)) if freedom else 1.0
        else:
            p_mean = 2 * float(stats.norm.sf(math.sqrt(len(u)) * abs(u.mean())))
        if p_mean < level_of_means:
            yield Alarm(section, f"{where}: mean difference {mean:+.4f}", p_mean)
        p_spread = float(stats.chi2.sf(float(u @ u), len(u)))
        if p_spread < level:
            ratio = math.sqrt(u @ u / len(u))
            yield Alarm(section, f"{where}: spread {ratio:.2g} times the seeds'", p_spread)
        for pair, value in zip(group, u, strict=True):
            p_run = 2 * float(stats.norm.sf(abs(value)))
            if p_run < level:
                yield Alarm(section, f"{pair.run}: {pair.here:.4f} for {pair.shipped:.4f}", p_run)


def _levels(n_groups: int, n_runs: int) -> tuple[float, float]:
    """Of the test of a group's mean, and of each of the others: every group's spread, every run."""
    return LEVEL / (2 * max(n_groups, 1)), LEVEL / (2 * max(n_groups + n_runs, 1))


_WORDS = {"settled": "from the peak upwards", "chaotic": "below the peak"}
_FEW = 4  # degrees of freedom below which the spread is taken to be the seeds'
_SMALLEST_SPREAD = 0.05  # of rounding, against the seeds' noise: one image in a thousand


def _within_sections(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The spread of u among settled runs about their sections' means, and its freedom.

    With too few runs to tell, that of the seeds, which is at least as large.
    """
    groups = [_of(pairs, "settled", section) for section in {p.section for p in pairs}]
    groups = [group for group in groups if group]
    freedom = sum(map(len, groups)) - len(groups)
    if freedom < _FEW:
        return 1.0, math.inf
    squares = 0.0
    for group in groups:
        mean, _ = _weighted_mean(group)
        squares += sum((p.difference - mean) ** 2 / (2 * p.noise**2) for p in group)
    return max(math.sqrt(squares / freedom), _SMALLEST_SPREAD), freedom


def _weighted_mean(pairs: Sequence[Pair]) -> tuple[float, float]:
    """The mean difference, weighted by 1/sigma^2, and its error if Var(d) = 2 sigma^2."""
    weights = np.array([1 / p.noise**2 for p in pairs])
    mean = weights @ [p.difference for p in pairs] / weights.sum()
    return float(mean), math.sqrt(2 / float(weights.sum()))


def shifts_noticed(agreement: Agreement, sections: Iterable[str]) -> dict[str, bool]:
    """Whether this sample would have noticed that a section's accuracies are off by ``SHIFT``."""
    return {
        section: all(
            any(alarm.section == section for alarm in _alarms(_shifted(agreement, section, by)))
            for by in (-SHIFT, SHIFT)
        )
        for section in sections
    }


def _shifted(agreement: Agreement, section: str, by: float) -> list[Pair]:
    return [
        replace(p, shipped=p.shipped + by) if p.section == section else p for p in agreement.pairs
    ]


def chances(runs: pd.DataFrame, agreement: Agreement, *, seconds: float) -> list[Chance]:
    """The probability that a single wrong run among ``runs`` is noticed, by its error.

    Drawn: by simulated samples for the same ``seconds``. Noticed: by the test of one run, with
    differences that spread as those seen here.
    """
    drawn = pd.Series(0.0, index=runs["key"])
    for seed in range(_DRAWS):
        drawn[choose(runs, seconds=seconds, seed=seed)] += 1 / _DRAWS
    share = drawn.to_numpy()
    n_groups = len({(p.section, p.regime) for p in agreement.pairs})
    _, level = _levels(n_groups, len(agreement.pairs))
    bound = float(stats.norm.isf(level / 2))
    seen = {"settled": 1.0, "chaotic": 1.0} | agreement.spread
    spread = runs["regime"].map(seen).to_numpy(float).clip(_SMALLEST_SPREAD, 1)
    told = []
    for error in ERRORS:
        size = error / (math.sqrt(2) * runs["noise"].to_numpy())
        noticed = stats.norm.sf((bound - size) / spread) + stats.norm.sf((bound + size) / spread)
        overall = float(np.mean(share * noticed))
        told.append(Chance(error, overall / max(float(share.mean()), 1e-12), overall))
    return told
