"""Work that a store knows by its content: its key is the sha256 of canonical JSON."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

from noisescale.jobs.record import RESULT_FORMAT


@dataclass(frozen=True)
class Keyed:
    """A piece of work whose fields are all that it depends on.

    A subclass adds the fields, its ``kind``, by which works of equal fields differ, and ``cost``.
    How long users' code takes is not known beforehand, so each piece is a task of its own.
    """

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """What a worker is given: the fields by name."""
        return asdict(self)

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON that the key is the hash of."""
        content = self.to_dict() | {"kind": self.kind, "format": RESULT_FORMAT}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def key(self) -> str:
        """Its name in a store."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def shape(self) -> tuple[object, ...]:
        """What short works must share to be executed together: its own."""
        return (self.key,)

    def merit(self, final: Mapping[str, Any]) -> tuple[float, str] | None:
        """How progress tells the best so far; None where works do not compete."""
        return None
