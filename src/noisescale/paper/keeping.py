"""What a report keeps on disk: plain values as JSON, whole or not at all."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from noisescale.files import write_whole
from noisescale.plain import from_plain, to_plain
from noisescale.saved import read_json

T = TypeVar("T")


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Plain values as JSON, an entry a line."""
    lines = (f"{json.dumps(name)}: {_compact(value)}" for name, value in document.items())
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n", make_folder=True)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_document(path: Path, read: Callable[[Any], T]) -> T | None:
    """What ``read`` makes of the JSON in a file; None if there is no file.

    Whatever is wrong with a file that is there is a sentence that names it.
    """
    if not os.path.lexists(path):
        return None
    return read_json(path, "is not what `noisescale paper` writes, restore or remove it", read)


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
