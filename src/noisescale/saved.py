"""Results as JSON files that can be read again.

JSON has no number for what is not known, null here, nor for infinity, a word here.
"""

import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from noisescale.checks import check_path
from noisescale.errors import InputError

_INFINITE = "infinite"


def write_saved(path: Path | str, kind: str, content: dict[str, Any]) -> None:
    """Write a result of this ``kind`` into a ``.json`` file."""
    path = check_path("path", path)
    if path.suffix.lower() != ".json":
        raise InputError(f"a result is saved in a file that ends in .json, got {path}.")
    text = json.dumps(to_json({"kind": kind} | content), indent=1, allow_nan=False)
    write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a file, or say in a sentence why it cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}): choose another place."
        ) from None


def read_text(path: Path) -> str:
    """The text of a file, or a sentence why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"{path} cannot be read ({reason}).") from None


def kind_of(path: Path) -> str | None:
    """What kind of result a file says it holds; None if it says nothing."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError):
        return None
    kind = content.get("kind") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else None


def read_saved(path: Path | str, kind: str, nothing: Collection[str] = ()) -> dict[str, Any]:
    """What :func:`write_saved` wrote; the names in ``nothing`` may be None, others NaN."""
    path = check_path("path", path)
    try:
        content = from_json(json.loads(read_text(path)), nothing)
        if content["kind"] != kind:
            raise KeyError("kind")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is no {kind} that save wrote ({type(error).__name__}: {error})."
        ) from None
    return {name: value for name, value in content.items() if name != "kind"}


def to_json(value: Any) -> Any:
    """With words for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: to_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _INFINITE if value == math.inf else None
    return value


def from_json(value: Any, nothing: Collection[str] = ("n_train",)) -> Any:
    """What :func:`to_json` was given; the names in ``nothing`` may be None, others are NaN."""
    if isinstance(value, dict):
        return {
            key: math.nan if part is None and key not in nothing else from_json(part, nothing)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [from_json(part, nothing) for part in value]
    return math.inf if value == _INFINITE else value
