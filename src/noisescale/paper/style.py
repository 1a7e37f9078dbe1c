"""What several figures of the paper draw alike."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from noisescale.drawing import COLOURS
from noisescale.paper.runs import Runs


def plain_log(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, few enough not to collide."""
    low, high = axis.get_view_interval()
    narrow = high / low < 10**1.7
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def draw_band(
    axes: Axes,
    x: NDArray[np.float64],
    values: NDArray[np.float64],
    label: str,
    colour: int,
    linestyle: str = "-",
) -> None:
    """The mean over seeds as a line, and a band from the lowest to the highest seed."""
    axes.plot(x, values.mean(axis=0), color=COLOURS[colour], label=label, linestyle=linestyle)
    axes.fill_between(
        x, values.min(axis=0), values.max(axis=0), color=COLOURS[colour], alpha=0.2, linewidth=0
    )


def draw_training(
    figure: Figure, shown: Mapping[str, Runs], dotted: Mapping[str, Runs] | None = None
) -> list[Axes]:
    """Test accuracy and cross-entropy against updates: a band over seeds for each of the runs.

    ``dotted`` runs are drawn beside them by their mean alone, in the same colours.
    """
    panels = list(figure.subplots(1, 2))
    for axes, metric, label, letter in (
        (panels[0], "test_accuracy", "test accuracy", "a"),
        (panels[1], "test_cross_entropy", "test cross-entropy, nats per image", "b"),
    ):
        for colour, (name, runs) in enumerate(shown.items()):
            steps, curves = runs.curve(metric)
            draw_band(axes, steps[1:], curves[:, 1:], name, colour)
        for colour, (name, runs) in enumerate((dotted or {}).items()):
            steps, curves = runs.curve(metric)
            means = curves.mean(axis=0)
            axes.plot(steps[1:], means[1:], ":", color=COLOURS[colour], linewidth=0.8, label=name)
        axes.set(xscale="log", xlabel="gradient updates", ylabel=label, title=f"({letter})")
    panels[0].set_ylim(0.5, None)
    return panels
