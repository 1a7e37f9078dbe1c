"""Figure 6: the best batch size against the size of the training set."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from noisescale.paper.batches import CONVENTION, LEARNING_RATE, MOMENTUM
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Array, Runs, short
from noisescale.paper.scaling import (
    LADDER,
    describe,
    describe_place,
    effort_of,
    fit_rule,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.sweep.peak import find_peak
from noisescale.sweep.rules import RulePoint, ScalingRule
from noisescale.uncertainty import Estimate, mean_of

_SIZES = {
    "smoke": (500, 1_000),
    "quick": (1_000, 2_000, 4_000),
    "full": (1_000, 3_000, 10_000, 20_000, 27_000, 36_000, 46_000, 60_000),
}
_LARGE = 20_000  # from here on the paper sees proportionality
_SHORTER = 4  # the slope is measured again with this share of the updates
_FAR = 4  # rungs: four times the best batch size, where the gap is measured


@dataclass(frozen=True)
class Data(Measured):
    """Runs around the best batch size for each training set.

    ``shorter``: large sets alone, with a share of the updates; None where there are too few sets.
    """

    runs: Runs
    shorter: Runs | None

    @cached_property
    def rule(self) -> ScalingRule:
        """The best batch size against all training sets."""
        return fit_rule(self.runs.frame, "n_train")

    @cached_property
    def large_rule(self) -> ScalingRule | None:
        """The same over the large sets alone."""
        if self.shorter is None:
            return None
        frame = self.runs.frame
        return fit_rule(frame[frame["n_train"] >= _LARGE], "n_train")


def measure(context: Context) -> Data:
    """Search around the best batch size for each training set, and with fewer updates."""
    steps, n_most = effort_of(context.at).steps, len(context.data.y_train)
    sizes = [n for n in _SIZES[context.scale] if n <= n_most]
    far = _FAR if context.scale == "full" else 0
    runs = run_until_interior(
        context,
        [setting(n_train=n, steps=steps, above=far) for n in sizes],
        coarse=True,  # a run at the rule's place of the largest sets takes many minutes
    )
    large = [n for n in sizes if n >= _LARGE]
    return Data(
        at=context.at,
        runs=runs,
        shorter=_with_fewer_updates(context, runs, large) if len(large) >= 3 else None,
    )


def _with_fewer_updates(context: Context, runs: Runs, sizes: list[int]) -> Runs:
    """The same training sets with a share of the updates: does the best batch size stay?"""
    steps = effort_of(context.at).steps // _SHORTER
    return run_until_interior(
        context,
        [
            replace(
                setting(n_train=n, steps=steps),
                start=find_peak(runs.where(n_train=n).frame, n_resamples=1).best,
            )
            for n in sizes
        ],
    )


def judge(data: Data) -> Findings:
    """C20 and C21."""
    large = data.large_rule
    return Findings(
        statement=(
            "If test accuracy depends on the batch size through the noise scale, the best batch "
            "size is proportional to the size of the training set. The paper finds that from "
            f"{_LARGE:,} images on, with a peak that rises and a gap that narrows."
        ),
        judgements=(
            judge_slope(data.at, "C20", large or data.rule, large.slope if large else None),
            _judge_peaks(data),
        ),
        measurements=tuple(_measurements(data)),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The rule over all training sets."""
    picture = draw_rule(
        data.rule,
        name="figure6",
        symbol="N",
        x_label="training set size N",
        labels={point.value: f"{point.value:,.0f}" for point in data.rule.points},
    )
    return (picture,)


def _measurements(data: Data) -> Iterator[Measurement]:
    steps, large = effort_of(data.at).steps, data.large_rule
    how = f"{data.at.seeds} seeds, ε = {LEARNING_RATE:g}, m = {MOMENTUM:g}"
    yield from describe(data.rule, f"all N, {how}, {steps:,} updates")
    if large is not None and data.shorter is not None:
        fewer = f"{steps // _SHORTER:,} updates"
        shorter = fit_rule(data.shorter.frame, "n_train")
        yield from describe(large, f"N >= {_LARGE:,}, {how}, {steps:,} updates")
        yield from describe(shorter, f"N >= {_LARGE:,}, {how}, {fewer}")
        yield _where_it_peaks(large, f"{steps:,} updates")
        yield _where_it_peaks(shorter, fewer)
    for point in (large or data.rule).points:
        yield _whether_it_fits(data.runs, point)
    yield _coarse_look(data.runs, int(data.rule.points[-1].value))


def _where_it_peaks(rule: ScalingRule, how: str) -> Measurement:
    places = (f"{point.n_train:,}: {describe_place(point.peak)}" for point in rule.points)
    return Measurement("B_opt by N", "; ".join(places), how)


def _whether_it_fits(runs: Runs, point: RulePoint) -> Measurement:
    """How well training does at the best batch size and about half and twice of it."""
    sizes, best = point.peak.sizes, point.peak.best
    near = [min(sizes, key=lambda size: abs(np.log(size / best / share))) for share in (0.5, 1, 2)]
    told = []
    for size in dict.fromkeys(near):
        at = {"n_train": point.n_train, "batch_size": size}
        train, test = (runs.final(f"{part}_accuracy", **at).mean() for part in ("train", "test"))
        told.append(f"B = {size:g}: {train:.4f} and {test:.4f}")
    return Measurement(
        f"training and test accuracy at N = {point.n_train:,}", "; ".join(told), "mean over seeds"
    )


def _coarse_look(runs: Runs, n_train: int) -> Measurement:
    """What one seed saw at the batch sizes up to the one that is proportional to N."""
    frame = runs.where(n_train=n_train, seed=0).frame.sort_values("batch_size")
    seen = "; ".join(
        f"{row.batch_size}: " + (f"{row.test_accuracy:.4f}" if row.status == "done" else "diverged")
        for row in frame.itertuples(index=False)
    )
    return Measurement(
        f"test accuracy by B at N = {n_train:,}",
        seen,
        "one seed, with the coarse pass up to where the rule puts the peak",
    )


def _judge_peaks(data: Data) -> Judgement:
    """C21: peak accuracy rises with N, the gap to four times the best batch narrows."""
    runs, peaks, gaps = data.runs, {}, {}
    for point in data.rule.points:
        at = {"n_train": int(point.value)}
        peak = runs.final("test_accuracy", batch_size=point.peak.best, **at)
        rung = LADDER.index(int(point.peak.best)) + _FAR
        peaks[int(point.value)] = peak
        if rung < len(LADDER) and LADDER[rung] in point.peak.sizes:
            far = runs.final("test_accuracy", batch_size=LADDER[rung], **at)
            gaps[int(point.value)] = np.asarray(peak - far)
    whole = len(gaps) == len(peaks)
    return conclude(
        "C21",
        [
            _monotone(list(peaks.values()), 1),
            _monotone(list(gaps.values()), -1) if whole else None,
        ],
        decidable=data.at.decidable,
        measured={f"peak at N = {n:,}": short(values.mean()) for n, values in peaks.items()}
        | {f"gap at N = {n:,}": short(values.mean()) for n, values in gaps.items()},
        uncertainty={f"peak at N = {n:,}": short(mean_of(v).std) for n, v in peaks.items()}
        | {f"gap at N = {n:,}": short(mean_of(v).std) for n, v in gaps.items()},
        convention=CONVENTION,
    )


def _monotone(series: list[Array], sign: int) -> bool | None:
    """Whether each step goes the right way within its standard error, and the whole does surely."""
    if len(series) < 2:
        return None
    steps: list[Estimate] = [mean_of(sign * (after - before)) for before, after in pairwise(series)]
    whole = mean_of(sign * (series[-1] - series[0]))
    if any(step.value < -step.std for step in steps):
        return False
    return True if whole.value > whole.std else None


SECTION = Section("6", "Figure 6: batch size and training set", measure, judge, draw)
