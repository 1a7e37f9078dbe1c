"""The trail of a tuning as a picture."""

import statistics
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

if TYPE_CHECKING:
    from noisescale.tune.result import Decision, TuneResult

_KINDS = {
    (1, "batch_size"): ("stage 1: batch size alone", "C0"),
    (2, "learning_rate"): ("stage 2: ε ∝ B", "C1"),
    (2, "momentum"): ("stage 2: 1/(1 - m) ∝ B", "C2"),
    (2, "square_root"): ("stage 2: by the square root", "C1"),
    (2, "half_life"): ("stage 2: by the half-life", "C2"),
    (3, "batch_size"): ("stage 3: nearby", "C3"),
}


def draw_trail(result: "TuneResult", axes: Axes) -> None:
    """Score against batch size, a colour a stage; filled where the tuning went on from.

    Scores far below the rest, of batches that hardly train, are arrows at the lower edge.
    """
    scores = [d.score for d in result.trail if d.score == d.score]
    floor = max(scores) - 5 * (max(scores) - statistics.median(scores)) if scores else 0.0
    for kind, (label, colour) in _KINDS.items():
        steps = [d for d in result.trail if (d.stage, d.changed) == kind]
        if steps:
            axes.plot([], [], "o", color=colour, label=label)
        for step in steps:
            _draw(axes, step, colour, floor)
    axes.axvline(result.recipe.batch_size, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="batch size B", ylabel="validation score ± standard error")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    if result.trail:
        axes.legend(fontsize="small")


def _draw(axes: Axes, step: "Decision", colour: str, floor: float) -> None:
    if not step.score >= floor:
        axes.plot(step.recipe.batch_size, floor, "v", color=colour, markerfacecolor="white")
        return
    error = 0.0 if step.score_std != step.score_std else step.score_std
    axes.errorbar(
        step.recipe.batch_size,
        step.score,
        yerr=error,
        fmt="o",
        color=colour,
        capsize=2,
        markerfacecolor=colour if step.accepted else "white",
    )
