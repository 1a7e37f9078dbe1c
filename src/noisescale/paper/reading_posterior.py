"""Reading R38: does a posterior sample beat the cost's minimum under priors that matter?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from noisescale.noise.posterior import langevin
from noisescale.paper.batches import N_TRAIN, network_at
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.posterior_draws import Draws, describe_draws, fraction_better, score_draws
from noisescale.paper.runs import short
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.statistics import above
from noisescale.training import train
from noisescale.uncertainty import Estimate

# One precision for all, or each layer's fan-in.
PRIORS = {"30": 30.0, "100": 100.0, "300": 300.0, "fan-in": None}
_CONVERGED = 1.05  # R-hat
_DESCENT = {"smoke": 20, "quick": 300, "full": 1_500}
_DRAWS: dict[str, dict[str, Any]] = {
    "smoke": {"burn_in": 4, "n_samples": 4, "thin": 1},
    "quick": {"burn_in": 100, "n_samples": 10, "thin": 10},
    "full": {"burn_in": 1_000, "n_samples": 20, "thin": 100},
}
# How many times as long a chain is made until it has converged.
_LONGER = {"smoke": (1,), "quick": (1,), "full": (1, 2, 4)}


@dataclass(frozen=True)
class Data(Measured):
    """Posterior samples beside the cost's minimum, by prior and seed."""

    draws: dict[str, list[Draws]]


def measure(context: Context) -> Data:
    """The paper's network under each prior."""
    return Data(
        context.at,
        {
            prior: [_converged(context, prior, seed) for seed in range(context.seeds)]
            for prior in PRIORS
        },
    )


def _converged(context: Context, prior: str, seed: int) -> Draws:
    """A chain that is made anew, longer, where it has not converged.

    Of 20 independent draws R-hat exceeds 1.05 in one case of six, of 80 in one of forty.
    """
    for longer in _LONGER[context.scale]:
        draws = context.kept(draws_under, prior=prior, seed=seed, longer=longer)
        if draws.r_hat <= _CONVERGED:
            break
    return draws


def draws_under(context: Context, prior: str, seed: int, longer: int) -> Draws:
    """Samples of the network's posterior beside its minimum, under a stronger prior.

    A precision a layer is had by scaling: w = u/sqrt(fan-in) with precision 1 on u.
    """
    context.progress.line(f"posterior samples under the prior {prior}, seed {seed}")
    chain = _DRAWS[context.scale]
    n_train = 100 if context.scale == "smoke" else N_TRAIN
    subset = context.data.subset(n_train=n_train, seed=seed)
    network = network_at(context.scale)
    precision = PRIORS[prior]
    scales = [1.0 if precision else width**-0.5 for width in network.widths[:-1]]

    def scaled(u: Any, x: Any) -> Any:
        layers = [
            jax.tree.map(lambda leaf, c=scale: c * leaf, layer)
            for layer, scale in zip(u, scales, strict=True)
        ]
        return network(tuple(layers), x)

    start = tuple(
        jax.tree.map(lambda leaf, c=scale: leaf / c, layer)
        for layer, scale in zip(network.init(seed), scales, strict=True)
    )
    pair = (subset.x_train, subset.y_train)
    minimum = train(
        scaled,
        start,
        pair,
        learning_rate=0.1,
        momentum=0.9,
        batch_size=n_train,
        steps=_DESCENT[context.scale],
        prior_precision=precision or 1.0,
        seed=seed,
        evaluate_at="final",
    ).params
    samples = langevin(
        scaled,
        minimum,
        pair,
        prior_precision=precision or 1.0,
        momentum=0.97,
        n_chains=1,
        seed=seed,
        **chain | {"n_samples": longer * chain["n_samples"]},
    )
    return score_draws(scaled, minimum, samples, subset, "categorical", precision or 1.0)


def judge(data: Data) -> Findings:
    """R38 under each prior."""
    return Findings(
        statement=(
            "No posterior sample beat the cost's minimum under the weak prior of appendix A: in "
            "the directions that the data leave free a sample carries the prior's whole width. "
            "Here are stronger priors, and one whose precision in each layer is its fan-in."
        ),
        readings=tuple(_judge(data, prior) for prior in PRIORS),
        measurements=tuple(_measurements(data)),
    )


def _judge(data: Data, prior: str) -> Judgement:
    draws = data.draws[prior]
    value, low, high = fraction_better(draws)
    fraction = Estimate(value, low=low, high=high)
    worst = float(np.max([one.r_hat for one in draws]))  # NaN if one is
    return conclude(
        "R38",
        # Chains that have not converged say nothing.
        [above(fraction, 0.5, by=2) if worst <= _CONVERGED else None],
        decidable=data.at.decides_readings,
        measured={"fraction of samples with lower test error": short(fraction.value)},
        uncertainty={
            "95 % interval": [short(fraction.low), short(fraction.high)],
            "worst R-hat": short(worst),
        },
        convention=f"prior {prior}",
        primary=prior == next(iter(PRIORS)),
    )


def _measurements(data: Data) -> Iterator[Measurement]:
    yield from describe_draws({f"prior {prior}": draws for prior, draws in data.draws.items()})


def draw(data: Data) -> tuple[Picture, ...]:
    """Nothing: the numbers are few."""
    return ()


SECTION = Section(
    "R38",
    "Reading R38: posterior samples under stronger priors",
    measure,
    judge,
    draw,
    reading=True,
)
