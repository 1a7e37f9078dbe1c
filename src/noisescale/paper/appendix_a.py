"""Appendix A: posterior sampling, the evidence of a minimum, and a single posterior sample."""

from noisescale.paper.posterior_draws import judge_draws, measure_draws
from noisescale.paper.posterior_draws import measurements as of_draws
from noisescale.paper.section import Context, Outcome, Section
from noisescale.paper.visits import draw_visits, judge_visits, measure_visits
from noisescale.paper.visits import measurements as of_visits


def measure(context: Context) -> Outcome:
    """Measure visits to minima and posterior samples; judge C30 and C38."""
    visits = measure_visits(context)
    draws = measure_draws(context)
    return Outcome(
        statement=(
            "Langevin dynamics at T = 1 samples the posterior, so it spends its time in a minimum "
            "in proportion to that minimum's evidence: the integral of exp(-C) over its bowl of "
            "attraction. This is tested on a model with two parameters and three minima, where "
            "quadrature knows the evidences. The appendix concludes that a single posterior "
            "sample often has lower test error than the cost's minimum; this is tested on MNIST."
        ),
        pictures=(draw_visits(visits),),
        measurements=(*of_visits(visits), *of_draws(draws)),
        judgements=(judge_visits(context, visits), *judge_draws(context, draws)),
        remarks=(
            "SGD's noise is far from isotropic: where readings disagree and are precise it is "
            "loud, so SGD leaves the sharp minimum at a noise scale at which it never leaves the "
            "broad one.",
            "In a model with more parameters than examples a single sample carries the whole width "
            "of the prior in the directions that the data leave free; averaging over samples takes "
            "most of that out again.",
        ),
    )


SECTION = Section(
    id="A", title="Appendix A: Langevin dynamics and the evidence of a minimum", measure=measure
)
