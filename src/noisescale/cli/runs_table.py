"""Runs as a table on the terminal."""

from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from noisescale.sweep.config import METRICS
from noisescale.text import printable

_CIRCUMSTANCES = ("error", "host", "finished", "versions", "n_classes", "diverged_at", "steps_done")


def runs_table(frame: pd.DataFrame) -> Table:
    """The columns in which the runs differ, and how they ended."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    results = [name for name in ("test_accuracy", "score") if name in frame]
    columns = ["key", *varying(frame), "status", *results, "duration"]
    for column in columns:
        shown.add_column(
            escape(printable(column)), justify="left" if column in ("key", "status") else "right"
        )
    for _, row in frame.iterrows():
        shown.add_row(*(escape(printable(_cell(column, row[column]))) for column in columns))
    return shown


def varying(frame: pd.DataFrame) -> list[str]:
    """The settings in which runs differ."""
    hidden = {"key", "status", "duration", "data_fingerprint", "score", *METRICS, *_CIRCUMSTANCES}
    names = [
        column
        for column in frame.columns
        if column not in hidden and frame[column].map(str).nunique() > 1
    ]
    # What a model is says no more than its name does, unless it has changed.
    if "model_fingerprint" in names and not _several(frame, "model", "model_fingerprint"):
        names.remove("model_fingerprint")
    return names


def _several(frame: pd.DataFrame, name: str, version: str) -> bool:
    return bool(frame.groupby(name)[version].nunique().max() > 1)


def as_keys(frame: pd.DataFrame, names: list[str]) -> list["pd.Series[Any]"]:
    """Columns to group by: lists, which cannot be, as text."""
    return [frame[name].map(str) if frame[name].dtype == object else frame[name] for name in names]


def _cell(column: str, value: Any) -> str:
    if column == "key":
        return str(value)[:10]
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values"
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4g}"
    return str(value)
