"""Footnote 1 of the paper: at fixed batch size there is a best learning rate.

The footnote says it is proportional to the batch size and to the size of the training set. From
g = epsilon (N/B - 1)/(1 - m) it goes with B, but with 1/N. Both are measured here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from noisescale.paper.batches import CONVENTION, N_CLASSES, N_TRAIN
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.rule_drawing import draw_rule
from noisescale.paper.runs import Runs, short
from noisescale.paper.scaling import (
    Setting,
    Top,
    describe,
    effort_of,
    fit_rule,
    is_one,
    judge_slope,
    run_until_interior,
    setting,
    slope_of,
)
from noisescale.paper.section import Circumstances, Context, Measurement, Picture
from noisescale.paper.statistics import SLOPES, inside
from noisescale.sweep.peak import find_peak
from noisescale.sweep.rules import RulePoint, ScalingRule
from noisescale.uncertainty import Estimate

# Three figures of 1.4^k: the learning rates to choose from.
RATES = tuple(float(f"{1.4**k:.3g}") for k in range(-16, 13))
_BATCH_SIZES = {"smoke": (14, 28), "quick": (14, 28), "full": (7, 14, 28, 56)}
_TRAINING_SETS = {"smoke": (1_000,), "quick": (1_000, 2_000), "full": (500, 1_000, 2_000, 4_000)}
_FIXED_BATCH = 28
_FEWEST = 4  # batch sizes that the criterion asks for
_STANDS_OUT = 2.0  # standard errors by which a peak must, as everywhere


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
    sized: pd.DataFrame  # the runs behind the first

    @classmethod
    def fit(cls, at: Circumstances, runs: Runs) -> Self:
        """Both rules, from the runs of :func:`measure_footnote`."""
        frame = runs.frame
        sized = (frame["n_train"] == N_TRAIN) & frame["batch_size"].isin(_BATCH_SIZES[at.scale])
        fixed = frame["batch_size"] == _FIXED_BATCH
        return cls(
            at,
            fit_rule(frame[sized], "batch_size", optimum="learning_rate"),
            fit_rule(frame[fixed], "n_train", optimum="learning_rate"),
            frame[sized],
        )

    def judge(self) -> Judgement:
        """C33: proportional to the batch size."""
        slope = self.over_size.slope
        return judge_slope(self.at, "C33", self.over_size, slope, fewest=_FEWEST)

    def judge_without_cliff(self) -> Judgement:
        """R33: the same with the spread of runs that train about as well as the best alone."""
        used = [p.value for p in self.over_size.points if self._stands_out(p)]
        tops = self._tops(used)
        slope, enough = slope_of(tops), len(tops) >= _FEWEST
        whole = slope_of(self._tops([p.value for p in self.over_size.points]))
        first = is_one(slope) if enough else None
        return conclude(
            "R33",
            [inside(slope, *SLOPES) if slope is not None and enough else None],
            decidable=self.at.decides_readings,
            measured={
                "slope": None if slope is None else short(slope.value),
                "batch sizes used": len(tops),
                "1 by the first rule": "undecided" if first is None else first,
                "through every top, resolved or not": str(whole),
            },
            uncertainty={
                "95 % interval": None if slope is None else [short(slope.low), short(slope.high)]
            },
            convention=CONVENTION,
        )

    def _tops(self, batch_sizes: Iterable[float]) -> list[Top]:
        """The best learning rates less the cubic's bias.

        Accuracy falls off a wall where training is loud: at small batches, at large learning rates.
        So the peak is looked for over 1/epsilon, where the wall is on the side that it is for
        batches.
        """
        tops = []
        for B in batch_sizes:
            runs = self.sized[self.sized["batch_size"] == B]
            peak = find_peak(runs.assign(calm=1 / runs["learning_rate"]), over="calm").corrected
            if peak is not None:
                tops.append((B, Estimate(1 / peak.value, peak.std / peak.value**2)))
        return tops

    def _stands_out(self, point: RulePoint) -> bool:
        """Whether the best rate beats both ends, by the spread where errors are below twice its."""
        runs = self.sized[self.sized["batch_size"] == point.value]
        accuracy = runs["test_accuracy"].where(runs["status"] == "done", 1 / N_CLASSES)
        table = runs.assign(accuracy=accuracy).pivot(
            index="seed", columns="learning_rate", values="accuracy"
        )
        values = table.dropna(axis="columns").to_numpy(float)
        errors = 1 - values.mean(axis=0)
        best = int(errors.argmin())
        alike = errors < 2 * errors[best]
        alike[best] = False
        if len(values) < 2 or best in (0, len(errors) - 1) or not alike.any():
            return False
        behind = values[:, [best]] - values  # paired by seed
        spread = np.sqrt(behind[:, alike].var(axis=0, ddof=1).mean() / len(values))
        return bool(behind[:, [0, -1]].mean(axis=0).min() > _STANDS_OUT * spread)

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
