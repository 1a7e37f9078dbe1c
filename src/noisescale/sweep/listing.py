"""A store's runs for the command line: chosen, shown, exported."""

import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from noisescale.errors import InputError
from noisescale.sweep.store import METRICS

_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CIRCUMSTANCES = ("error", "host", "finished", "versions", "n_classes", "diverged_at", "steps_done")


def make_folder(folder: Path) -> Path:
    """The folder, made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the store cannot be put into {folder} ({error.strerror}): choose another --out."
        ) from None
    return folder


def choose(frame: pd.DataFrame, tests: list[str], sort: str) -> pd.DataFrame:
    """The rows that pass every test, such as ``batch_size<=30`` or ``status=diverged``."""
    if frame.empty:
        return frame
    for test in tests:
        match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|!=|<|>|=)\s*(.*?)\s*", test)
        if match is None:
            raise InputError(f"--where must be like 'batch_size<=30', got {test!r}.")
        column, sign, text = match.groups()
        _check_column(frame, column)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        values = frame[column]
        if isinstance(value, list):  # lists are not numbers to pandas
            values, value = values.map(json.dumps), json.dumps(value)
        try:
            frame = frame[_TESTS[sign](values, value).fillna(False).astype(bool)]
        except TypeError:
            raise InputError(f"{column} cannot be compared with {text!r}.") from None
    _check_column(frame, sort)
    return frame.sort_values([sort, "key"], kind="stable")


def table(frame: pd.DataFrame) -> Table:
    """The columns in which the runs differ, and how they ended."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    columns = ["key", *_varying(frame), "status", "test_accuracy", "duration"]
    for column in columns:
        shown.add_column(column, justify="left" if column in ("key", "status") else "right")
    for _, row in frame.iterrows():
        shown.add_row(*(escape(_cell(column, row[column])) for column in columns))
    return shown


def export_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV or Parquet, by the ending of ``path``."""
    try:
        if path.suffix == ".csv":
            frame.to_csv(path, index=False)
        elif path.suffix == ".parquet":
            frame.to_parquet(path, index=False)
        else:
            raise InputError(f"the export must end in .csv or .parquet, got {str(path)!r}.")
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow: install noisescale[parquet], or export to .csv."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from None


def _varying(frame: pd.DataFrame) -> list[str]:
    hidden = {"key", "status", "duration", "data_fingerprint", *METRICS, *_CIRCUMSTANCES}
    return [
        column
        for column in frame.columns
        if column not in hidden and frame[column].map(str).nunique() > 1
    ]


def _check_column(frame: pd.DataFrame, column: str) -> None:
    if column not in frame:
        raise InputError(f"a run has no {column!r}: it has {', '.join(frame.columns)}.")


def _cell(column: str, value: Any) -> str:
    if column == "key":
        return str(value)[:10]
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values"
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4g}"
    return str(value)
