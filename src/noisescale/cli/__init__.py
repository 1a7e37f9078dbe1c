"""The command line, one module a command; each imports what it needs, so that help is instant."""

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from noisescale._version import __version__
from noisescale.cli import data, evidence, paper, recipe, report, runs, sweep, tune
from noisescale.errors import InputError

app = typer.Typer(
    name="noisescale",
    help="Should I believe this minimum, and how loud is my SGD?",
    epilog="Begin with: noisescale evidence noisescale.examples:digits --at map",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Each works when it is pasted; a line ends where a shell goes on to the next.
_RUNS = "noisescale sweep --example > plan.toml && noisescale sweep plan.toml"
EXAMPLES: dict[Callable[..., None], str] = {
    paper.paper: "noisescale paper --only units --scale smoke --out /tmp/report",
    report.report: f"{_RUNS} &&\n\nnoisescale report plan-runs",
    evidence.evidence: "noisescale evidence noisescale.examples:digits --at map",
    sweep.sweep: _RUNS,
    runs.runs: f"{_RUNS} &&\n\nnoisescale runs plan-runs --where 'batch_size<=4'",
    recipe.recipe: "noisescale recipe --learning-rate 0.1 --batch-size 256 --to-batch-size 1024",
    tune.tune: "noisescale tune noisescale.examples:train_digits --epochs 5 --max-runs 60",
}
for _command, _example in EXAMPLES.items():
    app.command(epilog=f"Example:\n\n{_example}")(_command)
app.add_typer(data.data_app, name="data")


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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line: exit 0 done, 2 bad usage or input, 1 anything else."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = typer.main.get_command(app)
    _show_no_type_of_flags(command)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            raise SystemExit(command(given, standalone_mode=False) or 0)
        except (KeyboardInterrupt, typer.Abort):
            _fail("interrupted.", 130)
        except Exception as error:
            if "--debug" in given:
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


def _show_no_type_of_flags(command: Any, parent: typer.Context | None = None) -> None:
    """Typer writes ``<bool>`` beside flags, which take no value."""
    context = typer.Context(command, parent=parent, **command.context_settings)
    for option in command.get_params(context):
        if getattr(option, "is_flag", False):
            option.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        _show_no_type_of_flags(subcommand, context)


def _fail(message: str, code: int) -> NoReturn:
    print(f"noisescale: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"noisescale: warning: {message}", file=sys.stderr)
