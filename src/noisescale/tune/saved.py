"""A tuning as a file: written by ``save`` and ``noisescale tune``, read without its runs."""

import math
from pathlib import Path
from typing import Any

from noisescale.checks import check_whole
from noisescale.plain import from_plain
from noisescale.saved import read_saved, write_saved
from noisescale.tune.result import TuneResult

_LARGEST = 1e100  # of a score, and of seconds
KIND = "noisescale tuning"


def save(result: TuneResult, path: Path | str) -> None:
    """Write the result into a ``.json`` file."""
    write_saved(path, KIND, result)


def load(path: Path | str) -> TuneResult:
    """What :func:`save` wrote."""
    return read_saved(path, KIND, _read)


def _read(plain: Any) -> TuneResult:
    result: TuneResult = from_plain(TuneResult, plain)
    for part in (result, *result.trail):
        for name, value in vars(part).items():
            if isinstance(value, float) and abs(value) > _LARGEST:
                raise ValueError(f"field {name}: {value} has no sensible size")
            if name.endswith("_std") and value is not None and value < 0:
                raise ValueError(f"field {name}: a standard error is at least 0, got {value}")
    for name in ("updates_before", "updates_after", "n_runs", "n_updates"):
        check_whole(f"field {name}", getattr(result, name), at_least=1)
    if not all(0 < result.projected_speedup(k) < math.inf for k in (1, 64)):  # of NaN neither
        raise ValueError("no speed-up can be computed from its numbers")
    return result
