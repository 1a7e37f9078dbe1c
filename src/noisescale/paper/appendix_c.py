"""Appendix C, and what section 4 and 5 assume of the gradient noise: its size and its shape."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.likelihood import LIKELIHOODS
from noisescale.noise.gradients import GradientNoise, gradient_noise
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM, N_TRAIN
from noisescale.paper.claims import conclude
from noisescale.paper.runs import Array, short
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.style import plain_log
from noisescale.seeds import random_stream
from noisescale.training import SAMPLERS, BatchStream, paper_network, train
from noisescale.training.dense import gradient_factors
from noisescale.uncertainty import Estimate, mean_of

_BATCH_SIZES = (1, 3, 10, 30, 100, 300, 700, 900, 999, 1_000)
_N_BATCHES = {"smoke": 200, "quick": 2_000, "full": 5_000}
_MIDWAY = {"smoke": 50, "quick": 1_000, "full": 1_000}
_LAW = "without_replacement"
_PRECISE = 0.1  # standard error of a trace ratio that can tell the law from another
_POINTS = ("at initialisation", "in mid-training")


@dataclass(frozen=True)
class Noise:
    """The gradient noise at one point in training.

    Attributes:
        trace, trace_std: tr F over the training images, and its standard error.
        participation: (sum of eigenvalues)^2 over the sum of their squares of F: how many
            directions matter.
        critical: the critical batch size, in words.
    """

    trace: float
    trace_std: float
    participation: float
    critical: str


@dataclass(frozen=True)
class Data(Measured):
    """The variance law, and the noise itself, at two points in training."""

    # (point, sampler, batch size): measured over predicted trace
    ratios: dict[tuple[str, str, int], Estimate]
    noise: list[tuple[Noise, Noise]]  # by seed, at each point


@dataclass(frozen=True)
class _Point:
    noise: Noise
    gram: Array  # (N, N), of centred gradients


def measure(context: Context) -> Data:
    """Variances of batches by three samplers, at initialisation and in mid-training."""
    points = [_points(context, seed) for seed in range(context.seeds)]
    return Data(
        at=context.at,
        ratios={
            (when, sampler, B): _ratios(context, [pair[k].gram for pair in points], sampler, B)
            for k, when in enumerate(_POINTS)
            for sampler in SAMPLERS
            for B in _BATCH_SIZES
        },
        noise=[(a.noise, b.noise) for a, b in points],
    )


def judge(data: Data) -> Findings:
    """C28, the law of the variance, and C40, its shape and change."""
    law = {key: r for key, r in data.ratios.items() if key[1] == _LAW and key[2] < N_TRAIN}
    silent = max(abs(data.ratios[when, _LAW, N_TRAIN].value) for when in _POINTS)
    off = {key: abs(ratio.value - 1) / ratio.std for key, ratio in law.items()}
    participation = np.array([[noise.participation for noise in pair] for pair in data.noise])
    p_effective = N_TRAIN - 1  # the most that N examples can span, fewer than the live weights
    change = np.array([abs(b.trace / a.trace - 1) for a, b in data.noise])
    change_std = np.array(
        [np.hypot(b.trace_std / a.trace, a.trace_std * b.trace / a.trace**2) for a, b in data.noise]
    )
    scale = data.at.scale
    how = f"{data.at.seeds} seeds, {_N_BATCHES[scale]:,} batches each, N = {N_TRAIN:,}"
    return Findings(
        statement=(
            "Section 5 takes the gradient error of a batch drawn without replacement to have "
            "variance N(N/B - 1)F, with F the covariance of per-example gradients, which depends "
            "on the parameters and is not isotropic. Both are measured here, on the paper's "
            f"network at initialisation and after {_MIDWAY[scale]:,} updates."
        ),
        judgements=(
            conclude(
                "C28",
                [max(off.values()) < 3, silent < 1e-6],
                decidable=data.at.decides(enough=max(r.std for r in law.values()) <= _PRECISE),
                measured={
                    "trace ratio at B = 30": short(law[_POINTS[0], _LAW, 30].value),
                    "ratio left at B = N": short(silent),
                },
                uncertainty={
                    "largest deviation in standard errors": short(max(off.values())),
                    "sizes and points compared": len(off),
                },
            ),
            conclude(
                "C40",
                [
                    bool((participation < 0.1 * p_effective).all()),
                    bool((change > 3 * change_std).all()),
                ],
                decidable=data.at.decides(enough=_MIDWAY[scale] >= _MIDWAY["full"]),
                measured={
                    "participation ratio": short(participation.mean()),
                    "relative change of tr F": short(change.mean()),
                },
                uncertainty={
                    "p_effective": p_effective,
                    "standard error of the change": short(change_std.mean()),
                },
            ),
        ),
        measurements=(
            Measurement(
                "largest deviation from the law, in standard errors",
                f"{max(off.values()):.2g} of {len(off)} sizes and points",
                how,
            ),
            *(
                Measurement(
                    f"directions that carry the noise, {when}",
                    str(mean_of(participation[:, k])),
                    "participation ratio of F's spectrum",
                )
                for k, when in enumerate(_POINTS)
            ),
            *(
                Measurement(
                    f"critical batch size, {when}, seed 0",
                    data.noise[0][k].critical,
                    "tr S/|G|^2, jackknife interval",
                )
                for k, when in enumerate(_POINTS)
            ),
        ),
        remarks=(
            "A shuffled batch that straddles two epochs is partly drawn with replacement, so its "
            "variance lies between the other two.",
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The variance over the law, by sampler."""
    return (_draw(data.ratios),)


def _critical(noise: GradientNoise) -> str:
    if noise.critical_batch_size is None:
        return f"undetermined: {noise.undetermined}; at least {noise.low:.3g}"
    return f"{noise.critical_batch_size:.3g} [{noise.low:.3g}, {noise.high:.3g}]"


def _points(context: Context, seed: int) -> tuple[_Point, _Point]:
    """The noise at initialisation and after some training."""
    data = context.data.subset(n_train=N_TRAIN, seed=seed)
    network = paper_network()
    pair = (data.x_train, data.y_train)
    start = network.init(seed)
    midway = train(
        network,
        start,
        pair,
        learning_rate=LEARNING_RATE,
        momentum=MOMENTUM,
        batch_size=30,
        steps=_MIDWAY[context.scale],
        cost_convention="per_class",
        seed=seed,
        evaluate_at="final",
    ).params
    at_start, at_midway = (_point(params, pair) for params in (start, midway))
    return at_start, at_midway


def _point(params: Any, pair: tuple[NDArray[Any], NDArray[Any]]) -> _Point:
    noise, gram = gradient_noise(paper_network(), params, pair), _gram(params, *pair)
    participation = float(np.trace(gram) ** 2 / np.sum(gram**2))
    return _Point(Noise(noise.trace, noise.trace_std, participation, _critical(noise)), gram)


def _gram(params: Any, x: NDArray[Any], y: NDArray[Any]) -> Array:
    """Products of centred per-example gradients: a layer's are (a a' + 1) times (d d')."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        factors = gradient_factors(LIKELIHOODS["categorical"], wide, jnp.asarray(x), jnp.asarray(y))
        gram = np.array(sum((a @ a.T + 1) * (d @ d.T) for a, d in factors), float)
    gram -= gram.mean(axis=0)
    return np.asarray(gram - gram.mean(axis=1, keepdims=True))


def _ratios(context: Context, grams: list[Array], sampler: str, batch_size: int) -> Estimate:
    """Measured over predicted (without replacement) trace, over batches of all seeds."""
    values = []
    for seed, gram in enumerate(grams):
        rng = random_stream(seed, f"variance law {sampler} {batch_size}")
        stream = BatchStream(sampler, n_train=N_TRAIN, batch_size=batch_size, rng=rng)
        # A batch's squared error is the sum of the Gram matrix over its members.
        counts = np.array(
            [
                np.bincount(batch, minlength=N_TRAIN)
                for batch in stream.take(_N_BATCHES[context.scale])
            ],
            float,
        )
        squared = np.einsum("bi,bi->b", counts @ gram, counts) / batch_size**2
        trace = np.trace(gram) / (N_TRAIN - 1)
        at = min(batch_size, N_TRAIN - 1)  # at B = N the law says 0: in units of its neighbour
        values.append(squared / (trace * (1 / at - 1 / N_TRAIN)))
    return mean_of(np.concatenate(values))


def _draw(ratios: dict[tuple[str, str, int], Estimate]) -> Picture:
    with house_style():
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, when in zip(panels, _POINTS, strict=True):
            for colour, sampler in enumerate(SAMPLERS):
                points = [ratios[when, sampler, B] for B in _BATCH_SIZES[:-1]]
                axes.errorbar(
                    _BATCH_SIZES[:-1],
                    [p.value for p in points],
                    yerr=[3 * p.std for p in points],
                    color=COLOURS[colour],
                    marker=".",
                    label=sampler.replace("_", " "),
                )
            axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
            axes.set(xscale="log", yscale="log", xlabel="batch size B", title=when)
            plain_log(axes.xaxis)
        panels[0].set(ylabel="variance over N(N/B - 1) tr F")
        panels[0].legend(loc="upper left")
        svg = to_svg(figure)
    return Picture(
        name="appendixC",
        svg=svg,
        caption="The measured variance of a batch's gradient over the law for drawing without "
        "replacement, for three samplers; bars are three standard errors.",
        alt="Two charts of the variance ratio against the batch size: without replacement it stays "
        "at 1, with replacement it rises as the batch nears the training set.",
    )


SECTION = Section(
    "C", "Appendix C: the size and shape of gradient noise", measure, judge, draw, quick_seeds=3
)
