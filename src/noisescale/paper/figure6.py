"""Figure 6: the best batch size against the size of the training set."""

from itertools import pairwise

import numpy as np

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
from noisescale.paper.section import Context, Outcome, Section
from noisescale.sweep.rules import ScalingRule, fit_scaling_rule

_SIZES = {
    "smoke": (500, 1_000),
    "quick": (1_000, 2_000, 4_000),
    "full": (1_000, 3_000, 10_000, 20_000, 27_000, 36_000, 46_000, 60_000),
}
_LARGE = 20_000  # from here on the paper sees proportionality
_FAR = 4  # rungs: four times the best batch size, where the gap is measured


def measure(context: Context) -> Outcome:
    """Find the best batch size for each training set; judge C20 and C21."""
    effort = effort_of(context)
    sizes = [n for n in _SIZES[context.scale] if n <= len(context.data.y_train)]
    far = _FAR if context.scale == "full" else 0
    runs = run_until_interior(
        context, [setting(n_train=n, steps=effort.steps, above=far) for n in sizes]
    )
    rule = fit_scaling_rule(runs.frame, "n_train")
    large = rule
    if sum(n >= _LARGE for n in sizes) >= 3:
        large = fit_scaling_rule(runs.frame[runs.frame["n_train"] >= _LARGE], "n_train")
    how = (
        f"{context.seeds} seeds, ε = {LEARNING_RATE:g}, m = {MOMENTUM:g}, {effort.steps:,} updates"
    )
    return Outcome(
        statement=(
            "If test accuracy depends on the batch size through the noise scale, the best batch "
            "size is proportional to the size of the training set. The paper finds that from "
            f"{_LARGE:,} images on, with a peak that rises and a gap that narrows."
        ),
        pictures=(
            draw_rule(rule, name="figure6", symbol="N", x_label="training set size N",
                      labels={float(n): f"{n:,}" for n in sizes}),
        ),
        measurements=(
            *describe(rule, f"all N, {how}"),
            *(describe(large, f"N >= {_LARGE:,}, {how}") if large is not rule else ()),
        ),
        judgements=(
            judge_slope(context, "C20", large, large.slope if large is not rule else None),
            _judge_peaks(context, runs, rule),
        ),
    )  # fmt: skip


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
