"""Plain data on disk: dataclasses as JSON, runs by their keys, whole or not at all.

JSON has no tuples, no arrays, no NaN and no keys but text, so values are written by what they are
and read by what the dataclass declares: a mapping whose keys are not text is a list of pairs, NaN
is null, an array is nested lists, runs are their keys, looked up where runs are kept.
"""

import hashlib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from noisescale.jobs.store import RunSource
from noisescale.paper.runs import Runs


def to_plain(value: Any) -> Any:
    """``value`` as JSON has it."""
    if isinstance(value, Runs):
        return value.keys
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value) if f.init}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_plain(part) for key, part in value.items()}
        return [[to_plain(key), to_plain(part)] for key, part in value.items()]
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"data must be plain, got {type(value).__name__}")


def from_plain(kind: Any, plain: Any, source: RunSource | None = None) -> Any:
    """What :func:`to_plain` was given, by its type; runs come from ``source``."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or kind is None:
        return plain
    if origin in (Union, types.UnionType):
        if plain is None and type(None) in parts:
            return None
        present = [part for part in parts if part is not type(None)]
        if len(present) > 1:  # dataclasses, told apart by what was written
            present = [part for part in present if _has_fields(part, plain)][:1]
        (only,) = present
        return from_plain(only, plain, source)
    if origin is Literal:
        return plain
    if origin is np.ndarray or kind is np.ndarray:
        dtype = get_args(parts[1])[0] if parts else float
        return np.array(plain, dtype) if dtype is not np.float64 else _floats(plain)
    if origin in (dict, Mapping):
        items = plain.items() if isinstance(plain, dict) else plain
        return {from_plain(parts[0], k, source): from_plain(parts[1], v, source) for k, v in items}
    if origin is list:
        return [from_plain(parts[0], part, source) for part in plain]
    if origin is tuple:
        kinds = [parts[0]] * len(plain) if parts[1:] == (...,) else parts
        return tuple(from_plain(k, part, source) for k, part in zip(kinds, plain, strict=True))
    if kind is Runs:
        if source is None:
            raise TypeError("runs are kept by their keys alone: say where the runs are")
        return Runs.of(source, plain)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        made: Any = kind
        return made(**{k: from_plain(hints[k], part, source) for k, part in plain.items()})
    if kind is float:
        return math.nan if plain is None else float(plain)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    return plain


def _has_fields(kind: Any, plain: Any) -> bool:
    return is_dataclass(kind) and set(plain) <= {entry.name for entry in fields(kind)}


def _floats(plain: Any) -> Any:
    """Nested lists of numbers as an array, null as NaN."""
    return np.array(plain, object).astype(float) if plain else np.array(plain, float)


def write_whole(path: Path, text: str) -> None:
    """Write whole or not at all: an interrupted run leaves the old file readable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Plain values as JSON, an entry a line."""
    lines = (f"{json.dumps(name)}: {_compact(value)}" for name, value in document.items())
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_document(path: Path, names: set[str]) -> dict[str, Any] | None:
    """The document, if there is one that can be read and has these entries."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and names <= set(content) else None


def part_name(key: dict[str, Any]) -> str:
    """The name of a part by all that it depends on."""
    text = json.dumps(to_plain(key), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _part_path(folder: Path, key: dict[str, Any]) -> Path:
    return folder / "measured" / "parts" / f"{part_name(key)}.json"


def keep_part(folder: Path, key: dict[str, Any], value: Any) -> None:
    """Keep a part of a measurement under all that it depends on."""
    write_document(_part_path(folder, key), {"key": to_plain(key), "value": to_plain(value)})


def has_part(folder: Path, key: dict[str, Any]) -> bool:
    """Whether the part is kept and can be read."""
    return read_part(folder, key, Any)[0]


def read_part(folder: Path, key: dict[str, Any], kind: Any) -> tuple[bool, Any]:
    """Whether the part is kept, and what it is (which may be None)."""
    document = read_document(_part_path(folder, key), {"key", "value"})
    return (False, None) if document is None else (True, from_plain(kind, document["value"]))
