"""The one exception that means "your input", as opposed to "our bug", and warnings at your line."""

import os
import sys
import warnings
from pathlib import Path

from noisescale.text import printable, shortened

_HOME = f"{Path(__file__).parent}{os.sep}"
# What stands between a user's line and a hook of ours.
_FRAMEWORKS = ("torch", "accelerate", "lightning", "pytorch_lightning", "transformers", "skorch")


class InputError(ValueError):
    """Input that noisescale refuses; the message is one sentence saying what to do instead.

    It is a ``ValueError``, so code that already catches those keeps working; the command line
    turns it into one line and exit code 2. What it repeats of the input is cut where it is long,
    and commands no terminal.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shortened(printable(message)))


def warn_user(message: str, category: type[Warning]) -> None:
    """A warning that points to the line outside of noisescale and of frameworks which led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_HOME)
        or str(frame.f_globals.get("__name__")).partition(".")[0] in _FRAMEWORKS
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
