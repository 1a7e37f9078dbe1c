"""``noisescale data``: which data sets are here, and fetching one."""

import json as jsonlib
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from noisescale.cli.options import Debug, Json, Quiet
from noisescale.jobs.progress import show_progress
from noisescale.text import printable

data_app = typer.Typer(rich_markup_mode="rich")


@data_app.callback(
    invoke_without_command=True,
    epilog="Example: noisescale data fetch mnist",
)
def data(
    context: typer.Context, json: Json = False, quiet: Quiet = False, debug: Debug = False
) -> None:
    """List the data sets: what is here, where, and whether it was verified."""
    context.obj = {"json": json, "quiet": quiet}
    if context.invoked_subcommand is not None:
        return
    from noisescale.data import status

    rows = status()
    if json:
        print(jsonlib.dumps(rows))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("data set", "train + test", "state", "where"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(
            *(escape(printable(str(row[key]))) for key in ("name", "examples", "state", "where"))
        )
    Console().print(table)
    if not quiet and any(row["state"] in ("missing", "altered") for row in rows):
        print("Fetch one with: noisescale data fetch NAME")


@data_app.command(epilog="Example: NOISESCALE_DATA=~/datasets noisescale data fetch fashion-mnist")
def fetch(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Download a data set into the cache and verify it."""
    from noisescale.data import cache_folder
    from noisescale.data import fetch as fetch_data

    json, quiet = json or context.obj["json"], quiet or context.obj["quiet"]

    with show_progress(silent=quiet or json) as progress:
        fetched = fetch_data(name, progress.line)
    if json:
        names = ("name", "source", "fingerprint")
        print(jsonlib.dumps({name: getattr(fetched, name) for name in names}))
    elif not quiet:
        print(f"{fetched!r}")
        print(f"Kept in {cache_folder()}")
