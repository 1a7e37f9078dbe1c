"""A learning curve as a picture."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from noisescale.evidence.prequential.result import PrequentialEvidence


def draw_curve(evidence: "PrequentialEvidence", axes: "Axes") -> None:
    """Nats paid an example against examples seen: a line an order, their mean, and the null."""
    table = evidence.table[evidence.table["n_seen"] > 0]
    for _, rows in table.groupby("order"):
        axes.plot(rows["n_seen"], rows["loss"], color="C0", alpha=0.35, linewidth=1)
    curve = evidence.learning_curve
    axes.plot(curve["n_seen"], curve["loss"], "o-", color="C0", label="the procedure, mean")
    axes.plot(curve["n_seen"], curve["null_loss"], "--", color="grey", label="the null model")
    axes.set(
        xscale="log",
        xlabel="examples seen",
        ylabel="nats paid for each of the next",
        title=f"E = {evidence.E:.4g}",
    )
    axes.legend(fontsize="small")
