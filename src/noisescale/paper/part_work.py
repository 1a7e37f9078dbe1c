"""One part of a measurement, from its name to its record. This is what workers execute."""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from noisescale.data import Dataset, load_kept
from noisescale.errors import InputError
from noisescale.jobs.progress import Progress
from noisescale.jobs.record import guarded
from noisescale.paper.section import ScaleName
from noisescale.plain import to_plain


@dataclass(frozen=True)
class _Workplace:
    """What a part has of a context in a worker."""

    data: Dataset
    scale: ScaleName
    progress: Progress = field(default_factory=Progress)


def measure_parts(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each part; one that fails has ``error`` in place of a value."""
    return [guarded(lambda: _record(**part)) for part in parts]  # noqa: B023


def _record(
    measure: str, arguments: dict[str, Any], scale: ScaleName, data: str, fingerprint: str
) -> dict[str, Any]:
    images = load_kept(data)
    if images.fingerprint != fingerprint:
        raise InputError(f"the data set {data} has other content here than where it was asked for.")
    module, _, name = measure.partition(":")
    value = getattr(import_module(module), name)(_Workplace(images, scale), **arguments)
    return {"status": "done", "error": None, "history": {}, "final": {"value": to_plain(value)}}
