"""Figure 7: the best batch size against the momentum."""

from dataclasses import dataclass
from functools import cached_property

from noisescale.paper.batches import LEARNING_RATE, N_TRAIN
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Runs
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

_MOMENTA = {
    "smoke": (0.8, 0.9),
    "quick": (0.5, 0.8, 0.9, 0.95),
    "full": (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
}


@dataclass(frozen=True)
class Data(Measured):
    """Runs around the best batch size at each momentum."""

    runs: Runs

    @cached_property
    def rule(self) -> ScalingRule:
        """The best batch size against the momentum."""
        return fit_rule(self.runs.frame, "momentum")


def measure(context: Context) -> Data:
    """Search around the best batch size at each momentum."""
    steps = effort_of(context.at).steps
    settings = [setting(momentum=m, steps=steps) for m in _MOMENTA[context.scale]]
    return Data(context.at, run_until_interior(context, settings))


def judge(data: Data) -> Findings:
    """C22."""
    how = f"{data.at.seeds} seeds, ε = {LEARNING_RATE:g}, N = {N_TRAIN:,}, "
    how += f"{effort_of(data.at).steps:,} updates"
    return Findings(
        statement=(
            "Momentum amplifies the noise by 1/(1 - m), so the best batch size should be "
            "proportional to that. All runs have the same number of updates, as in the paper: the "
            "effective time goes with 1/(1 - m) too, so small momenta train less."
        ),
        judgements=(judge_slope(data.at, "C22", data.rule, data.rule.slope),),
        measurements=describe(data.rule, how),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The rule."""
    picture = draw_rule(
        data.rule,
        name="figure7",
        symbol="m",
        x_label="1/(1 - m)",
        labels={m: f"{m:g}" for m in _MOMENTA[data.at.scale]},
    )
    return (picture,)


SECTION = Section("7", "Figure 7: batch size and momentum", measure, judge, draw)
