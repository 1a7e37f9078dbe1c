"""Reading R24: figure 8 with twice the updates. Does the test cross-entropy rise late, with L2?"""

from dataclasses import dataclass, replace

from noisescale.paper.batches import PENALTIES, SMALL, late_steps, shared_fields, size_of
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.figure8 import draw_penalty, final_over_lowest
from noisescale.paper.runs import Runs, short
from noisescale.paper.section import Context, Findings, Measured, Picture, Section
from noisescale.paper.statistics import inside
from noisescale.sweep import make_plan
from noisescale.uncertainty import mean_of

_LONGER = 2
_MOST = 1.05  # that the final cross-entropy may be of its lowest


@dataclass(frozen=True)
class Data(Measured):
    """The small and the large batch with L2, under both conventions of the penalty."""

    runs: Runs


def measure(context: Context) -> Data:
    """Figure 8 with twice the updates, under both conventions of the penalty."""
    size = size_of(context.at)
    longer = replace(size, steps=_LONGER * size.steps)
    runs = context.runs(
        make_plan(
            shared_fields(context) | {"steps": longer.steps, "evaluate_at": late_steps(longer)},
            grid={"batch_size": (SMALL, size.large), "prior_precision": PENALTIES.values()},
            seeds=context.seeds,
        )
    )
    return Data(context.at, runs)


def judge(data: Data) -> Findings:
    """R24 under each convention of the penalty."""
    return Findings(
        statement=(
            "With L2 the test cross-entropy of figure 8 is said not to degrade late in training. "
            f"After {size_of(data.at).steps:,} updates it was a standard error from the bound; "
            "here are twice as many, with the penalty divided by the number of classes like the "
            "rest of the cost, and undivided."
        ),
        readings=tuple(_judge(data, name) for name in PENALTIES),
    )


def _judge(data: Data, penalty: str) -> Judgement:
    runs = data.runs.where(prior_precision=PENALTIES[penalty])
    rises = {
        B: mean_of(final_over_lowest(runs.curve("test_cross_entropy", batch_size=B)[1]))
        for B in (SMALL, size_of(data.at).large)
    }
    return conclude(
        "R24",
        [inside(rise, high=_MOST) for rise in rises.values()],
        decidable=data.at.decides_readings,
        measured={f"final over lowest, B = {B}": short(rise.value) for B, rise in rises.items()},
        uncertainty={f"95 % interval, B = {B}": str(rise.interval()) for B, rise in rises.items()},
        convention=penalty,
        primary=penalty == next(iter(PENALTIES)),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The curves, one picture for each convention."""
    return tuple(
        replace(
            draw_penalty(data.at, data.runs.where(prior_precision=value), None, name),
            name=f"reading-R24-{k}",
        )
        for k, (name, value) in enumerate(PENALTIES.items(), start=1)
    )


SECTION = Section(
    "R24", "Reading R24: figure 8 for twice as long", measure, judge, draw, reading=True
)
