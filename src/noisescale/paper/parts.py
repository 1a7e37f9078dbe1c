"""Parts of a long measurement, made by workers and kept one by one.

A part is a call ``measure(context, **arguments)`` that returns plain data. Whoever needs many of
them has them made ahead: those that the folder lacks go through an engine, one thread each, and are
written when they come back, so that a section that was killed goes on from what had finished.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from noisescale.jobs.engines import Engine
from noisescale.jobs.execution import execute
from noisescale.jobs.progress import Progress
from noisescale.paper.keeping import has_part, keep_part, part_name
from noisescale.plain import to_plain

_WORK = "noisescale.paper.part_work:measure_parts"
_RETRIES = 1


@dataclass(frozen=True)
class Part:
    """A part to be measured.

    Attributes:
        measure: a function of a module, ``measure(context, **arguments)``.
        scale, data, fingerprint, version: of the context.
        cost: rough seconds, in which parts are ordered and their progress told.
    """

    measure: Callable[..., Any]
    arguments: Mapping[str, Any]
    scale: str
    data: str
    fingerprint: str
    version: int
    cost: float = 1.0

    @cached_property
    def depends_on(self) -> dict[str, Any]:
        """All that the part answers for."""
        return {
            "part": _named(self.measure),
            "arguments": dict(self.arguments),
            "scale": self.scale,
            "data": self.fingerprint,
            "version": self.version,
        }

    @cached_property
    def canonical(self) -> str:
        """The same as JSON."""
        return json.dumps(to_plain(self.depends_on), sort_keys=True)

    @cached_property
    def key(self) -> str:
        """Its name among the parts of a folder."""
        return part_name(self.depends_on)

    @property
    def shape(self) -> tuple[object, ...]:
        """Its own: each part is a task."""
        return (self.key,)

    def to_dict(self) -> dict[str, Any]:
        """What a worker is given."""
        return {
            "measure": _named(self.measure),
            "arguments": dict(self.arguments),
            "scale": self.scale,
            "data": self.data,
            "fingerprint": self.fingerprint,
        }

    def merit(self, final: Mapping[str, Any]) -> tuple[float, str] | None:
        """None: parts do not compete."""
        return None


def _named(measure: Callable[..., Any]) -> str:
    return f"{measure.__module__}:{measure.__name__}"


class _Folder:
    """The parts of a report's folder, as a store that runs are executed into."""

    def __init__(self, folder: Path, parts: Iterable[Part]) -> None:
        self._folder = folder
        self._parts = {part.key: part for part in parts}
        self.failures: list[str] = []

    def statuses(self, keys: Iterable[str]) -> dict[str, str]:
        return {key: "done" for key in keys if self._is_kept(key)}

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        for record in records:
            if record["status"] == "failed":
                self.failures.append(str(record["error"]).strip().splitlines()[-1])
            else:
                part = self._parts[record["key"]]
                keep_part(self._folder, part.depends_on, record["final"]["value"])

    def _is_kept(self, key: str) -> bool:
        return has_part(self._folder, self._parts[key].depends_on)


def make_parts(folder: Path, parts: Sequence[Part], engine: Engine, progress: Progress) -> None:
    """Measure what ``folder`` lacks of ``parts``; those that fail are told when all have ended."""
    parts = list({part.key: part for part in parts}.values())  # each once
    kept = _Folder(folder, parts)
    stored = kept.statuses(part.key for part in parts)
    missing = [part for part in parts if part.key not in stored]
    if not missing:
        return
    execute(
        missing,
        kept,
        engine,
        (_WORK,),
        retries=_RETRIES,
        final={"done"},
        n_stored=len(stored),
        progress=progress,
    )
    if kept.failures:
        raise RuntimeError(
            f"{len(kept.failures)} of {len(parts)} parts failed, the first: {kept.failures[0]}"
        )
