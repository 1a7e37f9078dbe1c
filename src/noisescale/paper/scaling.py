"""The runs of section 5: the best batch size at several learning rates, sizes and momenta.

Batch sizes are rungs of a ladder. For each setting a window of rungs is run, first around where the
rule puts the peak, or a coarse pass, then wider until the peak that was found lies well inside:
where the window starts makes no difference to where it ends.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from noisescale.paper.batches import CONVENTION, LEARNING_RATE, MOMENTUM, N_TRAIN
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.runs import Runs, short
from noisescale.paper.section import Circumstances, Context, Measurement, ScaleName
from noisescale.sweep import RunConfig, make_plan
from noisescale.sweep.peak import Peak
from noisescale.sweep.rules import ScalingRule, fit_line, fit_scaling_rule
from noisescale.uncertainty import Estimate

# Every size below 10, then a ratio of about the square root of two.
LADDER = (
    *range(1, 10),
    10,
    14,
    20,
    28,
    40,
    56,
    80,
    112,
    160,
    224,
    320,
    450,
    640,
    900,
    1_280,
    1_800,
    2_560,
    3_600,
    5_120,
    7_200,
    10_240,
    14_400,
    20_480,
    28_800,
    40_960,
    57_600,
)
_ANCHOR = 20  # about the best batch size at the paper's first setting; a place to start, no more
_STRIDE = 4  # rungs between the sizes of a coarse pass: a factor of four


@dataclass(frozen=True)
class Effort:
    """How much of the work a scale does: updates, sizes on either side of the peak, rounds."""

    steps: int
    reach: int
    rounds: int
    n_test: int | None = None


EFFORTS: dict[ScaleName, Effort] = {
    "smoke": Effort(100, 1, 1, n_test=1_000),
    "quick": Effort(1_000, 2, 1),
    "full": Effort(10_000, 3, 20),
}


@dataclass(frozen=True)
class Setting:
    """One point on the horizontal axis: its fields, and where to look first for the best rung."""

    fields: Mapping[str, Any]
    start: float
    axis: str = "batch_size"
    ladder: tuple[float, ...] = LADDER
    above: int = 0  # rungs wanted above the peak, beyond those that every peak gets


def effort_of(at: Circumstances) -> Effort:
    """The effort for the scale of a measurement."""
    return EFFORTS[at.scale]


def setting(
    *,
    steps: int,
    learning_rate: float = LEARNING_RATE,
    n_train: int = N_TRAIN,
    momentum: float = MOMENTUM,
    above: int = 0,
) -> Setting:
    """A setting that starts where g would be that of the paper's first."""
    louder = learning_rate / LEARNING_RATE * n_train / N_TRAIN * (1 - MOMENTUM) / (1 - momentum)
    fields = {
        "learning_rate": learning_rate,
        "n_train": n_train,
        "momentum": momentum,
        "steps": steps,
        "cost_convention": "per_class",
        "evaluate_at": "final",
    }
    return Setting(fields, _ANCHOR * louder, above=above)


def run_until_interior(
    context: Context, settings: Iterable[Setting], *, coarse: bool = False
) -> Runs:
    """Runs at each setting, at windows of the ladder wide enough for their peaks.

    ``coarse``: look first, with one seed, between where the rule puts the peak and where it is at
    the paper's first setting; worth it where a run at the rule's place is long. These runs are
    among those returned. A peak that the last round leaves near an end of its window is told; where
    it is at the end, :func:`~noisescale.find_peak` finds none.
    """
    effort = effort_of(context.at)
    settings = list(settings)
    centres = [_nearest(s, s.start) for s in settings]
    looks: list[list[RunConfig]] = []
    if coarse:
        looks = [_coarse_plan(context, s, at) for s, at in zip(settings, centres, strict=True)]
        runs = _make(context, looks)
        centres = [_best_rung(runs, s, look) for s, look in zip(settings, looks, strict=True)]
    windows = [_window(s, at, effort.reach) for s, at in zip(settings, centres, strict=True)]
    for _ in range(effort.rounds):
        plans = [_plan(context, s, window) for s, window in zip(settings, windows, strict=True)]
        runs = _make(context, [*looks, *plans])
        wider = [
            window | _window(s, _best_rung(runs, s, plan), effort.reach)
            for s, window, plan in zip(settings, windows, plans, strict=True)
        ]
        if wider == windows:
            break
        moving = sum(a != b for a, b in zip(windows, wider, strict=True))
        windows = wider
    else:
        context.progress.line(
            f"{moving} of {len(settings)} searches for a peak ended near an end of their windows"
        )
    return runs


def _make(context: Context, plans: list[list[RunConfig]]) -> Runs:
    return context.runs(list({run.key: run for plan in plans for run in plan}.values()))


def _coarse_plan(context: Context, setting: Setting, rule: int) -> list[RunConfig]:
    """One seed at a few rungs from the rule's to the anchor's."""
    anchor = _nearest(setting, _ANCHOR)
    rungs = range(rule, anchor + 1, _STRIDE) or range(rule, anchor - 1, -_STRIDE)
    return _plan(context, setting, rungs, seeds=1)


def _window(setting: Setting, centre: int, reach: int) -> frozenset[int]:
    """Rungs around ``centre``, no batch larger than the training set."""
    ladder = setting.ladder
    largest = setting.fields["n_train"] if setting.axis == "batch_size" else math.inf
    # Below 10 the rungs are close together: there the window is as wide in ratio as elsewhere.
    width = 2 ** (reach / 2) * 1.01
    return frozenset(
        rung
        for rung, size in enumerate(ladder)
        if size <= largest
        and (
            -reach <= rung - centre <= max(reach, setting.above)
            or 1 / width <= size / ladder[centre] <= width
        )
    )


def _nearest(setting: Setting, value: float) -> int:
    """The rung nearest to a value."""
    return int(np.argmin(np.abs(np.log(setting.ladder) - math.log(value))))


def _plan(
    context: Context, setting: Setting, rungs: Iterable[int], *, seeds: int | None = None
) -> list[RunConfig]:
    return make_plan(
        {**setting.fields, "data": context.data.name, "n_test": effort_of(context.at).n_test},
        grid={setting.axis: [setting.ladder[rung] for rung in sorted(rungs)]},
        seeds=context.seeds if seeds is None else seeds,
    )


def _best_rung(runs: Runs, setting: Setting, plan: list[RunConfig]) -> int:
    frame = runs.frame[runs.frame["key"].isin([run.key for run in plan])].copy()
    frame["test_accuracy"] = frame["test_accuracy"].fillna(0)  # diverged: the worst
    means = frame.groupby(setting.axis)["test_accuracy"].mean()
    return setting.ladder.index(float(means.index.to_numpy()[int(means.to_numpy().argmax())]))


def is_one(slope: Estimate | None) -> bool | None:
    """The first rule: the interval contains 1; None if it is wider than 0.3 either way."""
    if slope is None or (slope.high - slope.low) / 2 > 0.3:
        return None
    return 1 in slope


def judge_slope(
    at: Circumstances, claim: str, rule: ScalingRule, slope: Estimate | None, *, fewest: int = 3
) -> Judgement:
    """Whether the slope is 1 by the first rule, from ``fewest`` settings on."""
    return conclude(
        claim,
        [is_one(slope) if rule.n_resolved >= fewest else None],
        decidable=at.decidable,
        measured=None if slope is None else {"slope": short(slope.value)},
        uncertainty={
            "95 % interval": None if slope is None else [short(slope.low), short(slope.high)],
            "settings used": rule.n_resolved,
            "settings without a resolved peak": len(rule.excluded),
        },
        convention=CONVENTION,
    )


Top = tuple[float, Estimate]  # what the best is to be proportional to, and the best


def slope_of(tops: Sequence[Top]) -> Estimate | None:
    """Of the line through them in logarithms; None with fewer than three."""
    if len(tops) < 3:
        return None
    errors = np.array([top.std / top.value for _, top in tops])
    places = np.log([top.value for _, top in tops])
    return fit_line(np.log([x for x, _ in tops]), places, errors).slope


def fit_rule(frame: pd.DataFrame, over: str, *, optimum: str = "batch_size") -> ScalingRule:
    """The rule in the paper's own unit of learning rates, as the runs have them."""
    return fit_scaling_rule(
        frame.drop(columns="cost_convention", errors="ignore"), over, optimum=optimum
    )


def describe(rule: ScalingRule, how: str) -> tuple[Measurement, ...]:
    """The fitted rule in words and numbers."""
    best = "B_opt" if rule.optimum == "batch_size" else "ε_opt"
    if rule.slope is None:
        told = f"{rule.n_resolved} of {len(rule.points)} settings resolved"
        return (Measurement(f"slope of log {best}", f"undetermined: {told}", how),)
    rows = [
        (f"slope of log {best}", f"{rule.slope}, p = {rule.p_slope_one:.2g} for slope 1"),
        ("noise scale g at the peak", str(rule.optimal_noise_scale)),
        ("scatter of the points over their errors", f"{rule.scatter:.2g}"),
    ]
    if rule.exact_slope is not None:
        rows.insert(1, ("slope of log 1/(1/B_opt - 1/N)", str(rule.exact_slope)))
        rows.insert(2, ("B_opt/x at slope 1", str(rule.constant)))
    return tuple(Measurement(what, value, how) for what, value in rows)


def describe_place(peak: Peak) -> str:
    """Where a peak is with its 95 % interval, or why it is not known."""
    if peak.fitted is None:
        return f"undetermined, best observed {peak.best:g}"
    return str(peak.estimate)
