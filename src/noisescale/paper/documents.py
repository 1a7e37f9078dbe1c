"""A section's data as a document: in the folder of a report, or shipped in results/."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisescale.jobs.store import RunSource
from noisescale.paper.keeping import from_plain, read_document, to_plain, write_document
from noisescale.paper.section import Circumstances, Measured, Section

_ENTRIES = {"section", "version", "data"}


@dataclass(frozen=True)
class Kept:
    """What a section measured, and by which version of it."""

    data: Measured
    version: int

    def by_this_version(self, section: Section) -> bool:
        """Whether the section would still measure as it did."""
        return self.version == section.version


def report_path(folder: Path, section: Section, scale: str, seeds: int) -> Path:
    """Where the folder of a report keeps a section's data."""
    return folder / "measured" / f"section-{section.id}-{scale}-{seeds}.json"


def keep(path: Path, section: Section, data: Measured) -> None:
    """Write a section's data, whole or not at all."""
    write_document(
        path,
        {
            "section": section.id,
            "version": section.version,
            "data": to_plain(data),
        },
    )


def read(path: Path, section: Section, source: RunSource | None) -> Kept | None:
    """A section's data; None if there are none that this version can read.

    ``source`` is where the runs are that the data name.
    """
    document = read_document(path, _ENTRIES)
    if document is None or document["section"] != section.id:
        return None
    try:
        data: Any = from_plain(section.kind, document["data"], source)
    except (KeyError, TypeError, ValueError):  # of another shape, or runs that are gone
        return None
    # Before sections had versions, documents had a hash of code: which of it is not known.
    return Kept(data, 0 if "code" in document else document["version"])


def measured_alike(kept: Kept | None, section: Section, at: Circumstances) -> bool:
    """Whether what is kept is what measuring again would give: same version, data, scale, seeds."""
    return kept is not None and kept.data.at == at and kept.by_this_version(section)
