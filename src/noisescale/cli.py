"""The command line. Each command imports what it needs, so that help is instant."""

import json as jsonlib
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from noisescale._version import __version__
from noisescale.cli_data import data_app
from noisescale.cli_options import Cluster, Debug, Json, Quiet, Workers
from noisescale.cli_paper import paper, report
from noisescale.cli_tune import tune
from noisescale.errors import InputError
from noisescale.jobs.progress import show_progress

app = typer.Typer(
    name="noisescale",
    help="Should I believe this minimum, and how loud is my SGD?",
    epilog="Begin with: noisescale paper --scale smoke",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog="Example: noisescale paper --only units --scale smoke --out /tmp/report")(paper)
app.command(epilog="Example: noisescale report paper-report")(report)
app.add_typer(data_app, name="data")
app.command(epilog="Example: noisescale tune my_training:train --n-train 50000 --epochs 10")(tune)


def _version(asked: bool) -> None:
    if asked:
        print(f"noisescale {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: noisescale evidence my_model:trained --prior-precision auto")
def evidence(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Returns (apply_fn, params, (x, y)) or (torch.nn.Module, dataset).",
        ),
    ],
    prior_precision: Annotated[
        str, typer.Option(metavar="NUMBER|auto|per_layer", help="The prior's precision.")
    ] = "auto",
    likelihood: Annotated[
        str, typer.Option(help="categorical, bernoulli or gaussian.")
    ] = "categorical",
    curvature: Annotated[str, typer.Option(help="ggn or hessian.")] = "ggn",
    method: Annotated[
        str, typer.Option(help="auto, dense, dual, lanczos, kfac or diagonal.")
    ] = "auto",
    tolerance: Annotated[
        float | None, typer.Option(help="Of lanczos: the standard error to reach, in nats.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the spectrum into this file, .png or .svg.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what each method would take, and stop.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Should I believe this minimum? The evidence and the spectrum of your model."""
    from noisescale.evidence import command

    sys.path.insert(0, str(Path.cwd()))
    problem = command.load_problem(model, likelihood)
    if explain:
        plan = command.explain(problem, method, curvature)
        print(jsonlib.dumps(asdict(plan)) if json else str(plan).replace("; ", "\n  "))
        return
    with show_progress(silent=quiet or json) as progress:
        found = command.measure(
            problem,
            prior_precision=prior_precision,
            curvature=curvature,
            method=method,
            tolerance=tolerance,
            progress=progress.line,
        )
        spectrum = command.spectrum(problem, curvature)
    if plot is not None:
        spectrum.plot(plot)
    if json:
        print(jsonlib.dumps({"evidence": found.to_dict(), "spectrum": spectrum.to_dict()}))
        return
    print(f"{found}\n\n{spectrum}\n{command.picture(spectrum)}")


@app.command(epilog="Example: noisescale sweep plan.toml --out my-runs --workers 4")
def sweep(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.toml", help="What to run.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the store. Default: the plan's name and '-runs'."),
    ] = None,
    workers: Workers = None,
    cluster: Cluster = None,
    retries: Annotated[int, typer.Option(help="New attempts at a run that failed.")] = 2,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run again what the store holds as failed.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run the runs of a plan that its store lacks."""
    from noisescale.sweep import load_plan, run_sweep
    from noisescale.sweep.listing import first_failure, make_folder, table

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
            progress=progress,
        )
    counts = {str(status): int(n) for status, n in frame["status"].value_counts().items()}
    if json:
        print(jsonlib.dumps({"store": str((folder / "runs.sqlite").resolve()), "runs": counts}))
    elif not quiet:
        Console().print(table(frame.sort_values("test_accuracy", ascending=False).head(10)))
        told = ", ".join(f"{n} {status}" for status, n in counts.items())
        print(f"{len(frame)} runs: {told}. All of them: noisescale runs {folder}")
    if (reason := first_failure(frame)) is not None:
        tail = f"noisescale runs {folder} --where status=failed --json has the tracebacks"
        _fail(f"{counts['failed']} of {len(frame)} runs failed, the first: {reason} ({tail})", 1)


@app.command(epilog="Example: noisescale runs my-runs --where 'batch_size<=30' --export small.csv")
def runs(
    store: Annotated[Path, typer.Argument(metavar="DIR", help="A store, or its folder.")],
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="TEST", help="Only runs with, say, 'batch_size<=30'. Repeatable."),
    ] = None,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help="Order by this column.")] = "finished",
    limit: Annotated[int, typer.Option(help="Show so many rows at the most.")] = 50,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all columns to a .csv or .parquet file."),
    ] = None,
    curves: Annotated[
        bool, typer.Option("--curves", help="Export a row an evaluation, not a row a run.")
    ] = False,
    salvage: Annotated[
        Path | None,
        typer.Option(metavar="NEW", help="Copy what a damaged store still holds to a new one."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List, filter and export the runs of a store; it may be in use."""
    from noisescale.checks import check_whole
    from noisescale.jobs.store import RunStore, copy_readable
    from noisescale.sweep.listing import choose, export_frame, table, to_json

    check_whole("limit", limit, at_least=1)
    if curves and export is None:
        raise InputError("--curves goes with --export: say where to write them.")
    if salvage is not None:
        count = copy_readable(store, salvage)
        print(jsonlib.dumps({"salvaged": count}) if json else f"{count} runs saved in {salvage}")
        return
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
    Console().print(table(frame.tail(limit)))
    if not quiet:
        print(f"{len(frame)} runs" + (f", the last {limit} shown" if len(frame) > limit else ""))


@app.command(
    epilog="Example: noisescale recipe --learning-rate 0.1 --batch-size 256 --momentum 0.9 "
    "--n-train 50000 --to-batch-size 8192"
)
def recipe(
    learning_rate: Annotated[float, typer.Option(help="For a cost averaged over examples.")],
    batch_size: Annotated[int, typer.Option(help="B.")],
    n_train: Annotated[int, typer.Option(help="Training examples, N.")],
    momentum: Annotated[float, typer.Option(help="m, without dampening.")] = 0.0,
    epochs: Annotated[
        float | None, typer.Option(help="Length of the run, to judge the momentum by.")
    ] = None,
    to_batch_size: Annotated[int | None, typer.Option(help="The new B.")] = None,
    to_n_train: Annotated[int | None, typer.Option(help="The new N.")] = None,
    to_learning_rate: Annotated[float | None, typer.Option(help="The new learning rate.")] = None,
    to_momentum: Annotated[float | None, typer.Option(help="The new momentum.")] = None,
    via: Annotated[
        str | None,
        typer.Option(help="What moves: learning_rate, momentum or batch_size."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="Only this rule: linear keeps εN/(B(1-m)), exact keeps g itself."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Change one quantity of a tuned recipe and keep its noise scale."""
    from noisescale.noise.scale import RULES, Recipe
    from noisescale.noise.show import comparison, notes

    tuned = Recipe(
        learning_rate=learning_rate,
        batch_size=batch_size,
        n_train=n_train,
        momentum=momentum,
        epochs=epochs,
    )
    changes = {
        "batch_size": to_batch_size,
        "n_train": to_n_train,
        "learning_rate": to_learning_rate,
        "momentum": to_momentum,
    }
    recipes, refused = {"tuned": tuned}, {}
    rules = RULES if rule is None else (rule,)
    for name in rules if any(value is not None for value in changes.values()) else ():
        try:
            made = tuned.scaled_to(**changes, via=via, rule=name)  # type: ignore[arg-type]
            recipes[f"{name} rule"] = made
        except InputError as error:  # told, unless no rule has an answer
            refused[f"{name} rule"] = error
    if len(refused) == len(rules):
        raise next(iter(refused.values()))
    if json:
        told = {name: str(error) for name, error in refused.items()}
        print(jsonlib.dumps({n: r.to_dict() for n, r in recipes.items()} | {"refused": told}))
        return
    Console().print(comparison(recipes))
    if not quiet:
        for note in (*(f"{name}: {error}" for name, error in refused.items()), *notes(recipes)):
            print(f"- {note}")


def _fail(message: str, code: int) -> NoReturn:
    print(f"noisescale: {message}", file=sys.stderr)
    raise SystemExit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"noisescale: warning: {message}", file=sys.stderr)


def main() -> None:
    """Run the command line: exit 0 done, 2 bad usage or input, 1 anything else."""
    warnings.showwarning = _show_warning
    try:
        raise SystemExit(app(standalone_mode=False) or 0)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted.", 130)
    except Exception as error:
        if "--debug" in sys.argv[1:]:
            raise
        if isinstance(error, InputError):
            _fail(str(error), 2)
        # Typer's usage errors have no public class that all its versions share.
        if (usage := getattr(error, "format_message", None)) is not None:
            if not usage():  # no arguments at all: the help was printed
                raise SystemExit(2) from None
            _fail(f"{usage()} (--help shows the options)", 2)
        reason = (str(error).splitlines() or [""])[0]
        _fail(f"{type(error).__name__}: {reason} (--debug shows where)", 1)
