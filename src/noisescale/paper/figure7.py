"""Figure 7: the best batch size against the momentum."""

from noisescale.paper.batches import LEARNING_RATE, N_TRAIN
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.scaling import (
    describe,
    effort_of,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Context, Outcome, Section
from noisescale.sweep.rules import fit_scaling_rule

_MOMENTA = {
    "smoke": (0.8, 0.9),
    "quick": (0.5, 0.8, 0.9, 0.95),
    "full": (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
}


def measure(context: Context) -> Outcome:
    """Find the best batch size at each momentum; judge C22."""
    momenta, effort = _MOMENTA[context.scale], effort_of(context)
    runs = run_until_interior(context, [setting(momentum=m, steps=effort.steps) for m in momenta])
    rule = fit_scaling_rule(runs.frame, "momentum")
    how = f"{context.seeds} seeds, ε = {LEARNING_RATE:g}, N = {N_TRAIN:,}, {effort.steps:,} updates"
    return Outcome(
        statement=(
            "Momentum amplifies the noise by 1/(1 - m), so the best batch size should be "
            "proportional to that. All runs have the same number of updates, as in the paper: the "
            "effective time goes with 1/(1 - m) too, so small momenta train less."
        ),
        pictures=(
            draw_rule(
                rule,
                name="figure7",
                symbol="m",
                x_label="1/(1 - m)",
                labels={m: f"{m:g}" for m in momenta},
            ),
        ),
        measurements=describe(rule, how),
        judgements=(judge_slope(context, "C22", rule, rule.slope),),
    )


SECTION = Section(
    id="7", title="Figure 7: batch size and momentum", measure=measure, from_runs=True
)
