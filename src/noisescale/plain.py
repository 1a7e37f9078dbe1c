"""Values as JSON has them, and back by the types that they were declared with.

JSON has no tuples, no arrays, no NaN and no keys but text, so values are written by what they are
and read by what the dataclass declares: a mapping whose keys are not text is a list of pairs, NaN
and infinity are words, an array is nested lists. A class that is kept otherwise has ``as_plain``
and ``of_plain``.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from noisescale.checks import shown

_WORDS = ("inf", "-inf")


def to_plain(value: Any) -> Any:
    """``value`` as JSON has it."""
    if hasattr(value, "as_plain"):
        return value.as_plain()
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


def from_plain(kind: Any, plain: Any, source: Any = None) -> Any:
    """What :func:`to_plain` was given, by its type; ``source`` has what is kept elsewhere.

    Whatever is not of its type is a ValueError that names the field, whoever wrote it.
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
        return {
            from_plain(parts[0], k, source): _part(f"[{shown(k)}]", parts[1], v, source)
            for k, v in items
        }
    if origin in (list, tuple):
        plain = _listed(kind, plain)
        kinds = parts if origin is tuple and parts[1:] != (...,) else [parts[0]] * len(plain)
        pairs = zip(kinds, plain, strict=True)
        return origin(_part(f"[{k}]", *pair, source) for k, pair in enumerate(pairs))
    if hasattr(kind, "of_plain"):
        return kind.of_plain(plain, source)
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


def _made(kind: Any, plain: Any, source: Any) -> Any:
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
    return kind(**{k: _part(k, hints[k], part, source) for k, part in plain.items()})


class _FieldError(ValueError):
    """What is wrong with a field, by its path."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"field {path}: {reason}")
        self.path, self.reason = path, reason


def _part(name: str, kind: Any, plain: Any, source: Any) -> Any:
    """A field or an entry; what is wrong with it is said with its name."""
    try:
        return from_plain(kind, plain, source)
    except _FieldError as error:
        dot = "" if error.path.startswith("[") else "."
        raise _FieldError(f"{name}{dot}{error.path}", error.reason) from None
    except (ValueError, OverflowError) as error:
        raise _FieldError(name, str(error).rstrip(".")) from None


def _number(plain: Any) -> float:
    """A number, or a word for one that JSON does not have; null was NaN once."""
    if plain is None or plain == "nan":
        return math.nan
    if type(plain) in (int, float) or plain in _WORDS:
        return float(plain)
    if plain == "infinite":  # a word that results had once
        return math.inf
    raise _not_of(float, plain)


def _array(plain: Any, dtype: Any) -> Any:
    """Nested lists, all of whose ends are of a type."""
    array = np.array(_listed(np.ndarray, plain), object)
    if dtype is np.float64:
        ends = [_number(end) for end in array.flat]
    else:
        ends = [from_plain(type(dtype().item()), end) for end in array.flat]
    return np.array(ends, dtype).reshape(array.shape)
