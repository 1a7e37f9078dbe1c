"""Figure 9 (appendix C): a gradient entry over examples, and over batches of 30."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from noisescale.noise.distribution import (
    Shape,
    batch_means,
    count_modes,
    describe_shape,
    entry_gradients,
    ks_distance,
)
from noisescale.paper.batches import N_TRAIN
from noisescale.paper.claims import conclude
from noisescale.paper.runs import Array, estimate, short
from noisescale.paper.section import Context, Measurement, Outcome, Picture, Section
from noisescale.paper.style import COLOURS, house_style, to_svg
from noisescale.seeds import random_stream
from noisescale.training import paper_network

_BATCH = 30
_N_ENTRIES = {"smoke": 10, "quick": 100, "full": 100}
_N_BATCHES = {"smoke": 500, "quick": 2_000, "full": 10_000}
_SIZES = (1, 3, 10, 30, 100)


def measure(context: Context) -> Outcome:
    """Gradients of random softmax-layer entries at initialisation; judge C27."""
    gradients = [_gradients(context, seed) for seed in range(context.seeds)]
    n_batches = _N_BATCHES[context.scale]
    over_examples = [[describe_shape(column) for column in g.T] for g in gradients]
    over_batches = [
        [
            describe_shape(column)
            for column in batch_means(g, _BATCH, n_batches=n_batches, seed=seed).T
        ]
        for seed, g in enumerate(gradients)
    ]
    ratios = np.array(
        [
            np.median([a.ks_distance / b.ks_distance for a, b in zip(one, many, strict=True)])
            for one, many in zip(over_examples, over_batches, strict=True)
        ]
    )
    modes = np.array([np.mean([s.n_modes >= 2 for s in shapes]) for shapes in over_examples])
    rng = random_stream(0, "Gaussian control")
    n_not_zero = int(np.median([np.sum(column != 0) for g in gradients for column in g.T]))
    found = [count_modes(rng.normal(size=n_not_zero)) >= 2 for _ in range(200)]
    control = float(np.mean(found))
    how = f"{gradients[0].shape[1]} random entries of the softmax layer, N = {N_TRAIN:,}, "
    how += f"{n_batches:,} batches, {context.seeds} seeds, at initialisation"
    first = gradients[0][:, 0]
    return Outcome(
        statement=(
            "The scaling rules take a minibatch's gradient error as Gaussian. Over single examples "
            "the gradient of one weight is far from it, in the paper with two peaks; averaged over "
            f"batches of {_BATCH} it is close."
        ),
        pictures=(
            _draw(first, batch_means(first[:, None], _BATCH, n_batches=n_batches)[:, 0]),
            _draw_approach(context, gradients),
        ),
        measurements=(
            Measurement(
                "KS distance to a Gaussian, examples over batches", str(estimate(ratios)), how
            ),
            Measurement("share of entries with two modes or more", str(estimate(modes)), how),
            Measurement(
                "the same for Gaussian samples",
                f"{control:.2f}",
                f"200 samples of {n_not_zero} values: what the criterion finds in noise",
            ),
            *_shapes("over examples", over_examples, how),
            *_shapes(f"over batches of {_BATCH}", over_batches, how),
        ),
        judgements=(
            conclude(
                "C27",
                [_all(ratios > 2), _all(modes > 0.5)],
                decidable=context.decidable,
                measured={
                    "median ratio of KS distances": short(ratios.mean()),
                    "share with two modes": short(modes.mean()),
                },
                uncertainty={
                    "median ratio of KS distances": short(estimate(ratios).error),
                    "share with two modes": short(estimate(modes).error),
                    "share with two modes, Gaussian samples": short(control),
                },
            ),
        ),
        remarks=(
            "The second mode is the class itself: the images of the entry's class, a tenth of all, "
            "pull the other way, spread out and low. The criterion counts every local maximum of "
            f"the density; it finds two or more in {control:.0%} of Gaussian samples too.",
        ),
    )


def _all(holds: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> bool | None:
    """True in every seed, False in none, else neither."""
    return True if holds.all() else None if holds.any() else False


def _gradients(context: Context, seed: int) -> Array:
    """Per-example gradients (N, k) of random entries of the softmax weights."""
    data = context.data.subset(n_train=N_TRAIN, seed=seed)
    network = paper_network()
    # Flattened params: for each layer its bias, then its weights, by name.
    n_weights = network.widths[-2] * network.widths[-1]
    first = sum(a * b + b for a, b in [network.widths[:2]]) + network.widths[-1]
    rng = random_stream(seed, "softmax entries")
    entries = first + rng.choice(n_weights, _N_ENTRIES[context.scale], replace=False)
    pair = (data.x_train, data.y_train)
    return entry_gradients(network, network.init(seed), pair, entries.tolist())


def _shapes(where: str, shapes: list[list[Shape]], how: str) -> list[Measurement]:
    rows = []
    for name, words in (
        ("ks_distance", "KS distance"),
        ("skewness", "skewness"),
        ("excess_kurtosis", "excess kurtosis"),
        ("tail_index", "tail index"),
    ):
        values = np.array([np.nanmedian([getattr(s, name) for s in one]) for one in shapes])
        rows.append(Measurement(f"median {words} {where}", str(estimate(values)), how))
    return rows


def _draw(examples: Array, batches: Array) -> Picture:
    with house_style():
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        not_zero = examples[examples != 0]
        _draw_histogram(panels[0], not_zero, "(a) over examples")
        share = np.mean(examples == 0)
        panels[0].text(
            0.98,
            0.95,
            f"{share:.0%} exactly 0, not drawn",
            ha="right",
            va="top",
            transform=panels[0].transAxes,
            fontsize=8,
        )
        _draw_histogram(panels[1], batches, f"(b) over batches of {_BATCH}")
        svg = to_svg(figure)
    one, many = describe_shape(examples), describe_shape(batches)
    return Picture(
        name="figure9",
        svg=svg,
        caption="The gradient of one randomly chosen weight of the softmax layer at "
        "initialisation; the line is the Gaussian of the same mean and variance.",
        alt=f"Two histograms of a gradient entry: over examples (KS distance {one.ks_distance:.2f} "
        f"to a Gaussian, {one.n_modes} modes apart from the values at 0) and over batches of "
        f"{_BATCH} (KS distance {many.ks_distance:.3f}).",
    )


def _draw_histogram(axes: Axes, values: Array, title: str) -> None:
    axes.hist(values, bins=60, density=True, color=COLOURS[0], alpha=0.6)
    x = np.linspace(values.min(), values.max(), 200)
    axes.plot(x, stats.norm.pdf(x, values.mean(), values.std()), color=COLOURS[1])
    axes.set(xlabel="gradient", ylabel="density", title=title)


def _draw_approach(context: Context, gradients: list[Array]) -> Picture:
    n_batches = _N_BATCHES[context.scale]
    distances = np.array(
        [
            [
                np.median(
                    [
                        ks_distance(column)
                        for column in batch_means(g, B, n_batches=n_batches, seed=seed).T
                    ]
                )
                for B in _SIZES
            ]
            for seed, g in enumerate(gradients)
        ]
    )
    with house_style():
        figure = Figure(figsize=(5.5, 3.6))
        axes = figure.add_subplot()
        axes.plot(_SIZES, distances.mean(axis=0), "o-", color=COLOURS[0], label="measured")
        sizes = np.array(_SIZES, float)
        axes.plot(
            sizes,
            distances.mean(axis=0)[0] / np.sqrt(sizes),
            ":",
            color="grey",
            label="as B to the power of -1/2",
        )
        axes.set(xscale="log", yscale="log", xlabel="batch size B", ylabel="median KS distance")
        axes.legend()
        svg = to_svg(figure)
    told = ", ".join(
        f"{d:.3f} at B = {B}" for d, B in zip(distances.mean(axis=0), _SIZES, strict=True)
    )
    return Picture(
        name="figure9-approach",
        svg=svg,
        caption="How the distance to a Gaussian falls with the batch size; median over entries, "
        "mean over seeds. A finite number of batches leaves a floor.",
        alt=f"Median KS distance to a Gaussian against the batch size: {told}.",
    )


SECTION = Section(id="9", title="Figure 9: is gradient noise Gaussian?", measure=measure)
