"""A frame of runs: chosen by conditions, exported, as JSON."""

import json
import operator
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.checks import shown
from noisescale.errors import InputError
from noisescale.files import write_whole
from noisescale.jobs.record import last_line

_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


def choose(frame: pd.DataFrame, conditions: Iterable[str], sort: str) -> pd.DataFrame:
    """The rows that meet every condition, such as ``batch_size<30 and status=done``."""
    if frame.empty:
        return frame
    for condition in (test for joined in conditions for test in joined.split(" and ")):
        match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|<|>|=)(?!=)\s*(.*?)\s*", condition)
        if match is None:
            raise InputError(f"a condition must be like 'batch_size<30', got {shown(condition)}.")
        column, sign, text = match.groups()
        _check_column(frame, column)
        frame = frame[_passes(frame[column], sign, text)]
    _check_column(frame, sort)
    order = frame[sort].map(str) if frame[sort].dtype == object else frame[sort]
    return frame.assign(_order=order).sort_values(["_order", "key"]).drop(columns="_order")


def _passes(values: "pd.Series[Any]", sign: str, text: str) -> "pd.Series[bool]":
    """Which values meet the condition: numbers by size, anything else if it reads like ``text``."""
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if not numeric and sign == "=":
        return values.map(str) == text
    try:
        if not numeric:
            raise ValueError
        return _TESTS[sign](values, float(text)).fillna(False).astype(bool)  # type: ignore[no-any-return]
    except ValueError:
        raise InputError(f"{values.name} cannot be compared with {shown(text)}.") from None


def export_frame(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as CSV or Parquet, by the ending of ``path``."""
    # Lists, and columns that hold several types, are JSON in both formats.
    plain = frame.copy()
    for column in plain:
        if column in ("hidden_widths", "evaluate_at") or _is_mixed(plain[column]):
            plain[column] = plain[column].map(json.dumps, na_action="ignore")
    try:
        if path.suffix == ".csv":
            content: str | bytes = plain.to_csv(index=False)
        elif path.suffix == ".parquet":
            content = plain.to_parquet(index=False)
        else:
            raise InputError(f"the export must end in .csv or .parquet, got {str(path)!r}.")
    except ImportError:
        raise InputError(
            "Parquet needs pyarrow: install noisescale[parquet], or export to .csv."
        ) from None
    write_whole(path, content)


def to_json(frame: pd.DataFrame) -> str:
    """A list of objects, a run each, to the last digit."""
    rows = frame.to_dict(orient="records")
    return json.dumps([{str(k): _json_value(v) for k, v in row.items()} for row in rows])


def first_failure(frame: pd.DataFrame) -> str | None:
    """The last line of the first failed run's traceback."""
    failed = frame[frame["status"] == "failed"]
    return None if failed.empty else last_line(failed["error"].iloc[0])


def _is_mixed(values: "pd.Series[Any]") -> bool:
    """Whether no column of an exported file can hold the values as they are."""
    types = {type(value) for value in values.dropna()} if values.dtype == object else set()
    return len(types) > 1 or bool(types & {list, dict})


def _check_column(frame: pd.DataFrame, column: str) -> None:
    if column not in frame:
        raise InputError(f"a run has no {column!r}: it has {', '.join(frame.columns)}.")


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return value
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
