"""The pictures of figure 11: E by labels and kind, and the ladder of batch sizes."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.batches import SMALL
from noisescale.paper.bets import AtMap, Bet
from noisescale.paper.section import Picture
from noisescale.paper.style import plain_log


def draw_labels(
    maps: Sequence[AtMap], bets: dict[str, list[Bet]], priors: Sequence[float]
) -> Picture:
    """E by labels and kind of evidence, a point a seed; ``bets`` by labels."""
    rows: list[tuple[str, list[float], int]] = []
    for colour, (labels, own) in enumerate(bets.items()):
        rows += [
            (
                f"{labels}, at the MAP, prior {prior:g}",
                [m.E for m in maps if (m.labels, m.prior_precision) == (labels, prior)],
                colour,
            )
            for prior in priors
        ]
        small = [b.E for b in own if b.batch_size == SMALL]
        rows.append((f"{labels}, prequential", small, colour))
    with house_style():
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for k, (_, E, colour) in enumerate(rows):
            axes.plot(E, [k] * len(E), "o", color=COLOURS[colour])
        axes.axvline(0, color="grey", linewidth=0.8)
        axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axes.invert_yaxis()
        axes.set(xlabel="E: below 0 the network is believed, above it guessing is")
        svg = to_svg(figure)
    told = "; ".join(f"{name}: E = {np.mean(E):.0f}" for name, E, _ in rows if E)
    return Picture(
        name="figure11-labels",
        svg=svg,
        caption=f"The paper's network from B = {SMALL} with true and with random labels: E at the "
        "MAP under priors fixed beforehand, and prequential. A point a seed.",
        alt=f"E by labels and kind of evidence: {told}.",
    )


def draw_ladder(tables: dict[str, dict[int, list[float]]], full: int) -> Picture:
    """Loss of the last block, E and accuracy by batch size, then by seed.

    ``full`` is the size of the last training's full batch, which the ladder's last rung stands for.
    """
    panels = (
        ("last_loss", "last block, nats an example"),
        ("E", "prequential E, all blocks"),
        ("test_accuracy", "test accuracy of the last network"),
    )
    losses, accuracies = tables["last_loss"], tables["test_accuracy"]
    rungs = list(losses)
    places = [min(B, full) for B in rungs]
    with house_style():
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        for axes, (name, label) in zip(figure.subplots(1, 3), panels, strict=True):
            table = np.array([tables[name][B] for B in rungs])  # (rungs, seeds)
            for seed, column in enumerate(table.T):
                axes.plot(places, column, color=COLOURS[seed % len(COLOURS)], alpha=0.5)
            axes.plot(places, table.mean(axis=1), "ko-", markersize=4)
            axes.set(xscale="log", xlabel="batch size B", ylabel=label)
            plain_log(axes.xaxis)
        svg = to_svg(figure)
    told = "; ".join(
        f"B = {named(B, rungs)}: {np.mean(losses[B]):.3f} nats, {np.mean(accuracies[B]):.3f}"
        for B in rungs
    )
    return Picture(
        name="figure11",
        svg=svg,
        caption="The prequential evidence by batch size: what the networks trained on the first "
        "half pay for the second, the sum over all blocks, and the test accuracy of the same "
        "networks. A line a seed, the mean in black; the last point is the full batch.",
        alt=f"Three charts against the batch size; last block's loss and test accuracy: {told}.",
    )


def named(batch_size: int, ladder: Sequence[int]) -> int | str:
    """A rung of the ladder, whose last one is the full batch."""
    return "full" if batch_size == ladder[-1] else batch_size
