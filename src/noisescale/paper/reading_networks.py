"""Second readings that train networks: longer, by smaller steps, at equal losses, other priors."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from noisescale.evidence.curvature.products import curvature_operator
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.jax_problem import jax_problem
from noisescale.noise.posterior import langevin
from noisescale.paper.appendix_d import find_place, shown_by_network
from noisescale.paper.batches import (
    N_TRAIN,
    PENALTIES,
    SMALL,
    late_steps,
    network_at,
    shared_fields,
    size_of,
)
from noisescale.paper.matched import DOUBLED, Setting, with_noise_scale
from noisescale.paper.minima import LABELS, SIZES, trained
from noisescale.paper.posterior_draws import Draws, score_draws
from noisescale.paper.runs import Array, Runs
from noisescale.paper.section import Context
from noisescale.sweep import make_plan
from noisescale.training import train

# R24: twice the updates.
_LONGER = 2

# R29: effective learning rates of at most 0.01, at N = 1,000.
_G = 0.09
SMALL_STEPS = (
    *(with_noise_scale(_G, B, N_TRAIN, m) for B in (30, 100) for m in (0.0, 0.9)),
    *(with_noise_scale(2 * _G, 30, N_TRAIN, m, DOUBLED) for m in (0.0, 0.9)),
)
_RELAXATIONS = {"smoke": 0.01, "quick": 2.0, "full": 30.0}

# R37: where on its way a network is looked at.
_LOOKS = {
    "smoke": (20, 60),
    "quick": (30, 100, 300),
    "full": (30, 60, 100, 160, 250, 400, 630, 1_000, 1_600, 2_500),
}

# R38: one precision for all, or each layer's fan-in.
PRIORS = {"30": 30.0, "100": 100.0, "300": 300.0, "fan-in": None}
_DESCENT = {"smoke": 20, "quick": 300, "full": 1_500}
_DRAWS: dict[str, dict[str, Any]] = {
    "smoke": {"burn_in": 4, "n_samples": 4, "thin": 1},
    "quick": {"burn_in": 100, "n_samples": 10, "thin": 10},
    "full": {"burn_in": 1_000, "n_samples": 20, "thin": 100},
}


def measure_longer(context: Context) -> Runs:
    """Figure 8 with twice the updates, under both readings of the penalty."""
    size = size_of(context.at)
    longer = replace(size, steps=_LONGER * size.steps)
    return context.runs(
        make_plan(
            shared_fields(context) | {"steps": longer.steps, "evaluate_at": late_steps(longer)},
            grid={"batch_size": (SMALL, size.large), "prior_precision": PENALTIES.values()},
            seeds=context.seeds,
        )
    )


def small_steps(context: Context, seed: int) -> dict[Setting, Array]:
    """The noise scale that fluctuations show at small steps, by setting, in blocks of time."""
    place = find_place(context, seed)
    length = _RELAXATIONS[context.scale]
    shown = {}
    for setting in SMALL_STEPS[:: 4 if context.scale == "smoke" else 1]:
        context.progress.line(f"small steps: {setting}, seed {seed}")
        shown[setting] = shown_by_network(context, setting, place, seed, length)
    return shown


@dataclass(frozen=True)
class Trajectory:
    """Training loss per example and top curvature of the summed nll, on the way to a minimum."""

    steps: Array
    nll: Array
    top: Array


def trajectory(context: Context, seed: int, batch_size: int, labels: str) -> Trajectory:
    """A network trained so far and so far again: batches are the same, so it is one path."""
    context.progress.line(f"curvature on the way: {labels} labels, B = {batch_size}, seed {seed}")
    rows = []
    for steps in _LOOKS[context.scale]:
        size = replace(SIZES[context.scale], steps=steps)
        network, params, pair, final = trained(context, size, seed, batch_size, labels, 0.0)
        if final is None:
            continue
        model = jax_problem(network, params, pair, "categorical").model
        top = leading(curvature_operator(model, "hessian", precision="float32"), 1)[0][0]
        rows.append((steps, final.train_cross_entropy, float(top)))
    return Trajectory(*np.array(rows, float).T)


def measure_trajectories(context: Context) -> dict[tuple[str, int], list[Trajectory]]:
    """By labels and batch size, one a seed."""
    large = SIZES[context.scale].n_train
    return {
        (labels, B): [
            context.kept(trajectory, seed=seed, batch_size=B, labels=labels)
            for seed in range(context.seeds)
        ]
        for labels in LABELS
        for B in (SMALL, large)
    }


def draws_under(context: Context, prior: str, seed: int) -> Draws:
    """Samples of the network's posterior beside its minimum, under a stronger prior.

    A precision a layer is had by scaling: w = u/sqrt(fan-in) with precision 1 on u.
    """
    context.progress.line(f"posterior samples under the prior {prior}, seed {seed}")
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
        **_DRAWS[context.scale],
    )
    return score_draws(scaled, minimum, samples, subset, "categorical", precision or 1.0)
