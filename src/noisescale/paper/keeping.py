"""Plain data on disk: dataclasses as JSON, runs by their keys, whole or not at all.

JSON has no tuples, no arrays, no NaN and no keys but text, so values are written by what they are
and read by what the dataclass declares: a mapping whose keys are not text is a list of pairs, NaN
and infinity are words, an array is nested lists, runs are their keys, looked up where runs are
kept.
"""

import hashlib
import json
import math
import os
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from noisescale.checks import shown
from noisescale.errors import InputError
from noisescale.jobs.store import RunSource
from noisescale.paper.runs import Runs

T = TypeVar("T")
_WORDS = ("nan", "inf", "-inf")


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
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"data must be plain, got {type(value).__name__}")


def from_plain(kind: Any, plain: Any, source: RunSource | None = None) -> Any:
    """What :func:`to_plain` was given, by its type; runs come from ``source``.

    Whatever is not of its type is a ValueError, whoever wrote it.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or kind is None:
        return plain
    if origin in (Union, types.UnionType):
        if plain is None and type(None) in parts:
            return None
        present = [part for part in parts if part is not type(None)]
        if len(present) > 1:  # dataclasses, told apart by what was written
            present = [part for part in present if _has_fields(part, plain)][:1]
        if not present:
            raise _not_of(kind, plain)
        return from_plain(present[0], plain, source)
    if origin is Literal:
        if not any(type(plain) is type(choice) and plain == choice for choice in parts):
            raise _not_of(kind, plain)
        return plain
    if origin is np.ndarray or kind is np.ndarray:
        return _array(plain, get_args(parts[1])[0] if parts else np.float64)
    if origin in (dict, Mapping):
        items = plain.items() if isinstance(plain, dict) else _listed(kind, plain)
        return {from_plain(parts[0], k, source): from_plain(parts[1], v, source) for k, v in items}
    if origin is list:
        return [from_plain(parts[0], part, source) for part in _listed(kind, plain)]
    if origin is tuple:
        plain = _listed(kind, plain)
        kinds = [parts[0]] * len(plain) if parts[1:] == (...,) else parts
        return tuple(from_plain(k, part, source) for k, part in zip(kinds, plain, strict=True))
    if kind is Runs:
        if source is None:
            raise TypeError("runs are kept by their keys alone: say where the runs are")
        return Runs.of(source, from_plain(list[str], plain))
    if is_dataclass(kind):
        return _made(kind, plain, source)
    if kind is float:
        return _number(plain)
    if issubclass(kind, Enum):
        return kind(plain)
    if type(plain) is not kind:
        raise _not_of(kind, plain)
    return plain


def _not_of(kind: Any, plain: Any) -> ValueError:
    return ValueError(f"{shown(plain)} is not of type {getattr(kind, '__name__', kind)}")


def _listed(kind: Any, plain: Any) -> list[Any]:
    if not isinstance(plain, list):
        raise _not_of(kind, plain)
    return plain


def _has_fields(kind: Any, plain: Any) -> bool:
    if not is_dataclass(kind) or not isinstance(plain, dict):
        return False
    return set(plain) <= {entry.name for entry in fields(kind)}


def _made(kind: Any, plain: Any, source: RunSource | None) -> Any:
    """A dataclass of what was written of its fields: no other, and all that have no default."""
    if not isinstance(plain, dict):
        raise _not_of(kind, plain)
    written = {entry.name: entry for entry in fields(kind) if entry.init}
    if unknown := sorted(set(plain) - set(written)):
        raise ValueError(f"{kind.__name__} has no {shown(unknown[0])}")
    for name, entry in written.items():
        if name not in plain and entry.default is MISSING and entry.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} has a {name!r}, which is not there")
    hints = get_type_hints(kind)
    return kind(**{k: from_plain(hints[k], part, source) for k, part in plain.items()})


def _number(plain: Any) -> float:
    """A number, or a word for one that JSON does not have; null was NaN once."""
    if plain is None:
        return math.nan
    if type(plain) in (int, float) or plain in _WORDS:
        return float(plain)
    raise _not_of(float, plain)


def _array(plain: Any, dtype: Any) -> Any:
    """Nested lists, all of whose ends are of a type."""
    array = np.array(_listed(np.ndarray, plain), object)
    if dtype is np.float64:
        ends = [_number(end) for end in array.flat]
    else:
        ends = [from_plain(type(dtype().item()), end) for end in array.flat]
    return np.array(ends, dtype).reshape(array.shape)


def write_whole(path: Path, text: str) -> None:
    """Write whole or not at all: where that fails, the old file is what it was.

    A link or a pipe in the way is replaced, not written through.
    """
    unfinished = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.unlink(missing_ok=True)
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): make room for it, or choose another "
            "folder."
        ) from None
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Plain values as JSON, an entry a line."""
    lines = (f"{json.dumps(name)}: {_compact(value)}" for name, value in document.items())
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_document(path: Path, read: Callable[[Any], T]) -> T | None:
    """What ``read`` makes of the JSON in a file; None if there is no file.

    Whatever is wrong with a file that is there is a sentence that names it.
    """
    if not os.path.lexists(path):
        return None
    try:
        if not path.is_file():  # to read a pipe would wait for ever
            raise ValueError("it is not a file")
        return read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        raise InputError(
            f"{path} is not what `noisescale paper` writes ({reason}): restore it, or remove it."
        ) from None


def part_name(key: dict[str, Any]) -> str:
    """The name of a part by all that it depends on."""
    text = json.dumps(to_plain(key), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _part_path(folder: Path, key: dict[str, Any]) -> Path:
    return folder / "measured" / "parts" / f"{part_name(key)}.json"


def keep_part(folder: Path, key: dict[str, Any], value: Any) -> None:
    """Keep a part of a measurement under all that it depends on."""
    write_document(_part_path(folder, key), {"key": to_plain(key), "value": to_plain(value)})


@dataclass(frozen=True)
class _Part:
    """The document of a part."""

    key: Any
    value: Any


def has_part(folder: Path, key: dict[str, Any]) -> bool:
    """Whether the part is kept."""
    return read_part(folder, key, Any)[0]


def read_part(folder: Path, key: dict[str, Any], kind: Any) -> tuple[bool, Any]:
    """Whether the part is kept, and what it is (which may be None)."""
    kept = read_document(
        _part_path(folder, key),
        lambda plain: (True, from_plain(kind, from_plain(_Part, plain).value)),
    )
    return (False, None) if kept is None else kept
