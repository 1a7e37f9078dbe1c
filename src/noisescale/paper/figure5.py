"""Figure 5: the best batch size against the learning rate."""

import numpy as np

from noisescale.paper.batches import MOMENTUM, N_TRAIN
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.footnote import measure_footnote
from noisescale.paper.prediction import check_prediction
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Estimate, Runs, estimate, short
from noisescale.paper.scaling import (
    CONVENTION,
    describe,
    effort_of,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Context, Outcome, Section
from noisescale.sweep.rules import ScalingRule, fit_scaling_rule

_RATES = {
    "smoke": (1.0, 3.0),
    "quick": (0.3, 1.0, 3.0),
    "full": (0.1, 0.3, 1.0, 1.8, 3.0, 5.6, 10.0, 18.0),
}


def measure(context: Context) -> Outcome:
    """Find the best batch size at each learning rate; judge C18, C19 and C33."""
    rates, effort = _RATES[context.scale], effort_of(context)
    runs = run_until_interior(
        context,
        [setting(learning_rate=r, steps=round(effort.steps / r)) for r in rates],
    )
    rule = fit_scaling_rule(runs.frame, "learning_rate")
    footnote = measure_footnote(context)
    how = f"{context.seeds} seeds, m = {MOMENTUM:g}, N = {N_TRAIN:,}, {effort.steps:,}/ε updates"
    return Outcome(
        statement=(
            "If test accuracy depends on the batch size through the noise scale, the best batch "
            "size is proportional to the learning rate. The paper finds that over two decades, "
            "with the same peak accuracy until ε is about 3. The number of updates goes with 1/ε, "
            "so that every run covers the same effective time."
        ),
        pictures=(
            draw_rule(
                rule,
                name="figure5",
                symbol="ε",
                x_label="learning rate ε",
                labels={rate: f"{rate:g}" for rate in rates},
            ),
            *footnote.pictures,
        ),
        measurements=(
            *describe(rule, how),
            *footnote.measurements,
            *check_prediction(context, rule),
        ),
        judgements=(
            judge_slope(context, "C18", rule, rule.slope),
            _judge_peaks(context, runs, rule),
            footnote.judgement,
        ),
        remarks=(footnote.remark,),
    )


def _judge_peaks(context: Context, runs: Runs, rule: ScalingRule) -> Judgement:
    """C19: the same peak up to 1, the first lower one between 1 and 10."""
    peaks = {
        point.value: runs.final(
            "test_accuracy", learning_rate=point.value, batch_size=point.peak.best
        )
        for point in rule.points
    }
    below = {rate: estimate(peaks[1.0] - values) for rate, values in peaks.items() if rate != 1.0}
    agree = [_agrees(gap) for rate, gap in below.items() if rate < 1]
    lower = [rate for rate, gap in below.items() if gap.above(0, by=3)]
    falls = bool(lower) and 1 < min(lower) <= 10
    return conclude(
        "C19",
        [*agree, falls],
        decidable=context.decidable,
        measured={f"peak at ε = {rate:g}": short(values.mean()) for rate, values in peaks.items()},
        uncertainty={f"below ε = 1 at ε = {rate:g}": str(gap) for rate, gap in below.items()}
        | {"first lower by three errors": min(lower, default=None)},
        convention=CONVENTION,
    )


def _agrees(gap: Estimate) -> bool:
    return bool(np.isfinite(gap.error) and abs(gap.mean) <= 2 * gap.error)


SECTION = Section(
    id="5", title="Figure 5: batch size and learning rate", measure=measure, from_runs=True
)
