"""``noisescale sweep PLAN.toml``."""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from noisescale.cli.options import Cluster, Debug, Json, Quiet, Workers, check_path
from noisescale.jobs.progress import show_progress
from noisescale.text import printable


def _example(asked: bool) -> None:
    if asked:
        from noisescale.examples import PLAN

        print(PLAN, end="")
        raise typer.Exit


def sweep(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN.toml", callback=check_path, help="What to run.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            callback=check_path,
            help="Folder of the store. Default: the plan's name and '-runs'.",
        ),
    ] = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example", callback=_example, is_eager=True, help="Print a plan to begin with."
        ),
    ] = False,
    workers: Workers = None,
    cluster: Cluster = None,
    retries: Annotated[int, typer.Option(help="New attempts at a run that failed.")] = 2,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what the store holds as failed.")
    ] = False,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Use stored runs although the model has changed.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run the runs of a plan that its store lacks."""
    from noisescale.cli.runs_table import runs_table
    from noisescale.jobs.store import make_folder
    from noisescale.sweep import load_plan, run_sweep
    from noisescale.sweep.listing import first_failure

    sys.path.insert(0, str(Path.cwd()))  # for data and models given as module:function
    runs = load_plan(plan)
    folder = make_folder(Path(f"{plan.stem}-runs") if out is None else out)
    with show_progress(silent=quiet or json) as progress:
        frame = run_sweep(
            runs,
            folder,
            cluster,
            workers=workers,
            retries=retries,
            retry_failed=retry_failed,
            reuse=reuse,
            progress=progress,
        )
    counts = {str(status): int(n) for status, n in frame["status"].value_counts().items()}
    if json:
        print(jsonlib.dumps({"store": str((folder / "runs.sqlite").resolve()), "runs": counts}))
    elif not quiet:
        Console().print(runs_table(frame.sort_values("test_accuracy", ascending=False).head(10)))
        summary = ", ".join(f"{n} {status}" for status, n in counts.items())
        print(f"{len(frame)} runs: {summary}. All of them: noisescale runs {folder}")
    if (reason := first_failure(frame)) is not None:
        tail = f"noisescale runs {folder} --where status=failed --json has the tracebacks"
        failed = f"{counts['failed']} of {len(frame)} runs failed, the first: {reason} ({tail})"
        print(f"noisescale: {printable(failed)}", file=sys.stderr)
        raise typer.Exit(1)
