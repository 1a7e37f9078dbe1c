"""The trail of a tuning as a picture."""

import math
import statistics
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from noisescale.tune.critical_result import CriticalBatch
    from noisescale.tune.result import Decision, TuneResult

_KINDS = {
    (1, "batch_size"): ("stage 1: batch size alone", "C0"),
    (2, "learning_rate"): ("stage 2: ε ∝ B", "C1"),
    (2, "momentum"): ("stage 2: 1/(1 - m) ∝ B", "C2"),
    (2, "square_root"): ("stage 2: by the square root", "C1"),
    (2, "half_life"): ("stage 2: by the half-life", "C2"),
    (3, "batch_size"): ("stage 3: nearby", "C3"),
    (4, "seeds"): ("stage 4: fresh seeds", "C4"),
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


def draw_critical(result: "CriticalBatch", axes: Axes, proxy: Estimate | None) -> None:
    """Examples to the target loss over their least, e/e_0, against the batch size B.

    The law is 1 + B/b; its band is b's interval. Without an upper end of b, it reaches down to 1.
    """
    shown = [o for o in result.outcomes if math.isfinite(o.examples.value)]
    if not shown:
        axes.text(0.5, 0.5, "no branch reached the target loss", ha="center")
        return
    B = np.array([o.batch_size for o in shown], float)
    b = result.critical_batch_size
    measured = [("C0", "direct", b)] + ([("C3", "proxy, from gradients", proxy)] if proxy else [])
    sizes = [o.batch_size for o in result.outcomes]
    grid = np.geomspace(min(sizes) / 1.5, max(sizes) * 1.5, 101)
    for colour, name, estimate in measured:
        if math.isfinite(estimate.value):
            label = f"{name}: {estimate}"
            axes.plot(grid, 1 + grid / estimate.value, color=colour, label=label)
        if estimate.low > 0:
            axes.fill_between(
                grid, 1 + grid / estimate.high, 1 + grid / estimate.low, color=colour, alpha=0.15
            )
    # e_0 by the law, from the same points; of an unresolved one they all are e_0.
    grown = 1 + B / b.value if math.isfinite(b.value) else np.ones_like(B)
    at = np.array([o.examples.value for o in shown])
    least = float((at / grown).mean())
    reach = np.array([o.examples.high - o.examples.value for o in shown])
    axes.errorbar(B, at / least, yerr=reach / least, fmt="o", color="black", capsize=2)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="batch size B",
        ylabel=f"examples to a loss of {result.target_loss:.3g}, over the least",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    if any(math.isfinite(estimate.value) for _, _, estimate in measured):
        axes.legend(fontsize="small", title="critical batch size")
