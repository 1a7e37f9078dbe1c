"""A section's data as a document: in the folder of a report, or shipped in results/."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisescale.checks import shown
from noisescale.jobs.store import RunSource
from noisescale.paper.keeping import read_document, write_document
from noisescale.paper.section import Circumstances, Measured, Section
from noisescale.plain import from_plain, to_plain


@dataclass(frozen=True)
class _Document:
    section: str
    version: int
    data: Any


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


def read(
    path: Path, section: Section, source: RunSource | None, *, at: Circumstances | None = None
) -> Kept | None:
    """A section's data; None if there are none. A document that cannot be read is an InputError.

    ``source`` is where the runs are that the data name. With ``at`` only what measuring there again
    would give: other data, of another version, or whose runs are gone are None as well.
    """

    def kept(plain: Any) -> Kept | None:
        if "code" in plain:  # before sections had versions: which of them it was is not known
            plain = {name: plain[name] for name in plain if name != "code"} | {"version": 0}
        document: _Document = from_plain(_Document, plain)
        if document.section != section.id:
            raise ValueError(f"it is of section {shown(document.section)}, not {section.id}")
        other = document.version != section.version
        if at is not None and other:
            return None
        try:
            data: Any = from_plain(section.kind, document.data, source)
        except KeyError:  # runs that are gone
            if at is not None:
                return None
            raise
        except ValueError as error:
            if not other:
                raise
            by = f"by version {document.version} of the section, this is version {section.version}"
            raise ValueError(f"{by}: {error}") from None
        return None if at not in (None, data.at) else Kept(data, document.version)

    return read_document(path, kept)
