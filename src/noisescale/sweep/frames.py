"""Frames of runs that users give, checked: numbers that are numbers, statuses that are known."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from noisescale.errors import InputError
from noisescale.jobs.rows import STATUSES
from noisescale.training.settings import COST_CONVENTIONS


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


def check_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs made with numbers within reason, and their learning rates :func:`per_example`."""
    for column in ("learning_rate", "batch_size", "n_train"):
        check_numbers(runs, column, "from 1e-12 to 1e12", lambda v: 1e-12 <= v <= 1e12)
    check_numbers(runs, "momentum", "in [0, 1)", lambda v: 0 <= v < 1)
    large = runs[runs["batch_size"] > runs["n_train"]]
    if len(large):
        B, N = large[["batch_size", "n_train"]].iloc[0]
        raise InputError(f"batch_size must be at most n_train in every run, got {B:g} of {N:g}.")
    return per_example(runs)


def per_example(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with the learning rates of a cost per example, of which the noise scale is.

    Under a cost per class they are larger by the number of classes, for the same updates.
    """
    if "cost_convention" not in runs:
        return runs
    known = runs["cost_convention"].isin(COST_CONVENTIONS)
    if not known.all():
        odd = runs.loc[~known, "cost_convention"].iloc[0]
        raise InputError(
            f"a run's cost_convention must be one of {', '.join(COST_CONVENTIONS)}, got {odd!r}."
        )
    divided = runs["cost_convention"] == "per_class"
    if not divided.any():
        return runs
    check_frame(runs, ("n_classes",))
    per_class = runs[divided]
    if per_class["n_classes"].nunique() == 1:  # failed runs may not know it
        per_class = per_class.assign(n_classes=per_class["n_classes"].max())
    classes = np.ones(len(runs))
    classes[divided] = check_numbers(per_class, "n_classes", "from 1 on", lambda v: v >= 1)
    rates = runs["learning_rate"].astype(float)  # 5.6/10 is 0.56, to the digits that people give
    usual = [
        float(f"{rate / C:.12g}") if C > 1 else rate for rate, C in zip(rates, classes, strict=True)
    ]
    return runs.assign(learning_rate=usual, cost_convention="per_example")


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
