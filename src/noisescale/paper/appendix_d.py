"""Appendix D: do SGD's fluctuations depend on (epsilon, N, B, m) through the noise scale alone?"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.signal

from noisescale.evidence.curvature.model import Model
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.jax_problem import jax_problem
from noisescale.likelihood import LIKELIHOODS
from noisescale.noise.gradients import gradient_noise
from noisescale.noise.langevin import corrected_sgld, run_chains
from noisescale.noise.spectrum import covariance_operator
from noisescale.paper.batches import N_TRAIN, network_at
from noisescale.paper.claims import conclude
from noisescale.paper.matched import (
    COARSE,
    DOUBLED,
    Setting,
    agree,
    differ,
    with_noise_scale,
)
from noisescale.paper.matched_drawing import draw_both
from noisescale.paper.runs import Array, short
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.seeds import random_stream
from noisescale.training import BatchStream, train
from noisescale.uncertainty import Estimate, mean_of

_CURVATURE = 1.0  # of the quadratic
_COORDINATES = 32  # independent copies of it, sharing their batches
_QUADRATIC_STEPS = {"smoke": 2_000, "quick": 20_000, "full": 100_000}
_QUADRATIC = (
    *(
        with_noise_scale(1.0, B, N, m)
        for B, N, m in (
            (10, 1_000, 0.0),
            (19, 1_000, 0.0),
            (5, 1_000, 0.5),
            (40, 1_000, 0.5),
            (100, 1_000, 0.9),
            (200, 1_000, 0.9),
            (3, 300, 0.0),
            (60, 3_000, 0.5),
        )
    ),
    *(
        with_noise_scale(2.0, B, N, m, DOUBLED)
        for B, N, m in ((5, 1_000, 0.0), (100, 1_000, 0.9), (30, 3_000, 0.5))
    ),
    Setting(0.5, 30, 1_000, 0.0, COARSE),
    Setting(1.5, 30, 1_000, 0.0, COARSE),
    Setting(1.5, 100, 1_000, 0.5, COARSE),
    Setting(1.0, 300, 1_000, 0.9, COARSE),
)

# A strong prior, so that there is a stationary state to fluctuate about.
_PRIOR_PRECISION = 10.0
_NETWORK_G = 0.03
_NETWORK = (
    *(
        with_noise_scale(_NETWORK_G, B, N_TRAIN, m)
        for B, m in ((100, 0.0), (100, 0.5), (200, 0.5), (300, 0.9), (500, 0.9))
    ),
    *(
        with_noise_scale(2 * _NETWORK_G, B, N_TRAIN, m, DOUBLED)
        for B, m in ((200, 0.5), (300, 0.9))
    ),
)
_EVERY = {"smoke": 6, "quick": 2, "full": 1}  # of the network's settings
_DIRECTIONS = 10
_DESCENT = {"smoke": 20, "quick": 300, "full": 3_000}
_RELAXATIONS = {"smoke": 0.01, "quick": 2, "full": 60}  # of the slowest of the directions
_BLOCKS = 10  # whose means are independent: each spans many relaxations
_THIN = 10  # updates between two looks, well below a relaxation


@dataclass(frozen=True)
class Place:
    """A minimum of the network with its leading curvature directions.

    ``noise`` is the variance of per-example gradients along each.
    """

    params: Any
    data: tuple[Any, Any]
    curvatures: Array  # (10,), of the mean cost
    directions: Array  # (p, 10)
    noise: Array  # (10,)


@dataclass(frozen=True)
class Fluctuations:
    """One seed's network: its curvature, and the noise scales that its fluctuations show.

    Attributes:
        top_curvature: the largest of the mean cost.
        stiffening: curvature over one fluctuation over the Hessian's, 1 for a quadratic.
        shown: by setting, in each of some blocks of time.
    """

    top_curvature: float
    stiffening: float
    shown: dict[Setting, Array]


@dataclass(frozen=True)
class Data(Measured):
    """The noise scales that stationary fluctuations show."""

    quadratic: dict[Setting, Estimate]
    networks: list[Fluctuations]  # by seed

    @property
    def network(self) -> dict[Setting, Estimate]:
        """By setting, over the blocks of all seeds."""
        return {
            setting: mean_of(np.concatenate([one.shown[setting] for one in self.networks]))
            for setting in self.networks[0].shown
        }


def measure(context: Context) -> Data:
    """Stationary fluctuations on a quadratic and on the network."""
    return Data(
        at=context.at,
        quadratic={setting: _quadratic(context, setting) for setting in _QUADRATIC},
        networks=[context.kept(fluctuations, seed=seed) for seed in range(context.seeds)],
    )


def fluctuations(context: Context, seed: int) -> Fluctuations:
    """Those of the network about one minimum, at every setting."""
    place = find_place(context, seed)
    shown = {}
    for setting in _NETWORK[:: _EVERY[context.scale]]:
        context.progress.line(f"appendix D: {setting}, the network, seed {seed}")
        length = _RELAXATIONS[context.scale]
        shown[setting] = shown_by_network(context, setting, place, seed, length)
    return Fluctuations(float(place.curvatures[0]), _stiffening(context, place), shown)


def judge(data: Data) -> Findings:
    """C29: equal noise scales fluctuate alike, unequal ones do not."""
    quadratic, network = data.quadratic, data.network
    top = float(np.mean([one.top_curvature for one in data.networks]))
    off = {
        s: abs(seen.value - float(s.shown_noise_scale(_CURVATURE))) / seen.std
        for s, seen in quadratic.items()
    }
    parts = {
        "quadratic, closed form": max(off.values()) < 3,
        "quadratic, equal g agree": agree(quadratic, _CURVATURE),
        "quadratic, twice g differ": differ(quadratic, _CURVATURE),
        "network, equal g agree": agree(network, top),
        "network, twice g differ": differ(network, top),
    }
    return Findings(
        statement=(
            "Appendix D derives that SGD with momentum fluctuates with the noise scale "
            "g = ε(N/B - 1)/(1 - m): settings that share g should fluctuate alike. The variance of "
            "the parameters about a minimum is measured on a quadratic and on the paper's network, "
            f"with L2 (lambda = {_PRIOR_PRECISION:g}; without it nothing is stationary), along its "
            f"{_DIRECTIONS} directions of largest curvature, and is shown as the noise scale that "
            "would cause it, 2Nh Var(w)/F."
        ),
        judgements=(
            conclude(
                "C29",
                parts.values(),
                decidable=data.at.decidable,
                measured=parts,
                uncertainty={
                    "largest deviation from the closed form in standard errors": short(
                        max(off.values())
                    ),
                    "largest relative standard error of the network's": short(
                        max(seen.std / seen.value for seen in network.values())
                    ),
                },
            ),
        ),
        measurements=tuple(_measurements(data, network, max(off.values()))),
        remarks=(
            "At fixed g the variance itself falls as 1/N, because the summed cost grows steeper "
            "with N: it is the summed cost's fluctuation that g sets.",
            _less_than_g(data),
            "Directions of small curvature relax too slowly to be stationary here; only the "
            "leading ones are compared.",
        ),
    )


def _less_than_g(data: Data) -> str:
    """What the steeper cost would account for, and what is seen."""
    steeper = mean_of([one.stiffening for one in data.networks]).value
    share = mean_of([v.value / s.noise_scale for s, v in data.network.items()]).value
    return (
        "A ReLU network's Hessian knows nothing of its kinks, on which L2 puts the minimum: over a "
        f"fluctuation the slope is {steeper:.2f} times what the Hessian foretells. A quadratic as "
        f"steep as that would show {1 / steeper:.2f} of g, the network shows {share:.2f} of it. "
        "Where these differ, kinks alone do not account for what is seen."
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The noise scale shown, setting by setting."""
    return (draw_both(data.quadratic, data.network),)


def _measurements(
    data: Data, network: dict[Setting, Estimate], largest: float
) -> Iterator[Measurement]:
    yield Measurement(
        "largest deviation from the closed form, in standard errors",
        f"{largest:.2g} of {len(data.quadratic)} settings",
        f"quadratic, {_QUADRATIC_STEPS[data.at.scale]:,} updates of {_COORDINATES} coordinates",
    )
    yield Measurement(
        "curvature over one fluctuation, over the Hessian's",
        str(mean_of([one.stiffening for one in data.networks])),
        "the network, differences of gradients, mean of the directions: 1 for a quadratic, more "
        "where the minimum lies on kinks of its ReLUs",
    )
    for setting, seen in data.quadratic.items():
        yield Measurement(
            f"noise scale shown by the quadratic, {setting}",
            f"{seen}; closed form {float(setting.shown_noise_scale(_CURVATURE)):.4g}",
            f"{setting.kind}, g = {setting.noise_scale:.4g}",
        )
    for setting, seen in network.items():
        yield Measurement(
            f"noise scale shown by the network, {setting}",
            str(seen),
            f"{setting.kind}, g = {setting.noise_scale:.4g}; {_DIRECTIONS} directions, "
            f"{data.at.seeds} seeds, batch means",
        )


def _quadratic(context: Context, setting: Setting) -> Estimate:
    """Real batches of N examples, cost h/2 |w - x_i|^2: an autoregression that a filter runs."""
    h, m, rate = _CURVATURE, setting.momentum, setting.learning_rate
    rng = random_stream(0, f"quadratic {setting}")
    x = rng.normal(size=(setting.n_train, _COORDINATES))
    x -= x.mean(axis=0)
    stream = BatchStream(
        "without_replacement", n_train=setting.n_train, batch_size=setting.batch_size, rng=rng
    )
    steps = _QUADRATIC_STEPS[context.scale]
    means = np.concatenate([x[stream.take(1_000)].mean(axis=1) for _ in range(steps // 1_000)])
    # w' = w + m (w - w_before) - epsilon h (w - mean of the batch)
    w = scipy.signal.lfilter([rate * h], [1, rate * h - 1 - m, m], means, axis=0)
    settled = w[steps // 10 :]
    F = h**2 * x.var(axis=0, ddof=1)
    # The mean is known to be 0. Coordinates are independent: their spread is the error.
    return mean_of(2 * setting.n_train * h * (settled**2).mean(axis=0) / F)


def find_place(context: Context, seed: int) -> Place:
    """A minimum of the network under L2, by full-batch descent."""
    subset = context.data.subset(n_train=N_TRAIN, seed=seed)
    data = (subset.x_train, subset.y_train)
    network = network_at(context.scale)
    params = train(
        network,
        network.init(seed),
        data,
        learning_rate=0.1,
        momentum=0.9,
        batch_size=N_TRAIN,
        steps=_DESCENT[context.scale],
        prior_precision=_PRIOR_PRECISION,
        seed=seed,
        evaluate_at="final",
    ).params
    problem = jax_problem(network, params, data, "categorical")
    curvatures, directions = leading(problem.operator("hessian", "float32"), _DIRECTIONS)
    mean = gradient_noise(network, params, data).mean
    S = covariance_operator(
        problem, np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(mean)])
    )
    noise = np.array([v @ (S @ v) for v in directions.T])
    return Place(params, data, (curvatures + _PRIOR_PRECISION) / N_TRAIN, directions, noise)


def _stiffening(context: Context, place: Place) -> float:
    """How far from quadratic the minimum is on the scale of its fluctuations at g."""
    nll = LIKELIHOODS["categorical"]
    model = Model.at(network_at(context.scale), place.params, *place.data, nll)
    x, y = model.block(slice(None))
    sizes = np.sqrt(_NETWORK_G * place.noise / (2 * N_TRAIN * place.curvatures))
    ratios = []
    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(model.architecture.nll_sum))
        for v, size, curvature in zip(place.directions.T, sizes, place.curvatures, strict=True):
            ahead, behind = (np.asarray(gradient(model.w + d * v, x, y)) for d in (size, -size))
            slope = v @ (ahead - behind) / (2 * size * N_TRAIN) + _PRIOR_PRECISION / N_TRAIN
            ratios.append(slope / curvature)
    return float(np.mean(ratios))


def shown_by_network(
    context: Context, setting: Setting, place: Place, seed: int, relaxations: float
) -> Array:
    """The noise scale that the network's fluctuations show, in each of some blocks of time."""
    network, nll = network_at(context.scale), LIKELIHOODS["categorical"]
    x, y = map(jnp.asarray, place.data)
    flat = Model.at(network, place.params, *place.data, nll).architecture
    directions = jnp.asarray(place.directions, jnp.float32)
    N, B = setting.n_train, setting.batch_size

    def noisy(key: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        batch = jax.random.permutation(key, N)[:B]
        gradient = jax.grad(flat.nll_sum)(w, x[batch], y[batch])
        return gradient / B + _PRIOR_PRECISION / N * w, None

    slowest = (1 - setting.momentum) / (setting.learning_rate * place.curvatures[-1])  # updates
    start = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(place.params)])
    kernel = corrected_sgld(
        noisy, step_size=setting.learning_rate, momentum=setting.momentum, temperature=0.0
    )
    chains = run_chains(
        kernel,
        jnp.asarray(start, jnp.float32)[None],
        key=jax.random.key(seed),
        burn_in=math.ceil(relaxations / 12 * slowest),
        n_samples=_BLOCKS * math.ceil(relaxations * slowest / (_THIN * _BLOCKS)),
        thin=_THIN,
        collect=lambda w: (w - start) @ directions,
    )
    draws = np.asarray(chains.draws[0], float)  # (draws, directions)
    squares = (draws - draws.mean(axis=0)) ** 2
    shown = (2 * N * place.curvatures / place.noise * squares).mean(axis=1)
    return np.asarray(shown.reshape(_BLOCKS, -1).mean(axis=1))


SECTION = Section("D", "Appendix D: fluctuations and the noise scale", measure, judge, draw)
