"""A row of a store: its columns, and the one reader that says whether it is whole.

The key is the configuration's hash, a checksum holds the rest, and the JSON is of the types that
frames are made of. Rows from before there was a checksum have none, and are read without it.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from noisescale.checks import shown

Row = Mapping[str, Any]
T = TypeVar("T")

COLUMNS = (
    "key",
    "config",
    "status",
    "history",
    "final",
    "error",
    "duration",
    "versions",
    "host",
    "finished",
)
STATUSES = ("done", "diverged", "failed")
_JSON = ("config", "history", "final", "versions")
# Names that mean the same in every kind of run, and what else a run with such a name must have.
_TEXTS = {"kind", "function", "procedure", "model", "data"}
_NUMBERS = {
    *("batch_size", "learning_rate", "momentum", "steps", "seed", "n_train", "score"),
    *("order", "start", "stop", "test_accuracy", "train_accuracy"),
}
_TOGETHER = {
    "test_accuracy": {"batch_size"},
    "train_accuracy": {"batch_size"},
    "function": {"batch_size"},
    "procedure": {"seed", "order", "start", "stop"},
}
_MOST_NAMED = 5  # damaged rows that a sentence names


def checksum(row: Row) -> str | None:
    """The hash of all but key and configuration, which answer for each other.

    A failed run has none: an older version that tries it again would leave the old one there.
    """
    if row["status"] == "failed":
        return None
    content = json.dumps([row[name] for name in COLUMNS[2:]], default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def verify(row: Row) -> None:
    """ValueError if the row is not what was written: quick, without a look into its JSON."""
    for name in (*_JSON, "key", "error", "host", "finished"):
        if not isinstance(row[name], str) and (name != "error" or row[name] is not None):
            raise ValueError(f"its {name} is no text")
    if hashlib.sha256(row["config"].encode()).hexdigest() != row["key"]:
        raise ValueError("its key is not the hash of its configuration")
    if row["status"] not in STATUSES:
        raise ValueError(f"its status is {shown(row['status'])}")
    if row.get("checksum") not in (None, checksum(row)):
        raise ValueError("its result has changed since it was written")


def decode(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row's configuration and final numbers; ValueError says what is wrong with the row."""
    verify(row)
    if not isinstance(row["duration"], float) or not math.isfinite(row["duration"]):
        raise ValueError(f"its duration is {shown(row['duration'])}")
    config, final = (_parse(name, row[name]) for name in ("config", "final"))
    if row.get("checksum") is None:  # else these are what was looked at when they were written
        _parse("versions", row["versions"])
        history(row)
    told = {k: v for k, v in (config | final).items() if v is not None}
    for name, value in told.items():
        if name in _NUMBERS and not _is_number(value):
            raise ValueError(f"its {name} is {shown(value)}, no number")
        if name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"its {name} is {shown(value)}, no text")
        if missing := _TOGETHER.get(name, set()) - told.keys():
            raise ValueError(f"it has {name} and no {min(missing)}")
    return config, final


def history(row: Row) -> dict[str, list[Any]]:
    """A row's history: lists of numbers, all of one length."""
    columns = _parse("history", row["history"])
    lists = columns.values()
    if not all(isinstance(column, list) and all(map(_is_number, column)) for column in lists):
        raise ValueError("its history is not made of lists of numbers")
    if len({len(column) for column in lists}) > 1:
        raise ValueError("its history has lists of several lengths")
    return columns


def sound(rows: Iterable[Row], read: Callable[[Row], T]) -> list[T]:
    """What ``read`` makes of each row; a ValueError that names those that are damaged."""
    good, damaged = [], []
    for row in rows:
        try:
            good.append(read(row))
        except ValueError as error:
            damaged.append(f"run {str(row['key'])[:10]!r}: {error}")
    if damaged:
        more = len(damaged) - _MOST_NAMED
        raise ValueError(
            "; ".join(damaged[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        )
    return good


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _parse(name: str, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        raise ValueError(f"its {name} is no JSON, or has a number that is not finite") from None
    if not isinstance(content, dict):
        raise ValueError(f"its {name} is no JSON object")
    return content


def _whole(text: str) -> int | float:
    """A whole number; as a float what no column of whole numbers can hold."""
    number = int(text)
    return number if -(2**63) <= number < 2**63 else _finite(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
