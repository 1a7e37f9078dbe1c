"""``noisescale paper``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from noisescale.cli.options import Cluster, Debug, Json, Quiet, Workers, check_path
from noisescale.cli.report import show, show_check
from noisescale.jobs.progress import show_progress


class ScaleOption(StrEnum):
    """How much of the paper's work to do."""

    check = "check"
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
        typer.Option(
            help="check: the shipped full-scale data judged in a minute, then a sample of them "
            "measured again. To measure all afresh, smoke: two minutes, quick: ten, full: hours, "
            "the paper's own sizes."
        ),
    ] = ScaleOption.check,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds for each experiment. Default: 1, 2 or 5 by scale.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, max=1440, help="How long a check may take; 0 leaves it out. Default: 5."
        ),
    ] = None,
    check_seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="Chooses the sample of a check. Default: the clock."),
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
    """Judge the paper's claims, check or re-measure what they rest on, write a report."""
    from noisescale.paper.stages import check_minutes, check_report, run_paper

    check_for = check_minutes(scale.value, minutes, check_seed)
    checking = scale is ScaleOption.check and check_for > 0
    with show_progress(silent=quiet or json) as progress:
        made = run_paper(
            out,
            scale=scale.value,
            only=None if only is None else only.split(","),
            seeds=seeds,
            minutes=0 if checking else minutes,
            workers=workers,
            executor=cluster,
            progress=progress,
        )
    if not checking or not (json or quiet):  # the answer at once, before the proof
        show(made, json=json, quiet=quiet)
    if checking:
        with show_progress(silent=quiet or json) as progress:
            made = check_report(
                made,
                minutes=check_for,
                check_seed=check_seed,
                workers=workers,
                executor=cluster,
                progress=progress,
            )
        show_check(made, json=json, quiet=quiet)
