"""Pictures: one look for all of them, as files, inside of pages, and inside of notebooks.

An SVG of ours carries the values it was drawn from: an invisible point over each, whose title a
browser shows when the pointer rests on it.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisescale.checks import check_path
from noisescale.errors import InputError
from noisescale.files import write_whole
from noisescale.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small files, legible at any zoom
    "svg.hashsalt": "noisescale",  # the same figure gives the same file
}
_INK = "#123456"  # stands for the colour of the text around a picture
_AROUND = dict.fromkeys(
    ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
) | dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none")
_PER_INCH = 72  # points of SVG
_MARGIN = 0.1  # inches around a picture
_MOST = 40  # values of a line that can be asked for
# What an SVG that stands alone says of itself; its style would speak for the whole page.
_OWN = re.compile(r"<metadata>.*?</metadata>\s*|<defs>\s*<style.*?</style>\s*</defs>\s*", re.DOTALL)


@contextmanager
def house_style(**more: Any) -> Iterator[None]:
    """Draw in here, and leave the user's own settings alone."""
    import matplotlib as mpl

    with mpl.rc_context(_RC | more):
        yield


def drawn(draw: Callable[["Axes"], None], where: "Axes | str | Path | None") -> "Axes":
    """Draw into axes, or into axes of a new figure, which is kept if ``where`` is a path."""
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    if isinstance(where, Axes):
        draw(where)
        return where
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    if where is not None:
        save_figure(figure, where)
    return axes


def save_figure(figure: "Figure", where: "str | Path", **options: Any) -> None:
    """Write a picture, in the format that the path ends in or else as PNG, whole or not at all."""
    path = check_path("where", where)
    if not path.suffix:
        path = path.with_name(f"{path.name}.png")
    form = path.suffix[1:].lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if form not in known:
        raise InputError(f"a picture must end in one of .{', .'.join(known)}, got {path}.")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, **options)
    write_whole(path, buffer.getvalue())


def literal(text: str) -> str:
    """Text from data as a label, in which a dollar sign is one and begins no formula."""
    return printable(text).replace("$", r"\$")


def to_svg(figure: "Figure") -> str:
    """The figure as SVG text, without a date, with its values."""
    figure.set_dpi(_PER_INCH)  # as it will be saved, so that both lay it out alike
    figure.draw_without_rendering()
    box = figure.get_tightbbox().padded(_MARGIN)  # in inches
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", dpi=_PER_INCH, bbox_inches=box, metadata={"Date": None})
    points = "\n".join(_points(figure, box))
    values = f'<g class="values" fill="#fff" fill-opacity="0">\n{points}\n</g>\n</svg>'
    return re.sub(r"</svg>\s*$", lambda _: f"{values}\n", buffer.getvalue())


def sketch(draw: Callable[["Axes"], object], alt: str) -> str:
    """A small picture inside a notebook, in the colour of the text around it."""
    from matplotlib.figure import Figure

    with house_style(**_AROUND):
        figure = Figure(figsize=(5, 2.9), layout="constrained")
        draw(figure.add_subplot())
        svg = to_svg(figure)
    return inline(re.sub(f"{_INK}|#000000", "currentColor", svg), alt)


def inline(svg: str, alt: str, name: str = "picture") -> str:
    """The SVG as an element of an HTML page; ``name`` keeps its ids apart from others'."""
    body = svg[svg.index("<svg") :]
    body = _OWN.sub("", body)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{escape(name)}-\1"', body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{escape(name)}-", body)
    head, tail = body.split(">", 1)
    head = re.sub(r'\s(?:width|height|version|xmlns[:\w]*|role|aria-label)="[^"]*"', "", head)
    box = re.search(r'viewBox="\S+ \S+ (\S+) ', head)
    width = f"max-width:{1.3 * float(box[1]):.0f}px;" if box else ""
    style = f"width:100%;{width}stroke-linejoin:round;stroke-linecap:butt"
    return f'{head} class="picture" role="img" aria-label="{escape(alt)}" style="{style}">{tail}'


def _points(figure: "Figure", box: "Bbox") -> Iterator[str]:
    """An element for each value, where it is drawn."""
    for axes in figure.axes:
        names = [axes.get_xlabel() or "x", axes.get_ylabel() or "y"]
        for label, xy in _values(axes):
            at = axes.transData.transform(xy)
            low, high = axes.bbox.padded(1).get_points()
            inside = ((low <= at) & (at <= high)).all(axis=1)  # NaN is not
            for value, (x, y) in zip(xy[inside], at[inside] / figure.dpi, strict=True):
                told = [f"{name}: {v:.4g}" for name, v in zip(names, value, strict=True)]
                title = "\n".join([label, *told] if label else told)
                title = escape(re.sub(r"(?<!\\)\$", "", title).replace(r"\$", "$"))
                x, y = (x - box.x0) * _PER_INCH, (box.y1 - y) * _PER_INCH
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{title}</title></circle>'


def _values(axes: "Axes") -> Iterator[tuple[str, Any]]:
    """The label and the values (n, 2) of every line and every cloud of points."""
    from matplotlib.collections import PathCollection
    from matplotlib.container import ErrorbarContainer

    labels = {
        id(part.lines[0]): str(part.get_label())
        for part in axes.containers
        if isinstance(part, ErrorbarContainer) and part.lines[0] is not None
    }
    drawn = [
        (labels.get(id(line), str(line.get_label())), line.get_xydata())
        for line in axes.lines
        if line.get_visible() and line.get_transform() is axes.transData
    ]
    drawn += [
        (str(cloud.get_label()), cloud.get_offsets())
        for cloud in axes.collections
        if isinstance(cloud, PathCollection)
    ]
    for label, values in drawn:
        xy = np.asarray(np.ma.filled(np.ma.asarray(values, float), np.nan), float).reshape(-1, 2)
        every = max(1, -(-len(xy) // _MOST))
        yield "" if label.startswith("_") else label, xy[::every]
