"""``noisescale paper``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from noisescale.cli.options import Cluster, Debug, Json, Quiet, Workers, check_path
from noisescale.cli.report import show
from noisescale.jobs.progress import show_progress


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
        typer.Option(help="smoke: two minutes, quick: ten, full: hours, the paper's own sizes."),
    ] = ScaleOption.quick,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds for each experiment. Default: 1, 2 or 5 by scale.")
    ] = None,
    out: Annotated[Path, typer.Option(callback=check_path, help="Folder of the report.")] = Path(
        "paper-report"
    ),
    workers: Workers = None,
    cluster: Cluster = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Re-measure the paper, judge its claims, write a report."""
    from noisescale.paper import run_paper

    with show_progress(silent=quiet or json) as progress:
        made = run_paper(
            out,
            scale=scale.value,
            only=None if only is None else only.split(","),
            seeds=seeds,
            workers=workers,
            executor=cluster,
            progress=progress,
        )
    show(made, json=json, quiet=quiet)
