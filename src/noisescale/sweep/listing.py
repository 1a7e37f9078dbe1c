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
from noisescale.jobs.store import METRICS

_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "==": operator.eq,
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
        match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|!=|<|>|==?)\s*(.*?)\s*", test)
        if match is None:
            raise InputError(f"--where must be like 'batch_size<=30', got {test!r}.")
        column, sign, text = match.groups()
        _check_column(frame, column)
        frame = frame[_passes(frame[column], sign, text)]
    _check_column(frame, sort)
    order = frame[sort].map(str) if frame[sort].dtype == object else frame[sort]
    return frame.assign(_order=order).sort_values(["_order", "key"]).drop(columns="_order")


def _passes(values: "pd.Series[Any]", sign: str, text: str) -> "pd.Series[bool]":
    """Which values pass the test against ``text``, read as JSON where it is JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if value is None and sign in ("=", "==", "!="):
        return values.isna() if sign != "!=" else values.notna()
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    wrong = InputError(f"{values.name} cannot be compared with {shown!r}.")
    if pd.api.types.is_numeric_dtype(values) and not isinstance(value, (int, float)):
        raise wrong
    if isinstance(value, (list, dict)):  # pandas would look for their elements
        values = values.map(lambda v: json.dumps(v) if isinstance(v, list) else None)
        value = json.dumps(value)
    try:
        return _TESTS[sign](values, value).fillna(False).astype(bool)  # type: ignore[no-any-return]
    except (TypeError, OverflowError):
        raise wrong from None


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
    # Lists, and columns that hold lists in some rows, are JSON in both formats.
    plain = frame.copy()
    for column in ("hidden_widths", "evaluate_at"):
        if column in plain:
            plain[column] = plain[column].map(json.dumps)
    try:
        if path.suffix == ".csv":
            plain.to_csv(path, index=False)
        elif path.suffix == ".parquet":
            plain.to_parquet(path, index=False)
        else:
            raise InputError(f"the export must end in .csv or .parquet, got {str(path)!r}.")
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow: install noisescale[parquet], or export to .csv."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}).") from None


def to_json(frame: pd.DataFrame) -> str:
    """A list of objects, a run each, to the last digit."""
    rows = frame.to_dict(orient="records")
    return json.dumps([{str(k): _json_value(v) for k, v in row.items()} for row in rows])


def first_failure(frame: pd.DataFrame) -> str | None:
    """The last line of the first failed run's traceback."""
    failed = frame[frame["status"] == "failed"]
    return None if failed.empty else str(failed["error"].iloc[0]).strip().splitlines()[-1]


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


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return value
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _cell(column: str, value: Any) -> str:
    if column == "key":
        return str(value)[:10]
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values"
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4g}"
    return str(value)
