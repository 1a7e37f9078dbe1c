"""The record of a run, however it ends. Nothing here needs JAX."""

import platform
import socket
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from typing import Any

from noisescale._version import __version__

# Raised when a stored result would come out otherwise: old rows then no longer answer new plans.
RESULT_FORMAT = 1


def guarded(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` returns, with its circumstances; if it raises, the traceback instead."""
    began = time.perf_counter()
    try:
        record = run()
    except BaseException:  # a run must not end its worker, not even by sys.exit()
        record = {"status": "failed", "error": traceback.format_exc()}
    return {
        **record,
        "format": RESULT_FORMAT,
        "duration": time.perf_counter() - began,
        "host": socket.gethostname(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
    }


def last_line(error: object) -> str:
    """What a failed run's traceback comes to."""
    return (str(error or "").strip().splitlines() or ["its error was not stored"])[-1]


@cache
def _versions() -> dict[str, str]:
    installed = {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"noisescale": __version__, "python": platform.python_version(), **installed}
