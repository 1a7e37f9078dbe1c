"""A section of the paper is three functions: measure, judge, draw.

``measure(context)`` returns plain data, a frozen dataclass, which is kept. ``judge(data)`` says
what they mean, ``draw(data)`` shows them; both see nothing else, so that a verdict or a picture
made again tomorrow, or on another machine, is the same, and editing either measures nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast, get_type_hints

from noisescale.data import Dataset
from noisescale.jobs.engines import Engine
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from noisescale.paper.claims import Judgement
from noisescale.paper.keeping import keep_part, read_part
from noisescale.paper.parts import Part, make_parts
from noisescale.paper.runs import Runs
from noisescale.sweep import RunConfig, run_sweep

T = TypeVar("T")
ScaleName = Literal["smoke", "quick", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "quick", "full")


@dataclass(frozen=True)
class Circumstances:
    """What a measurement was made with; a verdict rests on it as on the numbers.

    Attributes:
        data: the name of the data set, ``fingerprint`` the sha256 of its content.
        complete: whether all of it was there, rather than an embedded part.
    """

    scale: ScaleName
    seeds: int
    data: str
    complete: bool
    fingerprint: str

    def decides(self, *, enough: bool, seeds: int = 3) -> bool:
        """Whether a claim can be decided: all of the data, so many seeds, and ``enough`` else.

        What else a claim rests on (updates, batches, images, precision) its section knows; the
        name of the scale is none of it.
        """
        return enough and self.complete and self.seeds >= seeds

    @property
    def decidable(self) -> bool:
        """The same for claims about networks of the paper's size trained to the end."""
        return self.decides(enough=self.scale == "full")

    @property
    def decides_readings(self) -> bool:
        """Whether it can decide second readings, which ask for five seeds."""
        return self.decidable and self.seeds >= 5


@dataclass(frozen=True)
class Measured:
    """What every section's data begin with."""

    at: Circumstances


class Workplace(Protocol):
    """What a part of a measurement may ask for, in this process or in a worker."""

    @property
    def data(self) -> Dataset:
        """The images."""
        ...

    @property
    def scale(self) -> ScaleName:
        """How much to do."""
        ...

    @property
    def progress(self) -> Progress:
        """Where to tell how far it is; a worker has nobody to tell."""
        ...


@dataclass(frozen=True)
class Context:
    """Where a section measures: on which data, how much, and where runs are made and kept."""

    data: Dataset
    scale: ScaleName
    seeds: int
    store: RunStore
    engine: Engine
    progress: Progress = field(default_factory=Progress)
    folder: Path | None = None  # where parts of long measurements are kept, if anywhere
    version: int = 1  # of the section that measures
    _shared: dict[Any, Any] = field(default_factory=dict)

    @property
    def at(self) -> Circumstances:
        """The circumstances that the section's data are to carry."""
        data = self.data
        return Circumstances(self.scale, self.seeds, data.name, data.complete, data.fingerprint)

    def runs(self, plan: Sequence[RunConfig]) -> Runs:
        """The runs of ``plan``: from the store, and made where it lacks them."""
        frame = run_sweep(plan, self.store, self.engine, retry_failed=True, progress=self.progress)
        failed = frame[frame["status"] == "failed"]
        if len(failed):  # a figure with holes would be taken for a whole one
            reason = failed["error"].iloc[0].strip().splitlines()[-1]
            raise RuntimeError(f"{len(failed)} of {len(frame)} runs failed, the first: {reason}")
        return Runs(frame, self.store.curves([run.key for run in plan]))

    def kept(self, measure: Callable[..., T], **arguments: Any) -> T:
        """``measure(context, **arguments)``, from the folder if it was measured there before.

        For the parts of a long measurement: a section that was killed goes on from them. What is
        kept answers for the same arguments, scale, data and version of the section alone.
        """
        if self.folder is None:
            return measure(self, **arguments)
        key = self._part(measure, arguments).depends_on
        kind = get_type_hints(measure)["return"]
        kept, value = read_part(self.folder, key, kind)
        if not kept:
            value = measure(self, **arguments)
            keep_part(self.folder, key, value)
        return cast(T, value)

    def make_ahead(self, calls: Mapping["partial[Any]", float]) -> None:
        """Have the workers measure parts that :meth:`kept` is going to be asked for.

        ``calls`` are of functions of a module that need a :class:`Workplace` alone, each with the
        seconds that it may take: the longest begin first.
        """
        if self.folder is not None:
            parts = [self._part(call.func, call.keywords, cost) for call, cost in calls.items()]
            make_parts(self.folder, parts, self.engine, self.progress)

    def _part(
        self, measure: Callable[..., Any], arguments: Mapping[str, Any], cost: float = 1.0
    ) -> Part:
        data = self.data
        return Part(measure, arguments, self.scale, data.name, data.fingerprint, self.version, cost)

    def once(self, measure: Callable[["Context"], T]) -> T:
        """``measure(context)``, computed by the first of the sections that share it.

        Sections that measure in other circumstances, with more seeds, share nothing.
        """
        key = (measure, self.at)
        if key not in self._shared:
            self._shared[key] = measure(self)
        return cast(T, self._shared[key])


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
class Findings:
    """What a section's data say.

    ``readings``: second readings of claims, see :mod:`noisescale.paper.readings`.
    """

    statement: str
    judgements: tuple[Judgement, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    remarks: tuple[str, ...] = ()
    readings: tuple[Judgement, ...] = ()


@dataclass(frozen=True)
class Section:
    """A section of the report: a figure's number, an appendix's letter, or a word.

    A ``reading`` has its id from the reading that it measures. Only five seeds at full scale decide
    one, so smaller scales measure it where it is asked for, and not by default.
    ``quick_seeds``: what it takes to decide its claims, where the quick scale can afford that.
    ``version``: of what ``measure`` measures. Whoever changes that, here or in what it calls, adds
    one by hand: what an earlier version measured is then shown as such, and measured again.
    """

    id: str
    title: str
    measure: Callable[[Context], Any]
    judge: Callable[[Any], Findings]
    draw: Callable[[Any], tuple[Picture, ...]]
    reading: bool = False
    quick_seeds: int = 1
    version: int = 1

    @property
    def kind(self) -> type:
        """The class of its data, as ``measure`` declares it."""
        kind: type = get_type_hints(self.measure)["return"]
        return kind
