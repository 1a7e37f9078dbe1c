"""The runs of section 4 and appendix B: the paper's network on 1,000 images, by batch size.

Figures 3, 4 and 8 draw on the same runs, so each plan is made here, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noisescale.paper.section import Circumstances, Context, ScaleName
from noisescale.sweep import RunConfig, make_plan
from noisescale.training import DenseNetwork, paper_network

N_TRAIN = 1_000
LEARNING_RATE = 1.0  # in the paper's unit: the cost averaged over the classes too
MOMENTUM = 0.9
PRIOR_PRECISION = 0.1
N_CLASSES = 10
CONVENTION = "cost divided by the number of classes"


@dataclass(frozen=True)
class Size:
    """How much of the paper's work a scale does."""

    steps: int
    batch_sizes: tuple[int, ...]
    large: int  # the large batch of figures 3 and 8
    n_evaluations: int
    n_test: int | None = None


SMALL = 30  # the small batch of figures 3 and 8
SIZES: dict[ScaleName, Size] = {
    "smoke": Size(200, (3, 30, 300), 300, 6, n_test=1_000),
    "quick": Size(1_200, (1, 3, 5, 10, 15, 20, 30, 60, 100, 300), 300, 15),
    "full": Size(
        10_000,
        (1, 2, 3, 5, 7, 10, 12, 15, 20, 25, 30, 45, 70, 100, 150, 200, 300, 500, 1_000),
        1_000,
        30,
    ),
}
# The L2 penalty's share in the cost: divided by the number of classes like the cross-entropy (a
# change of unit, nothing else), or left whole, which is ten times as strong.
PENALTIES = {
    "penalty divided too": PRIOR_PRECISION,
    "penalty undivided": N_CLASSES * PRIOR_PRECISION,
}


def network_at(scale: ScaleName) -> DenseNetwork:
    """The paper's network; at smoke scale a small one, where only the path to it is tried."""
    return DenseNetwork((784, 20, N_CLASSES)) if scale == "smoke" else paper_network()


def size_of(at: Circumstances) -> Size:
    """The sizes for the scale of a measurement."""
    return SIZES[at.scale]


def shared_fields(context: Context) -> dict[str, Any]:
    """What all runs of figures 3, 4 and 8 have in common."""
    size = size_of(context.at)
    return {
        "data": context.data.name,
        "n_train": N_TRAIN,
        "n_test": size.n_test,
        "learning_rate": LEARNING_RATE,
        "momentum": MOMENTUM,
        "cost_convention": "per_class",
        "steps": size.steps,
    }


def plain_plan(
    context: Context,
    batch_sizes: Sequence[int] | None = None,
    cost_convention: str = "per_class",
) -> list[RunConfig]:
    """Batch sizes (all of the scale's unless given) without L2: figures 3 and 4, and the units."""
    size = size_of(context.at)
    return make_plan(
        shared_fields(context)
        | {"n_evaluations": size.n_evaluations, "cost_convention": cost_convention},
        grid={"batch_size": batch_sizes or size.batch_sizes},
        seeds=context.seeds,
    )


def regularised_plan(context: Context) -> list[RunConfig]:
    """The small and the large batch with L2, under both readings of the penalty: figure 8."""
    return make_plan(
        shared_fields(context) | {"evaluate_at": late_steps(size_of(context.at))},
        grid={
            "batch_size": (SMALL, size_of(context.at).large),
            "prior_precision": PENALTIES.values(),
        },
        seeds=context.seeds,
    )


def linear_plan(context: Context) -> list[RunConfig]:
    """Softmax regression at the small and the large batch: C34."""
    return make_plan(
        shared_fields(context) | {"hidden_widths": (), "evaluate_at": "final"},
        grid={"batch_size": (SMALL, size_of(context.at).large)},
        seeds=context.seeds,
    )


def late_steps(size: Size) -> tuple[int, ...]:
    """Log-spaced steps, and a regular comb over the last fifth to see fluctuations by."""
    ratio = size.steps ** (1 / (size.n_evaluations - 1))
    spaced = {round(ratio**k) for k in range(size.n_evaluations)}
    comb = {size.steps - k * size.steps // 100 for k in range(21)}
    return tuple(sorted({0, size.steps} | spaced | comb))
