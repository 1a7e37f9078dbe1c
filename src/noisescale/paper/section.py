"""What a section of the report is given, and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from noisescale.data import Dataset
from noisescale.paper.claims import Judgement

T = TypeVar("T")
ScaleName = Literal["smoke", "quick", "full"]
SCALES: tuple[ScaleName, ...] = ("smoke", "quick", "full")


@dataclass(frozen=True)
class Context:
    """The circumstances of a report: data, scale, seeds, and whom to tell of progress."""

    data: Dataset
    scale: ScaleName
    seeds: int
    report: Callable[[str], None]
    _known: dict[str, Any] = field(default_factory=dict)

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
    """A section of the report: a figure's number, an appendix's letter, or a word."""

    id: str
    title: str
    measure: Callable[[Context], Outcome]
