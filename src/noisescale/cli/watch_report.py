"""``noisescale report LOG``: a watched run as one HTML file with pictures, advice and numbers."""

import json as jsonlib
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from noisescale._version import __version__
from noisescale.errors import InputError

if TYPE_CHECKING:
    from noisescale.noise.watch.record import NoiseRecord

_ROWS = 20  # of a history, evenly spread over it


def report_history(log: Path, *, json: bool, quiet: bool) -> None:
    """Write the page beside the log, and print the advice."""
    from noisescale.noise.watch.saved import load

    record = load(log)
    advice = record.advice()
    page = log.with_suffix(".html")
    try:
        page.write_text(render_history(record, log.name), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {page} ({error.strerror}): copy the log elsewhere."
        ) from None
    if json:
        print(jsonlib.dumps({"report": str(page.resolve()), "advice": advice.to_dict()}))
        return
    if not quiet:
        print(advice)
    print(f"Report: {page.resolve()}")


def render_history(record: "NoiseRecord", name: str) -> str:
    """The page of a history: figures inside as data addresses, the history to download."""
    from matplotlib.figure import Figure

    from noisescale.paper.report import page_environment, page_style
    from noisescale.paper.style import house_style, to_svg

    advice = record.advice()
    pictures = []
    with house_style():
        for draw, caption in (
            (
                record.plot,
                "The critical batch size through training with its 95 % interval, and the run's "
                "batch. While only a lower bound is known, the band reaches to the upper edge.",
            ),
            (
                advice.plot,
                "Updates and examples to the same loss against the batch size, over those of the "
                "run (McCandlish et al. 2018), with the range that the interval leaves.",
            ),
        ):
            figure = Figure(figsize=(7.5, 4), layout="constrained")
            draw(figure.add_subplot())
            pictures.append((to_svg(figure), caption))
    frame = record.history
    every = max(1, -(-len(frame) // _ROWS))
    shown = frame.iloc[::-every].iloc[::-1]  # the last among them
    template = (resources.files(__package__) / "watch_report.html").read_text(encoding="utf-8")
    return (
        page_environment()
        .from_string(template)
        .render(
            name=name,
            version=__version__,
            advice=advice,
            pictures=pictures,
            notes=record.notes,
            columns=list(shown.columns),
            rows=[[f"{value:.4g}" for value in row] for row in shown.itertuples(index=False)],
            n_rows=len(frame),
            csv=frame.to_csv(index=False),
            style=page_style(),
        )
    )
