"""The picture of a scaling rule: accuracy curves, and where they peak."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.section import Picture
from noisescale.paper.style import plain_log
from noisescale.sweep.rules import ScalingRule


def draw_rule(
    rule: ScalingRule, *, name: str, symbol: str, x_label: str, labels: Mapping[float, str]
) -> Picture:
    """Panel a: accuracy curves, one a setting. Panel b: where they peak, with the lines."""
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        _draw_curves(panels[0], rule, symbol, labels)
        _draw_peaks(panels[1], rule, x_label)
        svg = to_svg(figure)
    found = "; ".join(
        f"{labels[point.value]}: {point.peak.fitted:.3g}"
        if point.peak.fitted is not None
        else f"{labels[point.value]}: undetermined"
        for point in rule.points
    )
    what = rule.optimum.replace("_", " ")
    slope = "no slope" if rule.slope is None else f"fitted slope {rule.slope}"
    return Picture(
        name=name,
        svg=svg,
        caption=f"(a) Test accuracy after the last update against the {what}, mean over seeds "
        f"with standard errors, for each {symbol}. (b) The best {what}: thick bars are 95 % "
        "intervals of the fitted peak, thin ones reach to the neighbours of the best observed "
        "(the paper's error bars); hollow points are not resolved and not fitted.",
        alt=f"Two charts: test accuracy against the {what}, and the best {what} against "
        f"{x_label}, with {slope}. Best {what} by {symbol}: {found}.",
    )


def _draw_curves(axes: Axes, rule: ScalingRule, symbol: str, labels: Mapping[float, str]) -> None:
    colours = mpl.colormaps["viridis"]
    top = max(point.peak.accuracy for point in rule.points)
    for place, point in zip(np.linspace(0, 0.95, len(rule.points)), rule.points, strict=True):
        peak = point.peak
        axes.errorbar(
            peak.sizes,
            peak.mean,
            yerr=np.nan_to_num(np.array(peak.std)),
            color=colours(place),
            marker=".",
            linewidth=1,
            label=labels[point.value],
        )
    axes.set(xscale="log", xlabel=rule.optimum.replace("_", " "), ylabel="test accuracy")
    axes.set(title="(a)")
    axes.set_ylim(max(0, top - 0.12), top + 0.01)
    plain_log(axes.xaxis)
    axes.legend(title=symbol, fontsize=8, ncols=2)


def _draw_peaks(axes: Axes, rule: ScalingRule, x_label: str) -> None:
    for point in rule.points:
        peak = point.peak
        axes.plot([point.x] * 2, [peak.best_low, peak.best_high], color="grey", linewidth=0.8)
        if peak.fitted is None:
            axes.plot(point.x, peak.best, "o", color=COLOURS[0], markerfacecolor="white")
            continue
        axes.plot(point.x, peak.fitted, "o", color=COLOURS[0])
        if peak.low is not None and peak.high is not None:
            axes.plot([point.x] * 2, [peak.low, peak.high], color=COLOURS[0], linewidth=2.5)
    xs = np.geomspace(min(p.x for p in rule.points), max(p.x for p in rule.points), 50)
    if rule.slope is not None and rule.constant is not None:
        values = 1 - 1 / xs if rule.over == "momentum" else xs
        lines = [rule.predict(float(value)) for value in values]
        axes.plot(
            xs,
            [line.value for line in lines],
            color=COLOURS[1],
            label=f"slope {rule.slope.value:.2f}",
        )
        axes.fill_between(
            xs,
            [line.low for line in lines],
            [line.high for line in lines],
            color=COLOURS[1],
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(xs, rule.constant.value * xs, "--", color=COLOURS[2], label="slope 1")
        axes.legend(loc="upper left")
    axes.set(xscale="log", yscale="log", xlabel=x_label, title="(b)")
    axes.set(ylabel="best " + rule.optimum.replace("_", " "))
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
