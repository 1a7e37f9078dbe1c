"""A batch schedule from a saved history of the critical batch size.

The readings scatter and the batch may only grow, so it follows the non-decreasing curve that is
nearest to their logarithms (isotonic regression), rounded down to powers of two or to multiples, of
sequences if it is in tokens: not beyond what was measured, but for the smallest batch that can be,
and neither a high reading nor a low one decides alone.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from noisescale.checks import check_learning_rate, check_path, check_whole
from noisescale.errors import InputError
from noisescale.noise.devices import batch_step, check_units
from noisescale.noise.schedule import BatchSchedule, Stage
from noisescale.noise.watch.saved import load


def schedule_of(
    history: Any,
    *,
    batch_size: int | None,
    learning_rate: float | None,
    n_train: int | None,
    multiple_of: int | None,
    max_batch_size: int | None,
    unit: str,
    sequence_length: int | None,
) -> BatchSchedule:
    """See :meth:`noisescale.BatchSchedule.from_history`."""
    frame = _read(history, unit)
    step = batch_step(multiple_of, unit, sequence_length)
    check_units(step, None, unit, sequence_length)
    cap, limit = _cap(step, n_train, max_batch_size, unit)
    rate = math.nan if learning_rate is None else check_learning_rate(learning_rate)
    starts, critical = _readings(frame, batch_size, unit)
    followed = np.exp(isotonic_regression(np.log(critical)).x)
    stages: list[Stage] = []
    for start, value in zip(starts.tolist(), followed.tolist(), strict=True):
        size = _rounded(min(value * (1 + 1e-12), cap), step, doubling=multiple_of is None)
        if stages and size <= stages[-1].batch_size:
            continue
        start = start if stages else 0.0  # the first stage reaches back to the start of training
        epoch = math.nan if n_train is None else start / n_train
        # A history does not say of which optimizer it is, so no noise scale is told.
        stages.append(Stage(epoch, rate, size, math.nan, start))
    notes = [f"from {len(critical)} readings of the critical batch size"]
    if len(critical) < len(frame):
        notes.append(f"{len(frame) - len(critical)} readings were undetermined and are left out")
    if followed[0] < step * (1 - 1e-12):
        notes.append(
            f"the critical batch size begins at {followed[0]:.3g}, below the smallest batch, {step}"
        )
    if followed[-1] > cap:
        notes.append(f"the batch is held at {stages[-1].batch_size} by {limit}")
    return BatchSchedule(tuple(stages), tuple(notes), unit, sequence_length)


def _read(history: Any, unit: str) -> pd.DataFrame:
    """A frame, that of a watched run, or what a file holds."""
    if isinstance(history, (str, Path)):
        if check_path("history", history).suffix.lower() == ".json":
            return _read(load(history), unit)
        try:
            history = pd.read_csv(history)
        except (OSError, ValueError) as error:
            raise InputError(f"the history {str(history)!r} cannot be read ({error}).") from None
    watched = getattr(history, "history", None)  # of noisescale.watch, and of what it saved
    if isinstance(watched, pd.DataFrame):
        if (counted := f"{getattr(history, 'unit', 'example')}s") != unit:
            raise InputError(f"this run was watched in {counted}: say unit={counted!r}.")
        history = watched
    if not isinstance(history, pd.DataFrame):
        raise InputError(
            "history must be a watched run, a frame, or the path of a .csv or .json file, got "
            f"{type(history).__name__}."
        )
    return history.rename(columns={"update": "step"}) if "step" not in history else history


def _readings(
    frame: pd.DataFrame, batch_size: int | None, unit: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Examples (or tokens) seen, and the critical batch size there, where it is determined."""
    if "critical_batch_size" not in frame:
        raise InputError(f"the history has no column critical_batch_size, but {_listed(frame)}.")
    critical = _numbers(frame["critical_batch_size"])
    if unit in frame:
        starts = _numbers(frame[unit])
    elif "step" in frame:
        if "batch_size" in frame:
            sizes = _numbers(frame["batch_size"])
        elif batch_size is not None:
            sizes = np.full(len(frame), float(check_whole("batch_size", batch_size, at_least=1)))
        else:
            raise InputError(
                f"the history counts steps: give the batch_size of the run, in {unit}, or a column "
                f"of {unit} seen."
            )
        steps = _numbers(frame["step"])
        starts = np.cumsum(np.diff(steps, prepend=0.0) * sizes)
    else:
        raise InputError(f"the history has no column step or {unit}, but {_listed(frame)}.")
    good = np.isfinite(critical) & (critical > 0) & np.isfinite(starts)
    if "high" in frame:  # of a watched run: without an upper end it is not resolved
        good &= np.isfinite(_numbers(frame["high"]))
    if not good.any():
        raise InputError("the history has no reading of the critical batch size above 0.")
    starts, critical = starts[good], critical[good]
    if (np.diff(starts) <= 0).any() or starts[0] < 0:
        raise InputError("the history must be in order, from the start of training to its end.")
    return starts, critical


def _numbers(column: "pd.Series[Any]") -> np.ndarray[Any, Any]:
    return pd.to_numeric(column, errors="coerce").to_numpy(float)


def _listed(frame: pd.DataFrame) -> str:
    return ", ".join(map(str, list(frame.columns)[:6])) or "no columns at all"


def _cap(
    step: int, n_train: int | None, max_batch_size: int | None, unit: str
) -> tuple[float, str]:
    """The largest batch, and in words what limits it."""
    limits = [(math.inf, "nothing")]
    if n_train is not None:
        n_train = check_whole("n_train", n_train, at_least=1)
        limits.append((n_train, f"n_train, {n_train} {unit}"))
    if max_batch_size is not None:
        most = check_whole("max_batch_size", max_batch_size, at_least=1)
        limits.append((most, f"max_batch_size, {most}"))
    cap, limit = min(limits)
    if cap < step:
        raise InputError(f"the smallest batch is {step}, which is more than {limit} allows.")
    return cap, limit


def _rounded(size: float, step: int, *, doubling: bool) -> int:
    """Down to a power of two of ``step``, or to a multiple of it; at least ``step``."""
    steps = max(1, int(size // step))
    return step * (1 << steps.bit_length() - 1 if doubling else steps)
