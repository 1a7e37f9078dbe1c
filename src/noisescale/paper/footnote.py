"""Footnote 1 of the paper: at fixed batch size there is a best learning rate.

The footnote says it is proportional to the batch size and to the size of the training set. From
g = epsilon (N/B - 1)/(1 - m) it goes with B, but with 1/N. Both are measured here.
"""

from dataclasses import dataclass

from noisescale.paper.batches import N_TRAIN
from noisescale.paper.claims import Judgement
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.scaling import (
    Setting,
    describe,
    effort_of,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Context, Measurement, Picture
from noisescale.sweep.rules import ScalingRule, fit_scaling_rule

# Three figures of 1.4^k: the learning rates to choose from.
RATES = tuple(float(f"{1.4**k:.3g}") for k in range(-16, 13))
_BATCH_SIZES = {"smoke": (14, 28), "quick": (14, 28), "full": (7, 14, 28, 56)}
_TRAINING_SETS = {"smoke": (1_000,), "quick": (1_000, 2_000), "full": (500, 1_000, 2_000, 4_000)}
_FIXED_BATCH = 28


@dataclass(frozen=True)
class Footnote:
    """What was found: pictures, numbers, and the verdict on C33."""

    pictures: tuple[Picture, ...]
    measurements: tuple[Measurement, ...]
    judgement: Judgement
    remark: str


def measure_footnote(context: Context) -> Footnote:
    """The best learning rate against the batch size, and against the training set."""
    sizes, sets = _BATCH_SIZES[context.scale], _TRAINING_SETS[context.scale]
    by_size = [_at(context, B, N_TRAIN) for B in sizes]
    by_set = [_at(context, _FIXED_BATCH, N) for N in sets]
    frame = run_until_interior(context, [*by_size, *by_set]).frame
    over_size = fit_scaling_rule(
        frame[(frame["n_train"] == N_TRAIN) & frame["batch_size"].isin(sizes)],
        "batch_size",
        optimum="learning_rate",
    )
    over_set = fit_scaling_rule(
        frame[frame["batch_size"] == _FIXED_BATCH], "n_train", optimum="learning_rate"
    )
    how = f"{context.seeds} seeds, {effort_of(context).steps:,}/ε updates"
    return Footnote(
        pictures=(
            draw_rule(
                over_size,
                name="footnote-batch-size",
                symbol="B",
                x_label="batch size B",
                labels={float(B): str(B) for B in sizes},
            ),
            draw_rule(
                over_set,
                name="footnote-training-set",
                symbol="N",
                x_label="training set size N",
                labels={float(N): f"{N:,}" for N in sets},
            ),
        ),
        measurements=(
            *describe(over_size, f"best ε against B, N = {N_TRAIN:,}, {how}"),
            *describe(over_set, f"best ε against N, B = {_FIXED_BATCH}, {how}"),
        ),
        judgement=judge_slope(context, "C33", over_size, over_size.slope),
        remark=_say(over_set),
    )


def _at(context: Context, batch_size: int, n_train: int) -> Setting:
    steps = effort_of(context).steps
    base = setting(steps=steps, n_train=n_train)
    fields = {**base.fields, "batch_size": batch_size, "steps": f"{steps} / learning_rate"}
    del fields["learning_rate"]
    return Setting(fields, batch_size / base.start, axis="learning_rate", ladder=RATES)


def _say(over_set: ScalingRule) -> str:
    found = "not resolved" if over_set.slope is None else str(over_set.slope)
    return (
        "Footnote 1 of the paper has the best learning rate proportional to the batch size and to "
        f"the size of the training set; its own g has it go with 1/N. Measured slope against N at "
        f"B = {_FIXED_BATCH}: {found}."
    )
