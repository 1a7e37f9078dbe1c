"""``noisescale report``, and the table of verdicts that ``paper`` shows too."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisescale.cli.options import Debug, Json, Quiet, check_path
from noisescale.errors import InputError
from noisescale.jobs.progress import Progress, show_progress
from noisescale.text import printable

if TYPE_CHECKING:
    from noisescale.cli.reports.page import Chapter
    from noisescale.paper import PaperReport

_COLOURS = {"reproduced": "green", "not reproduced": "red", "undecided": "dim"}


def report(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE",
            callback=check_path,
            help="The folder of `paper`, `sweep` or `tune`, any store, or a file that `save` of a "
            "watch, a tuning or a prequential evidence wrote.",
        ),
    ],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """One page of what was measured, the answer first; nothing is run."""
    if path.is_dir() and (path / "claims.json").exists():
        from noisescale.paper import redraw

        with show_progress(silent=quiet or json) as progress:
            drawn = redraw(path, progress)
        show(drawn, json=json, quiet=quiet)
        return
    with show_progress(silent=quiet or json) as progress:
        page, chapters = _report_runs(path, progress)
    if json:
        told = {"report": str(page), "answer": [list(chapter.answer) for chapter in chapters]}
        print(jsonlib.dumps(told))
        return
    if not quiet:
        for chapter in chapters:
            print(*map(printable, (chapter.question, *chapter.answer, "")), sep="\n")
    print(printable(f"Report: {page}"))


def _report_runs(path: Path, progress: "Progress") -> "tuple[Path, list[Chapter]]":
    """Write the page of a store, or of a saved result, beside it."""
    from noisescale.cli.reports.choose import chapter_of_file, chapters_of_store
    from noisescale.cli.reports.page import write_page
    from noisescale.jobs.store import store_path

    if path.suffix.lower() in (".csv", ".json") and not path.is_dir():
        chapters, page = [chapter_of_file(path)], path.with_suffix(".html")
    elif path.is_dir() and not store_path(path).exists():
        raise InputError(
            f"there is nothing to report in {path}: give the folder of `paper`, `sweep` or `tune`, "
            "a store, or a file that `save` wrote."
        )
    else:
        chapters = chapters_of_store(path, progress.line)
        page = path / "report.html" if path.is_dir() else path.with_suffix(".html")
    return write_page(page, path.resolve().name, chapters).resolve(), chapters


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
    from noisescale.paper.readings import verdicts_on

    shown = Table(box=None, header_style="bold", pad_edge=False)
    shipped_only = made.claims["scale"] == "check"
    verdicts = ("full scale, shipped",) if shipped_only else ("here", "full scale, shipped")
    for column in ("claim", *verdicts, "the claim"):
        shown.add_column(column, no_wrap=column == "claim")
    measured = [row for row in made.claims["readings"] if row["measured"] is not None]
    on_readings = verdicts_on(measured)
    for row in (*made.claims["claims"], *measured):
        if row["primary"]:
            here = on_readings.get(row["id"], row["verdict"])
            told = (here, made.full_scale.get(row["id"], "not measured"))
            cells = [
                f"[{_COLOURS[verdict]}]{verdict}[/]" if verdict in _COLOURS else verdict
                for verdict in told[-len(verdicts) :]
            ]
            shown.add_row(row["id"], *cells, row["claim"] if "claim" in row else row["reading"])
    return shown
