"""A page of chapters: the answer first, then pictures, tables, and the data to download."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescale._version import __version__

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHORT = 20  # rows of a table that is not folded
LONGEST = 200  # rows of any; the download has all


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading, folded if they are many."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: bool = False

    @classmethod
    def of(cls, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> "Table":
        """With numbers as people read them; of many rows the first."""
        cells = tuple(tuple(map(shown, row)) for row in rows[:LONGEST])
        if len(rows) > LONGEST:
            name = f"{name}: the first {LONGEST} of {len(rows)}"
        return cls(name, tuple(columns), cells, folded=len(rows) > _SHORT)


@dataclass(frozen=True)
class Download:
    """A table to take away, as CSV: a file's name, what it is, and its text."""

    file: str
    what: str
    csv: str


@dataclass(frozen=True)
class Chapter:
    """What one kind of run says.

    Attributes:
        question: that it answers.
        about: what was looked at.
        answer: the verdict, a sentence or more.
        notes: what to watch out for.
        pictures: each an SVG and what it shows.
        tables, downloads: the numbers.
    """

    question: str
    about: str
    answer: tuple[str, ...]
    notes: tuple[str, ...] = ()
    pictures: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    downloads: tuple[Download, ...] = ()


def picture(draw: Callable[["Axes"], object], caption: str) -> tuple[str, str]:
    """What ``draw`` draws, in house style, and its caption."""
    from matplotlib.figure import Figure

    from noisescale.drawing import house_style, to_svg
    from noisescale.paper.style import plain_log

    with house_style():
        figure = Figure(figsize=(7.5, 4), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                plain_log(axis)
        return to_svg(figure), caption


def write_page(path: Path, name: str, chapters: Sequence[Chapter]) -> Path:
    """Write the page of these chapters; one file that needs nothing else."""
    from noisescale.paper import report as paper

    template = (resources.files(__package__) / "page.html").read_text(encoding="utf-8")
    page = paper.page_environment().from_string(template)
    paper.write_page(path, page.render(name=name, chapters=chapters, version=__version__))
    return path


def shown(value: Any) -> str:
    """A value as people read it: floats to four digits, what is not known not at all."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
