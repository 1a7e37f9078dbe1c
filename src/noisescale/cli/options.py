"""Options that several commands have, and the checks of paths, made before any work begins."""

import os
from pathlib import Path
from typing import Annotated

import typer

from noisescale.errors import InputError

PICTURES = (".png", ".svg", ".pdf")


def check_path(path: Path | None) -> Path | None:
    """``path`` if the system can hold such a path, whether or not something is there."""
    if path is None:
        return None
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # too long, a NUL in it, a loop, not ours to look into
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{_short(path)} cannot be used ({reason}): name another path.") from None
    return path


def check_picture(path: Path | None) -> Path | None:
    """``path`` if a picture can be drawn into it."""
    if check_path(path) is None:
        return None
    assert path is not None
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"--plot must end in {', '.join(PICTURES)}, got {_short(path)}.")
    if path.is_dir():
        raise InputError(f"--plot must be a file, and {_short(path)} is a folder: name a file.")
    if not (path.parent.is_dir() and os.access(path if path.exists() else path.parent, os.W_OK)):
        raise InputError(f"--plot cannot be written to {_short(path)}: name another folder.")
    return path


def _short(path: Path) -> str:
    text = str(path)
    return repr(text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}")


# Only main() asks whether --debug was given, so that it also covers errors before a command runs.
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

Plot = Annotated[
    Path | None,
    typer.Option(callback=check_picture, metavar="FILE", help="Draw it into this .png or .svg."),
]
Workers = Annotated[
    int | None, typer.Option(metavar="K", help="Local processes. Default: as many as cores.")
]
Cluster = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786.")
]
