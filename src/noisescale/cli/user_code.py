"""A user's own function, given as ``MODULE:FUNCTION``: what it raises is the user's to mend."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noisescale.errors import InputError


def load_function(what: str, name: str) -> Callable[..., Any]:
    """The function that ``name`` stands for; modules in the current folder come first."""
    from noisescale.imports import import_function

    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_function(what, name)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # the module itself raised while it was imported
        raise InputError(f"{what} {name!r} cannot be imported: {_sentence(error)}.") from error


def call(name: str, function: Callable[[], Any]) -> Any:
    """What the user's ``function`` returns."""
    try:
        return function()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} raised {_sentence(error)}.") from error


@contextmanager
def calls_back(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Time in which functions made by ``function`` are called: an error in its file is named."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == file
        ]
        if not lines:
            raise
        raise InputError(f"{name} raised {_sentence(error)} (line {lines[-1]}).") from error


def _sentence(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}".rstrip(".: ")
