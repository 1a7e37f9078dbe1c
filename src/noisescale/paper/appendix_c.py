"""Appendix C, and what section 4 and 5 assume of the gradient noise: its size and its shape."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from noisescale.likelihood import LIKELIHOODS
from noisescale.noise.gradients import GradientNoise, gradient_noise
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM, N_TRAIN
from noisescale.paper.claims import conclude
from noisescale.paper.runs import Array, Estimate, estimate, short
from noisescale.paper.section import Context, Measurement, Outcome, Picture, Section
from noisescale.paper.style import COLOURS, house_style, plain_log, to_svg
from noisescale.seeds import random_stream
from noisescale.training import SAMPLERS, BatchStream, paper_network, train
from noisescale.training.dense import gradient_factors

_BATCH_SIZES = (1, 3, 10, 30, 100, 300, 700, 900, 999, 1_000)
_N_BATCHES = {"smoke": 200, "quick": 2_000, "full": 5_000}
_MIDWAY = {"smoke": 50, "quick": 1_000, "full": 1_000}
_LAW = "without_replacement"


@dataclass(frozen=True)
class _Point:
    """The noise at one point in training: its trace, and the Gram matrix of centred gradients."""

    noise: GradientNoise
    gram: Array  # (N, N)

    @property
    def participation(self) -> float:
        """(sum of eigenvalues)^2 over the sum of their squares: how many directions matter."""
        return float(np.trace(self.gram) ** 2 / np.sum(self.gram**2))


def measure(context: Context) -> Outcome:
    """Measure the variance law at two points; judge C28 and C40."""
    points = [_points(context, seed) for seed in range(context.seeds)]
    ratios = {
        (when, sampler, B): _ratios(context, points, k, sampler, B)
        for k, when in enumerate(("at initialisation", "in mid-training"))
        for sampler in SAMPLERS
        for B in _BATCH_SIZES
    }
    law = {key: value for key, value in ratios.items() if key[1] == _LAW and key[2] < N_TRAIN}
    silent = max(abs(ratios[when, _LAW, N_TRAIN].mean) for when, _, _ in law)
    off = {key: abs(value.mean - 1) / value.error for key, value in law.items()}
    participation = np.array([[point.participation for point in pair] for pair in points])
    p_effective = N_TRAIN - 1  # the most that N examples can span, fewer than the live weights
    change = np.array([abs(b.noise.trace / a.noise.trace - 1) for a, b in points])
    change_error = np.array(
        [
            np.hypot(
                b.noise.trace_std / a.noise.trace,
                a.noise.trace_std * b.noise.trace / a.noise.trace**2,
            )
            for a, b in points
        ]
    )
    how = f"{context.seeds} seeds, {_N_BATCHES[context.scale]:,} batches each, N = {N_TRAIN:,}"
    return Outcome(
        statement=(
            "Section 5 takes the gradient error of a batch drawn without replacement to have "
            "variance N(N/B - 1)F, with F the covariance of per-example gradients, which depends "
            "on the parameters and is not isotropic. Both are measured here, on the paper's "
            f"network at initialisation and after {_MIDWAY[context.scale]:,} updates."
        ),
        pictures=(_draw(ratios),),
        measurements=(
            Measurement(
                "largest deviation from the law, in standard errors",
                f"{max(off.values()):.2g} of {len(off)} sizes and points",
                how,
            ),
            *(
                Measurement(
                    f"directions that carry the noise, {when}",
                    str(estimate(participation[:, k])),
                    "participation ratio of F's spectrum",
                )
                for k, when in enumerate(("at initialisation", "in mid-training"))
            ),
            *(
                Measurement(
                    f"critical batch size, {when}, seed 0",
                    _critical(points[0][k].noise),
                    "tr S/|G|^2, jackknife interval",
                )
                for k, when in enumerate(("at initialisation", "in mid-training"))
            ),
        ),
        judgements=(
            conclude(
                "C28",
                [max(off.values()) < 3, silent < 1e-6],
                decidable=context.decidable,
                measured={
                    "trace ratio at B = 30": short(law["at initialisation", _LAW, 30].mean),
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
                    bool((change > 3 * change_error).all()),
                ],
                decidable=context.decidable,
                measured={
                    "participation ratio": short(participation.mean()),
                    "relative change of tr F": short(change.mean()),
                },
                uncertainty={
                    "p_effective": p_effective,
                    "standard error of the change": short(change_error.mean()),
                },
            ),
        ),
        remarks=(
            "A shuffled batch that straddles two epochs is partly drawn with replacement, so its "
            "variance lies between the other two.",
        ),
    )


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
    made = [
        _Point(gradient_noise(network, params, pair), _gram(params, *pair))
        for params in (start, midway)
    ]
    return made[0], made[1]


def _gram(params: Any, x: NDArray[Any], y: NDArray[Any]) -> Array:
    """Products of centred per-example gradients: a layer's are (a a' + 1) times (d d')."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
        factors = gradient_factors(LIKELIHOODS["categorical"], wide, jnp.asarray(x), jnp.asarray(y))
        gram = np.array(sum((a @ a.T + 1) * (d @ d.T) for a, d in factors), float)
    gram -= gram.mean(axis=0)
    return np.asarray(gram - gram.mean(axis=1, keepdims=True))


def _ratios(
    context: Context, points: list[tuple[_Point, _Point]], k: int, sampler: str, batch_size: int
) -> Estimate:
    """Measured over predicted (without replacement) trace, over batches of all seeds."""
    values = []
    for seed, pair in enumerate(points):
        gram = pair[k].gram
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
    return estimate(np.concatenate(values))


def _draw(ratios: dict[tuple[str, str, int], Estimate]) -> Picture:
    with house_style():
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, when in zip(panels, ("at initialisation", "in mid-training"), strict=True):
            for colour, sampler in enumerate(SAMPLERS):
                points = [ratios[when, sampler, B] for B in _BATCH_SIZES[:-1]]
                axes.errorbar(
                    _BATCH_SIZES[:-1],
                    [p.mean for p in points],
                    yerr=[3 * p.error for p in points],
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


SECTION = Section(id="C", title="Appendix C: the size and shape of gradient noise", measure=measure)
