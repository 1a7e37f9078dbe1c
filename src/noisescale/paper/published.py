"""The full-scale results that ship with noisescale, shown beside whatever was measured afresh.

Sections that are drawn from runs are drawn and judged again from the shipped tables; the others,
which compute for minutes, are shown as they were recorded.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from noisescale.data import facts
from noisescale.jobs.engines import Engine
from noisescale.jobs.progress import Progress
from noisescale.paper.outcomes import from_json
from noisescale.paper.section import Context, MissingError, NoImages, Outcome, Section
from noisescale.sweep.tables import TableSource

_SEEDS = {"3": 3, "4": 3, "5": 3, "6": 5, "7": 3, "8": 3, "10": 3}  # of the shipped runs


@dataclass(frozen=True)
class Published:
    """A section's result at full scale."""

    outcome: Outcome
    seeds: int
    recomputed: bool  # from the shipped runs; else as recorded
    command: str


def folder() -> Path | None:
    """Where the shipped tables are: in the installed package, or in the repository."""
    here = Path(__file__).parent
    for place in (here / "published", here.parents[2] / "results"):
        if (place / "figure4.csv").exists():
            return place
    return None


@cache
def published(section: Section) -> Published | None:
    """The section's full-scale result; None if none is shipped."""
    place = folder()
    if place is None:
        return None
    if section.from_runs:
        if section.id not in _SEEDS:
            return None
        seeds = _SEEDS[section.id]
        try:
            outcome = section.measure(_context(place, seeds))
        except MissingError:  # the section was changed, and now asks for other runs
            return None
        return Published(outcome, seeds, True, _command(section, seeds))
    path = place / "recorded" / f"{section.id}.json"
    if not path.exists():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    seeds = int(content["seeds"])
    return Published(from_json(content["outcome"]), seeds, False, _command(section, seeds))


def _command(section: Section, seeds: int) -> str:
    return f"noisescale paper --only {section.id} --scale full --seeds {seeds}"


@dataclass(frozen=True)
class _Measured(Context):
    """Measures nothing: runs from the tables, other numbers from what was kept."""

    def kept(self, settings: dict[str, Any], measure: Any) -> Any:
        name = self.name_of(settings)
        if name not in _kept():
            raise MissingError(f"no shipped measurement for {settings}")
        return _kept()[name]


@cache
def _kept() -> dict[str, Any]:
    place = folder()
    path = None if place is None else place / "figure10.json"
    if path is None or not path.exists():
        return {}
    rows: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: row["measured"] for name, row in rows.items()}


@cache
def _tables(place: Path) -> TableSource:
    return TableSource(place)


def _context(place: Path, seeds: int) -> Context:
    data: Any = NoImages("mnist", "shipped results", True, facts("mnist").fingerprint)
    store: Any = _tables(place)
    return _Measured(data, "full", seeds, store, _no_engine, Progress())


def _no_engine() -> Engine:
    raise MissingError("a run is not among the shipped ones")
