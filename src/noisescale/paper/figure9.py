"""Figure 9 (appendix C): a gradient entry over examples, and over batches of 30."""

from dataclasses import dataclass
from functools import cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import optimize, stats

from noisescale.drawing import COLOURS, house_style, to_svg
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
from noisescale.paper.runs import Array, short
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.seeds import random_stream
from noisescale.training import paper_network
from noisescale.uncertainty import mean_of

_BATCH = 30
_N_ENTRIES = {"smoke": 10, "quick": 100, "full": 100}
_N_BATCHES = {"smoke": 500, "quick": 2_000, "full": 10_000}
_SIZES = (1, 3, 10, 30, 100)
_N_CONTROLS = 200
_N_SKEWED = 100
_N_BINS = 60


@dataclass(frozen=True)
class Histogram:
    """How often an entry's gradient fell where, its moments, and its shape."""

    edges: Array  # (bins + 1,)
    density: Array  # (bins,)
    mean: float
    deviation: float
    at_zero: float  # share of values that are exactly 0, left out of the bins
    shape: Shape


@dataclass(frozen=True)
class Data(Measured):
    """Shapes of the gradients of random softmax-layer entries at initialisation."""

    n_batches: int
    over_examples: list[list[Shape]]  # by seed, by entry
    over_batches: list[list[Shape]]
    one_entry: tuple[Histogram, Histogram]  # over examples, over batches
    approach: Array  # (seeds, sizes): median KS distance over batches of _SIZES
    n_not_zero: int  # values in the Gaussian controls: as many as an entry has that are not 0
    control: float  # share of Gaussian controls in which two modes or more are counted


def measure(context: Context) -> Data:
    """Per-example gradients of random entries, and their means over batches."""
    n_batches = _N_BATCHES[context.scale]
    gradients = [_gradients(context, seed) for seed in range(context.seeds)]
    rng = random_stream(0, "Gaussian control")
    n_not_zero = int(np.median([np.sum(column != 0) for g in gradients for column in g.T]))
    modes = [count_modes(rng.normal(size=n_not_zero)) for _ in range(_N_CONTROLS)]
    first = gradients[0][:, 0]
    return Data(
        at=context.at,
        n_batches=n_batches,
        over_examples=[[describe_shape(column) for column in g.T] for g in gradients],
        over_batches=[
            [
                describe_shape(column)
                for column in batch_means(g, _BATCH, n_batches=n_batches, seed=seed).T
            ]
            for seed, g in enumerate(gradients)
        ],
        one_entry=(
            _histogram(first),
            _histogram(batch_means(first[:, None], _BATCH, n_batches=n_batches)[:, 0]),
        ),
        approach=np.array(
            [
                [_median_distance(batch_means(g, B, n_batches=n_batches, seed=s)) for B in _SIZES]
                for s, g in enumerate(gradients)
            ]
        ),
        n_not_zero=n_not_zero,
        control=float(np.mean([count >= 2 for count in modes])),
    )


def judge(data: Data) -> Findings:
    """C27: far from a Gaussian over examples, close to it over batches."""
    pairs = zip(data.over_examples, data.over_batches, strict=True)
    skewed = skewed_control(data.n_not_zero, _typical_skewness(data))
    ratios = np.array(
        [
            np.median([a.ks_distance / b.ks_distance for a, b in zip(one, many, strict=True)])
            for one, many in pairs
        ]
    )
    modes = np.array([np.mean([s.n_modes >= 2 for s in shapes]) for shapes in data.over_examples])
    how = f"{len(data.over_examples[0])} random entries of the softmax layer, N = {N_TRAIN:,}, "
    how += f"{data.n_batches:,} batches, {data.at.seeds} seeds, at initialisation"
    return Findings(
        statement=(
            "The scaling rules take a minibatch's gradient error as Gaussian. Over single examples "
            "the gradient of one weight is far from it, in the paper with two peaks; averaged over "
            f"batches of {_BATCH} it is close."
        ),
        judgements=(
            conclude(
                "C27",
                [_all(ratios > 2), _all(modes > 0.5)],
                decidable=data.at.decidable,
                measured={
                    "median ratio of KS distances": short(ratios.mean()),
                    "share with two modes": short(modes.mean()),
                },
                uncertainty={
                    "median ratio of KS distances": short(mean_of(ratios).std),
                    "share with two modes": short(mean_of(modes).std),
                    "share with two modes, Gaussian samples": short(data.control),
                },
            ),
        ),
        measurements=(
            Measurement(
                "KS distance to a Gaussian, examples over batches", str(mean_of(ratios)), how
            ),
            Measurement("share of entries with two modes or more", str(mean_of(modes)), how),
            Measurement(
                "the same for Gaussian samples",
                f"{data.control:.2f}",
                f"{_N_CONTROLS} samples of {data.n_not_zero} values: what the criterion finds in "
                "noise",
            ),
            Measurement(
                "the same for skewed samples with one mode",
                f"{skewed:.2f}",
                f"{_N_SKEWED} lognormal samples of {data.n_not_zero} values, as skewed as the "
                "entries: the control that the claim needs",
            ),
            *_shapes("over examples", data.over_examples, how),
            *_shapes(f"over batches of {_BATCH}", data.over_batches, how),
        ),
        remarks=(
            "The second mode is the class itself: the images of the entry's class, a tenth of all, "
            "pull the other way, spread out and low. The criterion counts every local maximum of "
            f"the density; it finds two or more in {data.control:.0%} of Gaussian samples too, and "
            f"in {skewed:.0%} of samples that are as skewed as these and have one mode.",
        ),
    )


def _typical_skewness(data: Data) -> float:
    """In size, of the entries over examples."""
    return float(np.median([abs(s.skewness) for shapes in data.over_examples for s in shapes]))


@cache
def skewed_control(n: int, skewness: float) -> float:
    """The share of unimodal samples, lognormal and of this skewness, that show two modes."""
    # exp(s Z) has skewness (q + 2) sqrt(q - 1) with q = exp(s^2).
    q = optimize.brentq(lambda q: (q + 2) * np.sqrt(q - 1) - skewness, 1, 1e6)
    rng = random_stream(0, "skewed control")
    samples = np.exp(np.sqrt(np.log(q)) * rng.normal(size=(_N_SKEWED, n)))
    return float(np.mean([count_modes(sample) >= 2 for sample in samples]))


def draw(data: Data) -> tuple[Picture, ...]:
    """One entry's histograms, and how the distance to a Gaussian falls."""
    return _draw_entry(*data.one_entry), _draw_approach(data.approach)


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


def _median_distance(means: Array) -> float:
    return float(np.median([ks_distance(column) for column in means.T]))


def _histogram(values: Array) -> Histogram:
    not_zero = values[values != 0]
    density, edges = np.histogram(not_zero, bins=_N_BINS, density=True)
    return Histogram(
        edges=edges,
        density=density,
        mean=float(not_zero.mean()),
        deviation=float(not_zero.std()),
        at_zero=float(np.mean(values == 0)),
        shape=describe_shape(values),
    )


def _shapes(where: str, shapes: list[list[Shape]], how: str) -> list[Measurement]:
    rows = []
    for name, words in (
        ("ks_distance", "KS distance"),
        ("skewness", "skewness"),
        ("excess_kurtosis", "excess kurtosis"),
        ("tail_index", "tail index"),
    ):
        values = np.array([np.nanmedian([getattr(s, name) for s in one]) for one in shapes])
        rows.append(Measurement(f"median {words} {where}", str(mean_of(values)), how))
    return rows


def _draw_entry(examples: Histogram, batches: Histogram) -> Picture:
    with house_style():
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = figure.subplots(1, 2)
        _draw_histogram(panels[0], examples, "(a) over examples")
        panels[0].text(
            0.02,
            0.95,
            f"{examples.at_zero:.0%} exactly 0, not drawn",
            ha="left",
            va="top",
            transform=panels[0].transAxes,
            fontsize=8,
        )
        _draw_histogram(panels[1], batches, f"(b) over batches of {_BATCH}")
        svg = to_svg(figure)
    one, many = examples.shape, batches.shape
    return Picture(
        name="figure9",
        svg=svg,
        caption="The gradient of one randomly chosen weight of the softmax layer at "
        "initialisation; the line is the Gaussian of the same mean and variance.",
        alt=f"Two histograms of a gradient entry: over examples (KS distance {one.ks_distance:.2f} "
        f"to a Gaussian, {one.n_modes} modes apart from the values at 0) and over batches of "
        f"{_BATCH} (KS distance {many.ks_distance:.3f}).",
    )


def _draw_histogram(axes: Axes, histogram: Histogram, title: str) -> None:
    edges = histogram.edges
    axes.stairs(histogram.density, edges, fill=True, color=COLOURS[0], alpha=0.6)
    x = np.linspace(edges[0], edges[-1], 200)
    axes.plot(x, stats.norm.pdf(x, histogram.mean, histogram.deviation), color=COLOURS[1])
    axes.set(xlabel="gradient", ylabel="density", title=title)


def _draw_approach(approach: Array) -> Picture:
    distances = approach.mean(axis=0)
    with house_style():
        figure = Figure(figsize=(5.5, 3.6))
        axes = figure.add_subplot()
        axes.plot(_SIZES, distances, "o-", color=COLOURS[0], label="measured")
        sizes = np.array(_SIZES, float)
        line = distances[0] / np.sqrt(sizes)
        axes.plot(sizes, line, ":", color="grey", label="as B to the power of -1/2")
        axes.set(xscale="log", yscale="log", xlabel="batch size B", ylabel="median KS distance")
        axes.legend()
        svg = to_svg(figure)
    words = ", ".join(f"{d:.3f} at B = {B}" for d, B in zip(distances, _SIZES, strict=True))
    return Picture(
        name="figure9-approach",
        svg=svg,
        caption="How the distance to a Gaussian falls with the batch size; median over entries, "
        "mean over seeds. A finite number of batches leaves a floor.",
        alt=f"Median KS distance to a Gaussian against the batch size: {words}.",
    )


SECTION = Section("9", "Figure 9: is gradient noise Gaussian?", measure, judge, draw)
