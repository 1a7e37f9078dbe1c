"""Appendix E again, in the paper's unit of the learning rate and with a margin: reading R31.

The paper's network trains where it says if costs are averaged over the ten classes as well as over
examples; the learning rate of 0.1 that its heuristic begins with is then 0.01 in the usual unit.
"No loss" is a loss of less than 0.002 of accuracy: for the tuner on validation images, and at the
end on test images, by twelve fresh seeds paired between the first recipe and the last.
"""

from dataclasses import dataclass, replace

from noisescale.paper.appendix_e import MARGIN, SIZES, Tuned, draw_trail, tune_and_test
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.runs import short
from noisescale.paper.section import (
    Circumstances,
    Context,
    Findings,
    Measured,
    Measurement,
    Picture,
    Section,
)
from noisescale.uncertainty import Estimate

_LEARNING_RATE = 0.1 / 10  # the paper's, of a cost averaged over ten classes
_FACTOR = 9  # by which the batch is to grow
_FRESH = {"smoke": 2, "quick": 3, "full": 12}


@dataclass(frozen=True)
class Data(Measured):
    """One tuning, on MNIST."""

    tuned: Tuned


def measure(context: Context) -> Data:
    """The heuristic of appendix E on MNIST from the paper's own learning rate."""
    size = replace(SIZES[context.scale], n_fresh=_FRESH[context.scale], fashion=False)
    tuned = tune_and_test(context, context.data, size, learning_rate=_LEARNING_RATE)
    return Data(context.at, tuned)


def judge(data: Data) -> Findings:
    """R31."""
    return Findings(
        statement=(
            "Appendix E begins at a learning rate of 0.1. If the paper's costs are averaged over "
            "the ten classes as well, as its network suggests, that is 0.01 of the usual unit. The "
            f"heuristic is followed from there, a loss of less than {MARGIN:g} of accuracy "
            "counting as none."
        ),
        readings=(judge_tuning(data.at, data.tuned),),
        measurements=tuple(tuning_measurements(data.tuned)),
        remarks=tuple(f"{note}." for note in data.tuned.result.notes),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The trail of the tuning."""
    return (replace(draw_trail(data.tuned), name="reading-R31"),)


def judge_tuning(at: Circumstances, tuned: Tuned) -> Judgement:
    """R31: nine times the batch, and no more than the margin lost on test images."""
    first, last = tuned.result.start, tuned.result.recipe
    difference = tuned.difference.interval()
    return conclude(
        "R31",
        [last.batch_size >= _FACTOR * first.batch_size, within_margin(difference)],
        decidable=at.scale == "full" and at.complete and len(tuned.before) >= _FRESH["full"],
        measured={
            "batch size, before": first.batch_size,
            "after": last.batch_size,
            "test accuracy, after minus before": short(difference.value),
        }
        | _larger(tuned),
        uncertainty={
            "95 % interval": [short(difference.low), short(difference.high)],
            "fresh seeds": difference.n,
        },
    )


def _larger(tuned: Tuned) -> dict[str, str]:
    """The smallest batch that is large enough, where it was tried and not taken."""
    wanted = _FACTOR * tuned.result.start.batch_size
    tried = [
        one
        for one in tuned.result.trail
        if one.stage == 2 and one.recipe.batch_size >= wanted and not one.accepted
    ]
    if not tried or tuned.result.recipe.batch_size >= wanted:
        return {}
    first = min(tried, key=lambda one: one.recipe.batch_size)
    return {f"B = {first.recipe.batch_size} on validation images": first.why}


def within_margin(difference: Estimate) -> bool | None:
    """Whether the loss is less than the margin: by the whole 95 % interval, or not decided."""
    if difference.low >= -MARGIN:
        return True
    return False if difference.high < -MARGIN else None


def tuning_measurements(tuned: Tuned) -> list[Measurement]:
    """What the report prints of it."""
    result = tuned.result
    runs = f"{result.n_runs} runs, {result.n_updates:,} updates, {result.seconds:.0f} s of training"
    return [
        Measurement(
            "in the paper's unit: first and last batch size",
            f"{result.start.batch_size} and {result.recipe.batch_size}",
            f"{result.updates_before:,} and {result.updates_after:,} updates; tuning took {runs}",
        ),
        Measurement(
            "in the paper's unit: test accuracy, last minus first",
            str(tuned.difference.interval()),
            f"{len(tuned.before)} fresh seeds, paired; the margin is {MARGIN:g}",
        ),
        Measurement("in the paper's unit: conclusion", result.conclusion, "on validation images"),
    ]


# Version 2 as in appendix E, whose tuner this is.
SECTION = Section(
    "R31",
    "Reading R31: appendix E in the paper's unit",
    measure,
    judge,
    draw,
    reading=True,
    version=2,
)
