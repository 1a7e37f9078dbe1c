"""What a section of the report is given, and what it gives back."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, cast

from noisescale.data import Dataset
from noisescale.jobs.engines import Engine
from noisescale.jobs.progress import Progress
from noisescale.paper.claims import Judgement
from noisescale.paper.runs import Runs
from noisescale.sweep import RunConfig, RunStore, run_sweep

T = TypeVar("T")
ScaleName = Literal["smoke", "quick", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "quick", "full")


class MissingError(Exception):
    """Something that was to be shown again has not been measured."""


@dataclass(frozen=True)
class NoImages:
    """A data set by name alone: what was measured can be shown again without its images."""

    name: str
    source: str
    complete: bool
    fingerprint: str

    def __getattr__(self, name: str) -> NoReturn:
        raise MissingError(f"{name} of {self.name} is not loaded to show results again")


@dataclass(frozen=True)
class Context:
    """The circumstances of a report: data, scale, seeds, where runs are made and kept."""

    data: Dataset
    scale: ScaleName
    seeds: int
    store: RunStore
    engine: Callable[[], Engine]  # started by the first section that lacks a run
    progress: Progress = field(default_factory=Progress)
    folder: Path | None = None  # where measurements are kept, if anywhere
    frozen: bool = False  # show what was measured, measure nothing
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def decidable(self) -> bool:
        """Whether a run of this size can decide claims at all: full scale, data and seeds."""
        return self.scale == "full" and self.seeds >= 3 and self.data.complete

    def runs(self, plan: Sequence[RunConfig]) -> Runs:
        """The runs of ``plan``: from the store, and made where it lacks them."""
        keys = [run.key for run in plan]
        stored = self.store.statuses(keys)
        missing = [run for run in plan if stored.get(run.key, "failed") == "failed"]
        if missing:
            run_sweep(missing, self.store, self.engine(), retry_failed=True, progress=self.progress)
        frame = self.store.frame(keys)
        failed = frame[frame["status"] == "failed"]
        if len(failed):  # a figure with holes would be taken for a whole one
            reason = failed["error"].iloc[0].strip().splitlines()[-1]
            raise RuntimeError(f"{len(failed)} of {len(frame)} runs failed, the first: {reason}")
        return Runs(frame, self.store.curves(keys))

    def kept(self, settings: dict[str, Any], measure: Callable[[], T]) -> T:
        """``measure()``, plain numbers, from the report's folder if they were measured before.

        ``settings`` must name everything that the numbers depend on.
        """
        if self.folder is None:
            return measure()
        path = self.folder / "measured" / f"{self.name_of(settings)}.json"
        if path.exists():
            return cast(T, json.loads(path.read_text(encoding="utf-8"))["measured"])
        if self.frozen:
            raise MissingError(f"{path} is not there")
        found = measure()
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".part")
        document = {"settings": settings | {"data": self.data.fingerprint}, "measured": found}
        unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
        return found

    def name_of(self, settings: dict[str, Any]) -> str:
        """What :meth:`kept` keeps a measurement under."""
        text = json.dumps(settings | {"data": self.data.fingerprint}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def once(self, name: str, measure: Callable[[], T]) -> T:
        """``measure()``, computed by the first of the sections that share it."""
        if name not in self._known:
            self._known[name] = measure()
        return cast(T, self._known[name])


@dataclass(frozen=True)
class Picture:
    """A drawn figure: its file name, the SVG, a caption, and what it shows in words."""

    name: str
    svg: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Measurement:
    """A number with its uncertainty and how it was obtained, as the report prints them."""

    what: str
    value: str
    how: str


@dataclass(frozen=True)
class Outcome:
    """What a section measured."""

    statement: str
    pictures: tuple[Picture, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    remarks: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Section:
    """A section of the report: a figure's number, an appendix's letter, or a word.

    ``from_runs``: it is drawn and judged from stored runs or kept numbers alone, in seconds.
    """

    id: str
    title: str
    measure: Callable[[Context], Outcome]
    from_runs: bool = False
