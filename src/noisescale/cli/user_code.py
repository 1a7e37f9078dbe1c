"""A user's own function, given as ``MODULE:FUNCTION``: what it raises is the user's to mend."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noisescale.errors import InputError
from noisescale.imports import import_function, in_words, users_code


def load_function(what: str, name: str) -> Callable[..., Any]:
    """The function that ``name`` stands for; modules in the current folder come first."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    return import_function(what, name)


def call(name: str, function: Callable[[], Any]) -> Any:
    """What the user's ``function`` returns."""
    with users_code(f"{name} raised"):
        return function()


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
        if not lines and isinstance(error, Exception):
            raise
        where = f" (line {lines[-1]})" if lines else ""
        raise InputError(f"{name} raised {in_words(error)}{where}.") from error
