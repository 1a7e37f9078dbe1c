"""The two-branch law as a picture."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisescale.noise.batch_law import BatchSizeLaw

_RATES = (0.1, 0.3, 1.0, 3.0)


def draw_law(law: "BatchSizeLaw", axes: "Axes", *, steps: int) -> None:
    """B_opt against N, a line an effective learning rate; the epoch branch alone is dashed."""
    sizes = np.unique(np.geomspace(1_000, 100_000, 41).round().astype(int))
    for k, rate in enumerate(_RATES):
        at = [law.predict(learning_rate=rate, n_train=int(n), steps=steps) for n in sizes]
        axes.plot(sizes, [best.value for best in at], color=f"C{k}", label=f"{rate:g}")
        axes.fill_between(
            sizes, [b.low for b in at], [b.high for b in at], color=f"C{k}", alpha=0.15, lw=0
        )
    axes.plot(sizes, law.epochs.value * sizes / steps, "--", color="grey", label="epochs alone")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="training examples N",
        ylabel="best batch size",
        title=f"{steps:,} updates",
    )
    axes.legend(title="ε/(1 - m)", fontsize="small")
