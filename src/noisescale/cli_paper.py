"""``noisescale paper`` and ``noisescale report``."""

import json as jsonlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisescale.cli_options import Cluster, Debug, Json, Quiet, Workers
from noisescale.jobs.progress import show_progress

if TYPE_CHECKING:
    from noisescale.paper import PaperReport

_COLOURS = {"reproduced": "green", "not reproduced": "red", "undecided": "dim"}


class ScaleOption(StrEnum):
    """How much of the paper's work to do."""

    smoke = "smoke"
    quick = "quick"
    full = "full"


def paper(
    only: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Sections to measure, separated by commas. Default: all."
        ),
    ] = None,
    scale: Annotated[
        ScaleOption,
        typer.Option(help="smoke: seconds, quick: minutes, full: the paper's own sizes."),
    ] = ScaleOption.quick,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds for each experiment. Default: 1, 2 or 5 by scale.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("paper-report"),
    workers: Workers = None,
    cluster: Cluster = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Re-measure the paper, judge its claims, write a report."""
    from noisescale.paper import run_paper

    with show_progress(silent=quiet or json) as progress:
        done = run_paper(
            out,
            scale=scale.value,
            only=None if only is None else only.split(","),
            seeds=seeds,
            workers=workers,
            executor=cluster,
            progress=progress,
        )
    _tell(done, json=json, quiet=quiet)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where `paper` put its report.")],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw a report again from what was measured; nothing is run."""
    from noisescale.paper import redraw

    with show_progress(silent=quiet or json) as progress:
        done = redraw(folder, progress)
    _tell(done, json=json, quiet=quiet)


def _tell(done: "PaperReport", *, json: bool, quiet: bool) -> None:
    from noisescale.paper.claims import counts

    verdicts = counts(done.claims["claims"])
    if json:
        print(jsonlib.dumps({"report": str(done.index.resolve()), "counts": verdicts}))
        return
    if not quiet:
        Console().print(_table(done))
        summary = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print(f"{sum(verdicts.values())} claims: {summary} ({done.claims['scale']} scale).")
    print(f"Report: {done.index.resolve()}")


def _table(done: "PaperReport") -> Table:
    """A line a claim: what was found here, and at full scale."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("claim", "here", "full scale, shipped", "the paper says"):
        shown.add_column(column, no_wrap=column == "claim")
    for row in done.claims["claims"]:
        if row["primary"]:
            cells = [
                f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict in _COLOURS else verdict
                for verdict in (row["verdict"], done.full_scale.get(row["id"], "not measured"))
            ]
            shown.add_row(row["id"], *cells, row["claim"])
    return shown
