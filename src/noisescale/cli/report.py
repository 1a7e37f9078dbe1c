"""``noisescale report``, and the table of verdicts that ``paper`` shows too."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisescale.cli.options import Debug, Json, Quiet, check_path
from noisescale.jobs.progress import show_progress

if TYPE_CHECKING:
    from noisescale.paper import PaperReport

_COLOURS = {"reproduced": "green", "not reproduced": "red", "undecided": "dim"}


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|LOG",
            callback=check_path,
            help="Where `paper` put its report, or a .csv or .json that `watch.save` wrote.",
        ),
    ],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw a report again from what was measured, or that of a watched run; nothing is run."""
    if folder.suffix.lower() in (".csv", ".json") and not folder.is_dir():
        from noisescale.cli.watch_report import report_history

        report_history(folder, json=json, quiet=quiet)
        return
    from noisescale.paper import redraw

    with show_progress(silent=quiet or json) as progress:
        drawn = redraw(folder, progress)
    show(drawn, json=json, quiet=quiet)


def show(made: "PaperReport", *, json: bool, quiet: bool) -> None:
    """The verdicts and where the report is."""
    from noisescale.paper.claims import counts, headline

    verdicts = counts(made.claims["claims"])
    own = counts(made.claims["claims"], own=True)
    if json:
        told = {
            "report": str(made.index.resolve()),
            "counts": verdicts,
            "identities": counts(made.claims["claims"], identities=True),
            "own_counts": own,
        }
        if made.claims["scale"] == "check":
            told["check"] = made.claims["check"]
        print(jsonlib.dumps(told))
        return
    if not quiet:
        Console().print(_table(made))
        scale = made.claims["scale"]
        how = "full scale, shipped data judged here" if scale == "check" else f"{scale} scale"
        print(f"{_summary(verdicts, 'claims')} ({how}).")
        print(f"Apart: {headline(made.claims['claims'])}.")
        print(f"{_summary(own, 'claims of our own')}.")
        if made.check is not None:
            print(_sentence(made))
    print(f"Report: {made.index.resolve()}")


def show_check(made: "PaperReport", *, json: bool, quiet: bool) -> None:
    """What the spot check found, after the verdicts were shown."""
    if json:
        show(made, json=True, quiet=quiet)
        return
    if not quiet:
        print(_sentence(made))
    print(f"Report: {made.index.resolve()}")


def _sentence(made: "PaperReport") -> str:
    told = f"{made.check}."
    return told[:1].upper() + told[1:]


def _summary(verdicts: dict[str, int], what: str) -> str:
    listed = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    return f"{sum(verdicts.values())} {what}: {listed}"


def _table(made: "PaperReport") -> Table:
    """A line a claim, and a reading that was measured: its verdict here, and at full scale."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shipped_only = made.claims["scale"] == "check"
    verdicts = ("full scale, shipped",) if shipped_only else ("here", "full scale, shipped")
    for column in ("claim", *verdicts, "the claim"):
        shown.add_column(column, no_wrap=column == "claim")
    measured = [row for row in made.claims["readings"] if row["measured"] is not None]
    for row in (*made.claims["claims"], *measured):
        if row["primary"]:
            told = (row["verdict"], made.full_scale.get(row["id"], "not measured"))
            cells = [
                f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict in _COLOURS else verdict
                for verdict in told[-len(verdicts) :]
            ]
            shown.add_row(row["id"], *cells, row["claim"] if "claim" in row else row["reading"])
    return shown
