"""The full-scale data that ship with noisescale: a document a section, and tables of runs."""

from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

from noisescale.errors import InputError
from noisescale.paper.documents import Kept, read
from noisescale.paper.runs import Runs
from noisescale.paper.section import Measured, Section
from noisescale.sweep.tables import TableSource


@cache
def folder() -> Path | None:
    """Where the results are: in the installed package, or in the repository."""
    here = Path(__file__).parent
    for place in (here / "results", here.parents[2] / "results"):
        if (place / "figure4.csv").exists():
            return place
    return None


def shipped_path(place: Path, section: Section) -> Path:
    """The document of a section's data."""
    return place / "sections" / f"{section.id}.json"


@cache
def shipped(section: Section) -> Kept | None:
    """A section's data at full scale; None if none are shipped."""
    place = folder()
    return None if place is None else read(shipped_path(place, section), section, _tables(place))


def runs_of(data: Measured) -> Iterator[Runs]:
    """All runs that a section's data name."""
    values = (getattr(data, field.name) for field in fields(data))
    return (value for value in values if isinstance(value, Runs))


@cache
def _tables(place: Path) -> TableSource:
    try:
        return TableSource(place)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the tables of runs in {place} cannot be read ({error}): install noisescale again."
        ) from None
