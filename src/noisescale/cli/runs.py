"""``noisescale runs DIR``: a store's runs, filtered, listed, exported."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from noisescale.checks import check_whole
from noisescale.cli.options import Debug, Json, Quiet, check_path
from noisescale.errors import InputError


def runs(
    store: Annotated[
        Path, typer.Argument(metavar="DIR", callback=check_path, help="A store, or its folder.")
    ],
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEST", help="Only runs with, say, 'batch_size<30 and seed=0'. Repeatable."
        ),
    ] = None,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help="Order by this column.")] = "finished",
    limit: Annotated[int, typer.Option(help="Show so many rows at the most.")] = 50,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=check_path,
            help="Write all columns to a .csv or .parquet file.",
        ),
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Export a row an evaluation, not a row a run.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List, filter and export the runs of a store; it may be in use."""
    from noisescale.cli.runs_table import runs_table
    from noisescale.jobs.store import RunStore
    from noisescale.sweep.listing import choose, export_frame, to_json

    check_whole("limit", limit, at_least=1)
    if curves and export is None:
        raise InputError("--curves goes with --export: say where to write them.")
    with RunStore(store) as opened:
        frame = choose(opened.frame(), where or [], sort)
        if export is not None:
            export_frame(opened.curves(frame["key"]) if curves else frame, export)
    if export is not None:
        if not quiet and not json:
            print(f"{len(frame)} runs in {export}")
        return
    if json:
        print(to_json(frame))
        return
    Console().print(runs_table(frame.tail(limit)))
    if not quiet:
        print(f"{len(frame)} runs" + (f", the last {limit} shown" if len(frame) > limit else ""))
