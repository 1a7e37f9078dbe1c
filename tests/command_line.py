"""The command line in this process, from arguments to exit code."""

import contextlib
import io
from typing import NamedTuple

import pytest

from noisescale.cli import main


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def sentence(self):
        """The one line on stderr that it was refused with, but for warnings."""
        lines = [
            line for line in self.err.splitlines() if not line.startswith("noisescale: warning: ")
        ]
        assert (self.code, self.out, len(lines)) == (2, "", 1), self
        assert lines[0].startswith("noisescale: ")
        return lines[0].removeprefix("noisescale: ")


def run(*arguments, encoding=None):
    """What a command prints; in an encoding that is not the terminal's usual, its bytes."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding or "utf-8") for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main([str(argument) for argument in arguments])
    out, err = (_written(stream) for stream in (out, err))
    return Ended(ended.value.code, out if encoding else out.decode(), err.decode())


def _written(stream):
    stream.flush()
    return stream.buffer.getvalue()
