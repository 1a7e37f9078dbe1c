"""The pictures of figure 10: what minima of SGD say, by batch size and by labels."""

from collections.abc import Callable
from operator import attrgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.minima import LABELS, Minimum
from noisescale.paper.section import Picture
from noisescale.paper.style import plain_log

Group = dict[int, list[Minimum | None]]  # by batch size, then by seed


def draw_minima(rows: list[list[Minimum]]) -> Picture:
    """E, test accuracy and cross-entropy against the batch size, a line a seed."""
    with house_style():
        figure = Figure(figsize=(11, 3.6), layout="constrained")
        panels = figure.subplots(1, 3)
        metrics = (("test_accuracy", "test accuracy"), ("test_cross_entropy", "test cross-entropy"))
        for axes, (name, label) in zip(panels[1:], metrics, strict=True):
            _draw_rows(axes, rows, attrgetter(name))
            axes.set(ylabel=label)
        _draw_rows(panels[0], rows, lambda m: m.E["largest evidence"])
        panels[0].set(ylabel="E, lower favours the network")
        panels[0].legend(fontsize=8)
        svg = to_svg(figure)
    return Picture(
        name="figure10",
        svg=svg,
        caption="The evidence of the minimum that SGD finds, from the training data alone, beside "
        "its test accuracy and cross-entropy; one line a seed.",
        alt="Three charts against the batch size: E, test accuracy and test cross-entropy. "
        + "; ".join(
            f"B = {m.batch_size}: E = {m.E['largest evidence']:.0f}, accuracy {m.test_accuracy:.3f}"
            for m in rows[0]
        ),
    )


def _draw_rows(axes: Axes, rows: list[list[Minimum]], value: Callable[[Minimum], float]) -> None:
    for seed, row in enumerate(rows):
        colour = COLOURS[seed % len(COLOURS)]
        axes.plot(
            [m.batch_size for m in row],
            [value(m) for m in row],
            "o-",
            color=colour,
            markersize=4,
            label=f"seed {seed}",
        )
    axes.set(xscale="log", xlabel="batch size B")
    plain_log(axes.xaxis)


def draw_labels(true: Group, random: Group) -> Picture:
    """E with true and with random labels."""
    groups = [
        (f"{labels} labels, B = {B}", [m for m in group[B] if m is not None])
        for B in true
        for labels, group in zip(LABELS, (true, random), strict=True)
    ]
    with house_style():
        figure = Figure(figsize=(6.5, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for k, (_, found) in enumerate(groups):
            axes.plot(
                [m.E["largest evidence"] for m in found],
                [k] * len(found),
                "o",
                color=COLOURS[k % 2],
            )
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(groups)), [name for name, _ in groups])
        axes.invert_yaxis()
        axes.set(xlabel="E: below 0 the network is believed, above it guessing is")
        svg = to_svg(figure)
    told = "; ".join(
        f"{name}: E = {np.mean([m.E['largest evidence'] for m in found]):.0f}"
        for name, found in groups
        if found
    )
    return Picture(
        name="figure10-labels",
        svg=svg,
        caption="The deep version of figure 2: the same images with true and with random labels, "
        "which the network memorises.",
        alt=f"E by labels and batch size: {told}.",
    )
