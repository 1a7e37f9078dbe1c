"""A watched run: its critical batch size through training, and what to do about it."""

from typing import TYPE_CHECKING

from noisescale.cli.reports.page import Chapter, Download, Table, picture

if TYPE_CHECKING:
    from noisescale.noise.watch.record import NoiseRecord

_ROWS = 20  # of a history, evenly spread over it


def watch_chapter(record: "NoiseRecord") -> Chapter:
    """The advice, the history and what batches would cost."""
    advice = record.advice()
    frame = record.history
    every = max(1, -(-len(frame) // _ROWS))
    shown = frame.iloc[::-every].iloc[::-1]  # the last among them
    many = "" if len(frame) == 1 else "s"
    return Chapter(
        question="How loud was this run?",
        about=f"{len(frame)} measured update{many}.",
        answer=advice.sentences,
        notes=record.notes,
        pictures=(
            picture(
                record.plot,
                "The critical batch size through training with its 95 % interval, and the run's "
                "batch. While only a lower bound is known, the band reaches to the upper edge.",
            ),
            picture(
                advice.plot,
                "Updates and examples to the same loss against the batch size, over those of the "
                "run (McCandlish et al. 2018), with the range that the interval leaves.",
            ),
        ),
        tables=(
            Table(
                "What batch sizes cost",
                (
                    f"Batch size, {advice.unit}s",
                    "Updates to the same loss",
                    "Examples to the same loss",
                ),
                tuple(advice.rows()),
            ),
            Table(
                "Numbers",
                tuple(shown.columns),
                tuple(
                    tuple(f"{value:.4g}" for value in row)
                    for row in shown.itertuples(index=False, name=None)
                ),
                folded=True,
            ),
        ),
        downloads=(Download("history.csv", "the history", frame.to_csv(index=False)),),
    )
