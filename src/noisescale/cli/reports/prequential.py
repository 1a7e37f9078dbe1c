"""Bets on the next block: the evidence of a training procedure, or the stages of a store alone."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from noisescale.cli.reports.page import Chapter, Download, Table, picture
from noisescale.drawing import literal
from noisescale.evidence.prequential.mixture import mix
from noisescale.evidence.prequential.result import PrequentialEvidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUESTION = "Has this procedure learnt?"


def prequential_chapter(evidence: PrequentialEvidence) -> Chapter:
    """What a whole prequential evidence says."""
    curve, table = evidence.learning_curve, evidence.table
    orders = f"{evidence.n_orders} order{'s' if evidence.n_orders > 1 else ''}"
    by_order = f"; over orders {evidence.E_of_orders}" if evidence.n_orders > 1 else ""
    return Chapter(
        question=_QUESTION,
        about=(
            f"{evidence.n_train:,} examples in {len(evidence.ends)} blocks and {orders}, null "
            f"model {evidence.null}."
        ),
        answer=(
            f"E = {evidence.E:.4g} nats{by_order}: {evidence.verdict}.",
            f"The log evidence is {evidence.log_evidence:.6g}, the null model's "
            f"{evidence.log_null:.6g}.",
        ),
        notes=evidence.notes,
        pictures=(
            picture(
                evidence.plot,
                "Nats paid for each of the next examples against the examples seen: a line an "
                "order, their mean, and the null model.",
            ),
        ),
        tables=(
            Table.of(
                "Learning curve, means over orders",
                [str(name) for name in curve.columns],
                list(curve.itertuples(index=False)),
            ),
        ),
        downloads=(Download("blocks.csv", "every block", table.to_csv(index=False)),),
    )


def stages_chapter(frame: pd.DataFrame, curves: pd.DataFrame) -> Chapter:
    """What the stages of a store say by themselves: what the next examples cost."""
    done = frame[frame["status"] == "done"]
    curve = _learning_curve(done, curves)
    failed = int((frame["status"] == "failed").sum())
    answer = "No stage has come to its end yet."
    if len(curve):
        first, last = curve.iloc[0], curve.iloc[-1]
        answer = (
            f"After {first['n_seen']:.0f} examples the next cost {first['loss']:.3g} nats each, "
            f"after {last['n_seen']:.0f} they cost {last['loss']:.3g}."
        )
    return Chapter(
        question=_QUESTION,
        about=(
            f"{len(frame)} stages ({failed} failed). E needs the null model, which a store does "
            "not hold: keep the whole result with `evidence.save`."
        ),
        answer=(answer,),
        pictures=(
            picture(
                lambda axes: _draw(axes, curve),
                "Nats paid for each of the next examples against the examples seen, by the "
                "mixture of temperatures; a colour a procedure, means over orders.",
            ),
        )
        if len(curve)
        else (),
        tables=(
            Table.of(
                "Learning curve, means over orders",
                list(curve.columns),
                list(curve.itertuples(index=False)),
            ),
        ),
        downloads=(
            Download("stages.csv", "all stages", frame.to_csv(index=False)),
            Download("losses.csv", "what each temperature paid", curves.to_csv(index=False)),
        ),
    )


def _learning_curve(done: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Nats an example by procedure and examples seen, from orders whose blocks are all there."""
    rows = []
    for names, stages in done.groupby(["procedure", "seed", "order"]):
        stages = stages.sort_values("start")
        losses = [
            curves.loc[curves["key"] == key, "loss"].astype(float).fillna(np.inf).to_numpy()
            for key in stages["key"]
        ]
        if len({len(part) for part in losses}) != 1 or not len(losses[0]):
            continue
        paid = mix(np.array(losses)).losses
        procedure = str(names[0])[:12]
        blocks = stages[["start", "stop", "score"]].astype(float).to_numpy()
        for loss, (start, stop, score) in zip(paid, blocks, strict=True):
            rows.append((procedure, int(start), int(stop - start), loss / (stop - start), score))
    columns = ["procedure", "n_seen", "n_paid", "loss", "score"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.groupby(["procedure", "n_seen"], sort=True).mean().reset_index()


def _draw(axes: "Axes", curve: pd.DataFrame) -> None:
    for procedure, part in curve.groupby("procedure"):
        axes.plot(part["n_seen"], part["loss"], "o-", label=literal(str(procedure)))
    axes.set(xscale="log", xlabel="examples seen", ylabel="nats paid for each of the next")
    if curve["procedure"].nunique() > 1:
        axes.legend(fontsize="small")
