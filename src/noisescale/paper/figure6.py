"""Figure 6: the best batch size against the size of the training set."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from noisescale.data import facts
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Array, Estimate, Runs, estimate, short
from noisescale.paper.scaling import (
    CONVENTION,
    LADDER,
    describe,
    effort_of,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Context, Measurement, Outcome, Section
from noisescale.sweep.rules import RulePoint, ScalingRule, fit_scaling_rule

_SIZES = {
    "smoke": (500, 1_000),
    "quick": (1_000, 2_000, 4_000),
    "full": (1_000, 3_000, 10_000, 20_000, 27_000, 36_000, 46_000, 60_000),
}
_LARGE = 20_000  # from here on the paper sees proportionality
_SHORTER = 4  # the slope is measured again with this share of the updates
_SHORTER_SEEDS = 3  # and with so many seeds at the most
_FAR = 4  # rungs: four times the best batch size, where the gap is measured


def measure(context: Context) -> Outcome:
    """Find the best batch size for each training set; judge C20 and C21."""
    effort = effort_of(context)
    sizes = [n for n in _SIZES[context.scale] if n <= facts(context.data.name).n_train]
    far = _FAR if context.scale == "full" else 0
    runs = run_until_interior(
        context,
        [setting(n_train=n, steps=effort.steps, above=far) for n in sizes],
        coarse=True,  # a run at the rule's place of the largest sets takes many minutes
    )
    rule = fit_scaling_rule(runs.frame, "n_train")
    how = f"{context.seeds} seeds, ε = {LEARNING_RATE:g}, m = {MOMENTUM:g}"
    large, more = rule, []
    if sum(n >= _LARGE for n in sizes) >= 3:
        large = fit_scaling_rule(runs.frame[runs.frame["n_train"] >= _LARGE], "n_train")
        shorter = _fit_with_fewer_updates(context, large)
        more = [
            *describe(large, f"N >= {_LARGE:,}, {how}, {effort.steps:,} updates"),
            *describe(
                shorter,
                f"N >= {_LARGE:,}, {effort.steps // _SHORTER:,} updates, "
                f"at most {_SHORTER_SEEDS} seeds",
            ),
            *map(_where_it_peaks, (large, shorter), (effort.steps, effort.steps // _SHORTER)),
        ]
    return Outcome(
        statement=(
            "If test accuracy depends on the batch size through the noise scale, the best batch "
            "size is proportional to the size of the training set. The paper finds that from "
            f"{_LARGE:,} images on, with a peak that rises and a gap that narrows."
        ),
        pictures=(
            draw_rule(
                rule,
                name="figure6",
                symbol="N",
                x_label="training set size N",
                labels={float(n): f"{n:,}" for n in sizes},
            ),
        ),
        measurements=(
            *describe(rule, f"all N, {how}, {effort.steps:,} updates"),
            *more,
            *(_whether_it_fits(runs, point) for point in large.points),
            _coarse_look(runs, sizes[-1]),
        ),
        judgements=(
            judge_slope(context, "C20", large, large.slope if large is not rule else None),
            _judge_peaks(context, runs, rule),
        ),
    )


def _fit_with_fewer_updates(context: Context, rule: ScalingRule) -> ScalingRule:
    """The same training sets with a share of the updates: does the best batch size stay?"""
    context = replace(context, seeds=min(context.seeds, _SHORTER_SEEDS))
    steps = effort_of(context).steps // _SHORTER
    settings = [
        replace(setting(n_train=point.n_train, steps=steps), start=point.peak.best)
        for point in rule.points
    ]
    return fit_scaling_rule(run_until_interior(context, settings).frame, "n_train")


def _where_it_peaks(rule: ScalingRule, steps: int) -> Measurement:
    found = "; ".join(
        f"{point.n_train:,}: "
        + (
            f"{point.peak.fitted:.3g}"
            if point.peak.fitted is not None
            else f"undetermined, best observed {point.peak.best}"
        )
        + ("" if point.peak.low is None else f" [{point.peak.low:.3g}, {point.peak.high:.3g}]")
        for point in rule.points
    )
    return Measurement("B_opt by N", found, f"{steps:,} updates")


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


def _judge_peaks(context: Context, runs: Runs, rule: ScalingRule) -> Judgement:
    """C21: peak accuracy rises with N, the gap to four times the best batch narrows."""
    peaks, gaps = {}, {}
    for point in rule.points:
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
        [_monotone(list(peaks.values()), 1), _monotone(list(gaps.values()), -1) if whole else None],
        decidable=context.decidable,
        measured={f"peak at N = {n:,}": short(values.mean()) for n, values in peaks.items()}
        | {f"gap at N = {n:,}": short(values.mean()) for n, values in gaps.items()},
        uncertainty={f"peak at N = {n:,}": short(estimate(v).error) for n, v in peaks.items()}
        | {f"gap at N = {n:,}": short(estimate(v).error) for n, v in gaps.items()},
        convention=CONVENTION,
    )


def _monotone(series: list[Array], sign: int) -> bool | None:
    """Whether each step goes the right way within its standard error, and the whole does surely."""
    if len(series) < 2:
        return None
    steps: list[Estimate] = [
        estimate(sign * (after - before)) for before, after in pairwise(series)
    ]
    whole = estimate(sign * (series[-1] - series[0]))
    if any(step.mean < -step.error for step in steps):
        return False
    return True if whole.mean > whole.error else None


SECTION = Section(
    id="6", title="Figure 6: batch size and training set", measure=measure, from_runs=True
)
