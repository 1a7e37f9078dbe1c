"""A watched run as pictures: the critical batch size through training, and what batches cost."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisescale.noise.watch.advice import Advice
    from noisescale.noise.watch.record import Row

_POINTS = 2000  # more than a picture can show


def draw_history(rows: "Sequence[Row]", unit: str, axes: "Axes") -> None:
    """The critical batch size against updates with its interval, and the run's batch size.

    While only a lower bound is known, the band reaches to the upper edge.
    """
    shown = rows[:: max(1, math.ceil(len(rows) / _POINTS))]
    update, value, low, high, batch, latest = (
        np.array([getattr(row, name) for row in shown], float)
        for name in ("update", "critical_batch_size", "low", "high", "batch_size", "latest")
    )
    bounded = np.isfinite(high) & (value > 0)
    known = np.concatenate([value[bounded], batch])
    bounds = low[low > 0]  # NaN is not
    top = 10 * float(np.concatenate([known, bounds]).max()) if known.size else 10.0
    bottom = float(known.min()) / 3 if known.size else 0.1
    seen = np.isfinite(low)
    axes.fill_between(
        update[seen],
        np.clip(low[seen], bottom, top),
        np.clip(np.where(np.isnan(high[seen]), math.inf, high[seen]), bottom, top),
        color="C0",
        alpha=0.2,
        linewidth=0,
        label="95 % interval",
    )
    axes.plot(update, np.where(bounded, value, np.nan), color="C0", label="critical batch size")
    inside = (latest > bottom) & (latest < top)  # NaN is not
    axes.plot(
        update[inside], latest[inside], ".", ms=2, color="C2", label="of the latest updates alone"
    )
    axes.plot(update, batch, "--", color="C1", label="the run's batch")
    axes.set(yscale="log", xlabel="updates", ylabel=f"batch size, {unit}s", ylim=(bottom, top))
    axes.legend(fontsize="small")


def draw_advice(advice: "Advice", axes: "Axes") -> None:
    """Updates and examples to the same loss against the batch size; 1 is the run itself."""
    from noisescale.noise.watch.advice import costs_at

    factors = np.geomspace(1 / 8, 16, 61)
    costs = [costs_at(advice.batch_size, k, advice.critical_batch_size) for k in factors]
    sizes = factors * advice.batch_size
    for colour, name in (("C0", "updates"), ("C3", "examples")):
        ratios = [getattr(cost, name) for cost in costs]
        axes.fill_between(
            sizes, [r.low for r in ratios], [r.high for r in ratios], color=colour, alpha=0.2, lw=0
        )
        axes.plot(sizes, [r.value for r in ratios], color=colour, label=name)
    axes.axvline(advice.batch_size, linestyle="--", color="C1", label="the run's batch")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=f"batch size, {advice.unit}s",
        ylabel="to the same loss, run = 1",
    )
    axes.legend(fontsize="small")
