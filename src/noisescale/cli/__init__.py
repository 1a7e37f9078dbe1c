"""The command line, one module a command; each imports what it needs, so that help is instant."""

import functools
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from noisescale._version import __version__
from noisescale.cli import data, evidence, paper, recipe, report, runs, sweep, tune
from noisescale.errors import InputError
from noisescale.text import printable, shortened

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


class _InterruptedError(Exception):
    """Ctrl-C in a command, with what is to be said of it; Typer would end without a word."""


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """A command that only its end ends: neither sys.exit in a user's code, nor Ctrl-C unheard."""

    @functools.wraps(command)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except SystemExit as error:
            raise InputError(
                f"code that was called ended the program (sys.exit, code {error.code}): it must "
                "return, or raise an error."
            ) from error
        except KeyboardInterrupt as error:
            raise _InterruptedError(*getattr(error, "__notes__", ())) from error

    return guarded


for _command, _example in EXAMPLES.items():
    app.command(epilog=f"Example:\n\n{_example}")(_guarded(_command))
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
    _write_in_any_encoding()
    command = typer.main.get_command(app)
    _show_no_type_of_flags(command)
    with warnings.catch_warnings(), _signals() as received:
        warnings.showwarning = _show_warning
        try:
            code = command(given, standalone_mode=False) or 0
            if received:
                raise _InterruptedError
            raise SystemExit(code)
        except (KeyboardInterrupt, typer.Abort):
            _fail_interrupted(received)
        except Exception as error:
            # An import that was interrupted may make another error of it.
            if received or isinstance(error, _InterruptedError):
                _fail_interrupted(received, error)
            if "--debug" in given:
                raise
            if isinstance(error, FileNotFoundError) and _has_no_folder():
                _fail("the current folder has been removed: change to another, with cd.", 2)
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


def _write_in_any_encoding() -> None:
    """Write what the output's encoding lacks as escapes: no result is lost for a Greek letter."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, workers and all; which ones came."""
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    ours = threading.current_thread() is threading.main_thread()
    usual = (signal.SIG_DFL, signal.default_int_handler)  # under nohup it is another
    taken = [n for n in numbers if ours and n is not None and signal.getsignal(n) in usual]
    before = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail_interrupted(received: list[int], error: Exception | None = None) -> NoReturn:
    number = received[0] if received else signal.SIGINT
    how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    told = error.args if isinstance(error, _InterruptedError) else ()
    _fail(" ".join([f"{how}.", *map(str, told)]), 128 + number)


def _has_no_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _fail(message: str, code: int) -> NoReturn:
    line = shortened(printable(" ".join(message.split())))
    print(f"noisescale: {line}", file=sys.stderr)
    raise SystemExit(code)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"noisescale: warning: {shortened(printable(str(message)))}", file=sys.stderr)
