"""Footnote 1 of the paper: at fixed batch size there is a best learning rate.

The footnote says it is proportional to the batch size and to the size of the training set. From
g = epsilon (N/B - 1)/(1 - m) it goes with B, but with 1/N. Both are measured here.
"""

from dataclasses import dataclass
from typing import Self

from noisescale.paper.batches import N_TRAIN
from noisescale.paper.claims import Judgement
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Runs
from noisescale.paper.scaling import (
    Setting,
    describe,
    effort_of,
    judge_slope,
    run_until_interior,
    setting,
)
from noisescale.paper.section import Circumstances, Context, Measurement, Picture
from noisescale.sweep.rules import ScalingRule, fit_scaling_rule

# Three figures of 1.4^k: the learning rates to choose from.
RATES = tuple(float(f"{1.4**k:.3g}") for k in range(-16, 13))
_BATCH_SIZES = {"smoke": (14, 28), "quick": (14, 28), "full": (7, 14, 28, 56)}
_TRAINING_SETS = {"smoke": (1_000,), "quick": (1_000, 2_000), "full": (500, 1_000, 2_000, 4_000)}
_FIXED_BATCH = 28


def measure_footnote(context: Context) -> Runs:
    """Runs around the best learning rate, by batch size and by training set."""
    by_size = [_at(context.at, B, N_TRAIN) for B in _BATCH_SIZES[context.scale]]
    by_set = [_at(context.at, _FIXED_BATCH, N) for N in _TRAINING_SETS[context.scale]]
    return run_until_interior(context, [*by_size, *by_set])


@dataclass(frozen=True)
class Footnote:
    """The best learning rate against the batch size, and against the training set."""

    at: Circumstances
    over_size: ScalingRule
    over_set: ScalingRule

    @classmethod
    def fit(cls, at: Circumstances, runs: Runs) -> Self:
        """Both rules, from the runs of :func:`measure_footnote`."""
        frame = runs.frame
        sized = (frame["n_train"] == N_TRAIN) & frame["batch_size"].isin(_BATCH_SIZES[at.scale])
        fixed = frame["batch_size"] == _FIXED_BATCH
        return cls(
            at,
            fit_scaling_rule(frame[sized], "batch_size", optimum="learning_rate"),
            fit_scaling_rule(frame[fixed], "n_train", optimum="learning_rate"),
        )

    def judge(self) -> Judgement:
        """C33: proportional to the batch size."""
        return judge_slope(self.at, "C33", self.over_size, self.over_size.slope)

    def measurements(self) -> tuple[Measurement, ...]:
        """Both rules in numbers."""
        how = f"{self.at.seeds} seeds, {effort_of(self.at).steps:,}/ε updates"
        return (
            *describe(self.over_size, f"best ε against B, N = {N_TRAIN:,}, {how}"),
            *describe(self.over_set, f"best ε against N, B = {_FIXED_BATCH}, {how}"),
        )

    def remark(self) -> str:
        """What the footnote says, and what was measured."""
        slope = self.over_set.slope
        return (
            "Footnote 1 of the paper has the best learning rate proportional to the batch size and "
            "to the size of the training set; its own g has it go with 1/N. Measured slope against "
            f"N at B = {_FIXED_BATCH}: {'not resolved' if slope is None else slope}."
        )

    def draw(self) -> tuple[Picture, ...]:
        """Both rules as pictures."""
        sizes, sets = _BATCH_SIZES[self.at.scale], _TRAINING_SETS[self.at.scale]
        return (
            draw_rule(
                self.over_size,
                name="footnote-batch-size",
                symbol="B",
                x_label="batch size B",
                labels={float(B): str(B) for B in sizes},
            ),
            draw_rule(
                self.over_set,
                name="footnote-training-set",
                symbol="N",
                x_label="training set size N",
                labels={float(N): f"{N:,}" for N in sets},
            ),
        )


def _at(at: Circumstances, batch_size: int, n_train: int) -> Setting:
    steps = effort_of(at).steps
    base = setting(steps=steps, n_train=n_train)
    fields = {**base.fields, "batch_size": batch_size, "steps": f"{steps} / learning_rate"}
    del fields["learning_rate"]
    return Setting(fields, batch_size / base.start, axis="learning_rate", ladder=RATES)
