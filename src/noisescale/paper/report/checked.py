"""The part of the report that says what running shipped data again gave."""

from collections.abc import Sequence
from importlib import resources

import numpy as np
from jinja2 import Environment
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.checking import SpotCheck
from noisescale.paper.section import Picture
from noisescale.paper.spot_check import LEVEL, MARGIN, SHIFT, Pair
from noisescale.paper.style import plain_log

_MARKS = {"settled": "o", "chaotic": "s"}
_NAMES = {"settled": "from the peak upwards", "chaotic": "below the peak, or unstable"}


def check_part(check: SpotCheck | None, environment: Environment) -> str:
    """As HTML, everything from data escaped; None is a check that has not ended yet."""
    environment.filters["percent"] = _percent
    text = (resources.files(__package__) / "checked.html").read_text(encoding="utf-8")
    pairs = check.runs.pairs if check is not None and check.runs is not None else []
    return environment.from_string(text).render(
        check=check,
        pictures=(draw_check(pairs),) if pairs else (),
        regimes=_NAMES,
        margin=MARGIN,
        level=LEVEL,
        shift=SHIFT,
    )


def _percent(share: float) -> str:
    """Two digits, and no more zeros than can be meant."""
    return "less than 0.1 %" if share < 1e-3 else f"{100 * share:.2g} %"


def draw_check(pairs: Sequence[Pair]) -> Picture:
    """Each run's accuracy here against the shipped one, and their difference over the batch."""
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        _draw_accuracies(panels[0], pairs)
        _draw_differences(panels[1], pairs)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        svg = to_svg(figure)
    largest = max(pairs, key=lambda pair: abs(pair.difference))
    return Picture(
        name="spot-check",
        svg=svg,
        caption="(a) Test accuracy of each run made again here against the shipped one. (b) Their "
        "difference against the batch size over the best of its setting; bars are two standard "
        "deviations from seed to seed (of a difference), the band is the margin within which the "
        "mean from the peak upwards must lie.",
        alt=f"Two charts of {len(pairs)} runs. Accuracies here and shipped lie along the diagonal; "
        f"the largest difference is {largest.difference:+.4f}, at {largest.run}.",
    )


def _draw_accuracies(axes: Axes, pairs: Sequence[Pair]) -> None:
    for colour, (regime, mark) in enumerate(_MARKS.items()):
        these = [pair for pair in pairs if pair.regime == regime]
        axes.plot(
            [pair.shipped for pair in these],
            [pair.here for pair in these],
            mark,
            color=COLOURS[colour],
            markersize=4,
            alpha=0.8,
            label=_NAMES[regime],
        )
    ends = [min(min(pair.shipped, pair.here) for pair in pairs), 1.0]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.set(xlabel="shipped test accuracy", ylabel="test accuracy here", title="(a)")


def _draw_differences(axes: Axes, pairs: Sequence[Pair]) -> None:
    placed = [pair for pair in pairs if np.isfinite(pair.relative_size)]
    axes.axhspan(-MARGIN, MARGIN, color="grey", alpha=0.2, linewidth=0)
    for colour, (regime, mark) in enumerate(_MARKS.items()):
        these = [pair for pair in placed if pair.regime == regime]
        axes.errorbar(
            [pair.relative_size for pair in these],
            [pair.difference for pair in these],
            yerr=[2 * np.sqrt(2) * pair.noise for pair in these],
            fmt=mark,
            color=COLOURS[colour],
            markersize=4,
            elinewidth=0.6,
        )
    axes.set_yscale("symlog", linthresh=MARGIN)
    axes.set(xscale="log", xlabel="B over the best of its setting", title="(b)")
    axes.set(ylabel="accuracy here − shipped")
    plain_log(axes.xaxis)
