"""Results as JSON files that can be read again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from noisescale.checks import check_path
from noisescale.errors import InputError
from noisescale.files import read_text, write_whole
from noisescale.plain import to_plain

T = TypeVar("T")


def write_saved(path: Path | str, kind: str, result: Any) -> None:
    """Write a result of this ``kind`` into a ``.json`` file."""
    path = check_path("path", path)
    if path.suffix.lower() != ".json":
        raise InputError(f"a result is saved in a file that ends in .json, got {path}.")
    write_whole(path, json.dumps({"kind": kind} | to_plain(result), indent=1, allow_nan=False))


def kind_of(path: Path) -> str | None:
    """What kind of result a file says it holds; None if it says nothing."""
    try:
        content = json.loads(read_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError):
        return None
    kind = content.get("kind") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else None


def read_saved(path: Path | str, kind: str, read: Callable[[Any], T]) -> T:
    """What ``read`` makes of the plain values that :func:`write_saved` wrote."""

    def of_this_kind(content: Any) -> T:
        if not isinstance(content, dict) or content.get("kind") != kind:
            raise ValueError(f"it does not say that it is a {kind}")
        return read({name: part for name, part in content.items() if name != "kind"})

    return read_json(check_path("path", path), f"is no {kind} that save wrote", of_this_kind)


def read_json(path: Path, otherwise: str, read: Callable[[Any], T]) -> T:
    """What ``read`` makes of the JSON in a file.

    Whatever is wrong with it is a sentence that names the file and says what it is ``otherwise``.
    """
    text = read_text(path)
    try:
        return read(json.loads(text))
    except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        reason = error.args[0] if isinstance(error, KeyError) else error
        raise InputError(f"{path} {otherwise}: {str(reason).rstrip('.')}.") from None
