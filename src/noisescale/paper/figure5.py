"""Figure 5: the best batch size against the learning rate."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from noisescale.paper.batches import CONVENTION, MOMENTUM, N_TRAIN
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.footnote import Footnote, measure_footnote
from noisescale.paper.prediction import compare_prediction, measure_held_out
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Runs, short
from noisescale.paper.scaling import (
    describe,
    effort_of,
    fit_rule,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Context, Findings, Measured, Picture, Section
from noisescale.sweep.rules import ScalingRule
from noisescale.uncertainty import Estimate, mean_of

_RATES = {
    "smoke": (1.0, 3.0),
    "quick": (0.3, 1.0, 3.0),
    "full": (0.1, 0.3, 1.0, 1.8, 3.0, 5.6, 10.0, 18.0),
}


@dataclass(frozen=True)
class Data(Measured):
    """Runs around the best batch size at each learning rate, of the footnote, and held out."""

    runs: Runs
    footnote_runs: Runs
    held_out: Runs

    @cached_property
    def rule(self) -> ScalingRule:
        """The best batch size against the learning rate."""
        return fit_rule(self.runs.frame, "learning_rate")

    @cached_property
    def footnote(self) -> Footnote:
        """The best learning rate against the batch size and the training set."""
        return Footnote.fit(self.at, self.footnote_runs)


def measure(context: Context) -> Data:
    """Search around the best batch size at each learning rate."""
    steps = effort_of(context.at).steps
    return Data(
        at=context.at,
        runs=run_until_interior(
            context,
            [
                setting(learning_rate=rate, steps=round(steps / rate))
                for rate in _RATES[context.scale]
            ],
        ),
        footnote_runs=measure_footnote(context),
        held_out=measure_held_out(context),
    )


def judge(data: Data) -> Findings:
    """C18, C19 and C33."""
    rule, footnote, at = data.rule, data.footnote, data.at
    how = f"{at.seeds} seeds, m = {MOMENTUM:g}, N = {N_TRAIN:,}, "
    how += f"{effort_of(at).steps:,}/ε updates"
    return Findings(
        statement=(
            "If test accuracy depends on the batch size through the noise scale, the best batch "
            "size is proportional to the learning rate. The paper finds that over two decades, "
            "with the same peak accuracy until ε is about 3. The number of updates goes with 1/ε, "
            "so that every run covers the same effective time."
        ),
        judgements=(
            judge_slope(at, "C18", rule, rule.slope),
            _judge_peaks(data),
            footnote.judge(),
        ),
        readings=(footnote.judge_without_cliff(),),
        measurements=(
            *describe(rule, how),
            *footnote.measurements(),
            *compare_prediction(at, rule, data.held_out),
        ),
        remarks=(footnote.remark(),),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The rule, and the footnote's two."""
    picture = draw_rule(
        data.rule,
        name="figure5",
        symbol="ε",
        x_label="learning rate ε",
        labels={rate: f"{rate:g}" for rate in _RATES[data.at.scale]},
    )
    return picture, *data.footnote.draw()


def _judge_peaks(data: Data) -> Judgement:
    """C19: the same peak up to 1, the first lower one between 1 and 10."""
    peaks = {
        point.value: data.runs.final(
            "test_accuracy", learning_rate=point.value, batch_size=point.peak.best
        )
        for point in data.rule.points
    }
    below = {rate: mean_of(peaks[1.0] - values) for rate, values in peaks.items() if rate != 1.0}
    agree = [_agrees(gap) for rate, gap in below.items() if rate < 1]
    lower = [rate for rate, gap in below.items() if gap.above(0, by=3)]
    first = min(lower, default=math.inf)
    return conclude(
        "C19",
        [*agree, 1 < first <= 10],
        decidable=data.at.decidable,
        measured={f"peak at ε = {rate:g}": short(values.mean()) for rate, values in peaks.items()},
        uncertainty={f"below ε = 1 at ε = {rate:g}": str(gap) for rate, gap in below.items()}
        | {"first lower by three errors": first if lower else None},
        convention=CONVENTION,
    )


def _agrees(gap: Estimate) -> bool:
    """Whether the two do not surely differ."""
    return bool(np.isfinite(gap.std)) and gap.above(0, by=2) is None


SECTION = Section("5", "Figure 5: batch size and learning rate", measure, judge, draw)
