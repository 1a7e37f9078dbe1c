"""Appendix A: posterior sampling, the evidence of a minimum, and a single posterior sample."""

from dataclasses import dataclass

from noisescale.paper.posterior_draws import (
    Draws,
    describe_draws,
    judge_draws,
    measure_draws,
)
from noisescale.paper.section import Context, Findings, Measured, Picture, Section
from noisescale.paper.visits import (
    Visits,
    describe_visits,
    draw_visits,
    judge_visits,
    measure_visits,
)


@dataclass(frozen=True)
class Data(Measured):
    """Visits to minima, and posterior samples beside the cost's minimum, by model and seed."""

    visits: Visits
    draws: dict[str, list[Draws]]


def measure(context: Context) -> Data:
    """Langevin dynamics on two parameters with three minima, and on MNIST."""
    return Data(context.at, context.kept(measure_visits), measure_draws(context))


def judge(data: Data) -> Findings:
    """C30 and C38."""
    return Findings(
        statement=(
            "Langevin dynamics at T = 1 samples the posterior, so it spends its time in a minimum "
            "in proportion to that minimum's evidence: the integral of exp(-C) over its bowl of "
            "attraction. This is tested on a model with two parameters and three minima, where "
            "quadrature knows the evidences. The appendix concludes that a single posterior "
            "sample often has lower test error than the cost's minimum; this is tested on MNIST."
        ),
        judgements=(judge_visits(data.visits), *judge_draws(data.at, data.draws)),
        measurements=(*describe_visits(data.visits), *describe_draws(data.draws)),
        remarks=(
            "SGD's noise is far from isotropic: where readings disagree and are precise it is "
            "loud, so SGD leaves the sharp minimum at a noise scale at which it never leaves the "
            "broad one.",
            "In a model with more parameters than examples a single sample carries the whole width "
            "of the prior in the directions that the data leave free; averaging over samples takes "
            "most of that out again.",
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The landscape with its visits."""
    return (draw_visits(data.visits),)


SECTION = Section(
    "A", "Appendix A: Langevin dynamics and the evidence of a minimum", measure, judge, draw
)
