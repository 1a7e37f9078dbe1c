"""Frames of runs that users give, checked: numbers that are numbers, statuses that are known."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from noisescale.errors import InputError
from noisescale.jobs.rows import STATUSES


def check_frame(frame: pd.DataFrame, columns: tuple[str, ...]) -> pd.DataFrame:
    """A copy with these columns, once each, and statuses that are known, without failed runs."""
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"frame must be a pandas frame as run_sweep returns, got {type(frame).__name__}."
        )
    for column in ("status", *columns):
        count = int((frame.columns == column).sum())
        if count != 1:
            many = "no column" if count == 0 else f"{count} columns called"
            raise InputError(f"the frame has {many} {column!r}: give one as run_sweep returns.")
    known = frame["status"].map(lambda status: isinstance(status, str) and status in STATUSES)
    if not known.all():
        odd = frame.loc[~known.to_numpy(bool), "status"].iloc[0]
        raise InputError(f"a run's status must be one of {', '.join(STATUSES)}, got {odd!r}.")
    return frame[frame["status"] != "failed"].reset_index(drop=True)


def check_numbers(
    runs: pd.DataFrame, column: str, rule: str, holds: Callable[[float], bool]
) -> "pd.Series[float]":
    """The column as floats, all finite, for which ``holds``; ``rule`` says so in words."""
    numbers = pd.to_numeric(runs[column].map(_number), errors="coerce").astype(float)
    for given, number in zip(runs[column], numbers, strict=True):
        if not np.isfinite(number) or not holds(number):
            raise InputError(
                f"{column} must be a finite number {rule} in every run, got {str(given)[:40]!r}."
            )
    return numbers


def _number(value: object) -> object:
    """Numbers, of any type, and nothing else: a text of digits is a mistake somewhere before."""
    plain = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return value if plain else np.nan
