"""Runs that ship as tables: ``figure*.csv``, a row a run, ``curves.csv``, a row an evaluation."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.sweep.config import RunConfig

_LISTS = ["hidden_widths"]
_TEXTS = ["key", "status", "data", "cost_convention", *_LISTS]
_WHOLE = ["batch_size", "n_train", "steps", "seed", "n_classes", "step"]
# What a table tells of a run's configuration; the rest is as it is unless told otherwise.
CONFIGURED = (
    "data",
    "learning_rate",
    "batch_size",
    "momentum",
    "n_train",
    "steps",
    "prior_precision",
    "cost_convention",
    "hidden_widths",
    "seed",
)


class TableSource:
    """Shipped runs, read like a store: a :class:`noisescale.jobs.store.RunSource`."""

    def __init__(self, folder: Path) -> None:
        parts = [_read(path) for path in sorted(folder.glob("figure*.csv"))]
        runs = pd.concat(parts, ignore_index=True).drop_duplicates("key").set_index("key")
        for column in _LISTS:
            runs[column] = runs[column].map(json.loads)
        self._runs = runs.sort_index()
        self._curves = _read(folder / "curves.csv").sort_values(["key", "step"])

    def statuses(self, keys: Iterable[str]) -> dict[str, str]:
        """The status of the runs by key."""
        status = self._runs["status"]
        return {key: str(status[key]) for key in keys if key in status.index}

    def frame(self, keys: Iterable[str]) -> pd.DataFrame:
        """A row a run, ordered by key."""
        return self._runs.loc[self._runs.index.isin(set(keys))].reset_index()

    def curves(self, keys: Iterable[str]) -> pd.DataFrame:
        """A row an evaluation, ordered by key and step."""
        return self._curves[self._curves["key"].isin(set(keys))]


def config_of(row: "pd.Series[Any]", taken: Sequence[int] = ()) -> RunConfig | None:
    """The configuration whose hash is the row's key; None if the table does not tell it.

    ``taken`` are the steps at which the run's metrics were taken, if they ship. The tables do not
    name how often that was: the key tells.
    """
    told = {name: row[name] for name in CONFIGURED}
    ways: list[str | tuple[int, ...]] = ["final", "log"]
    if taken:
        ways.append(tuple(int(step) for step in taken))
    for evaluate_at in ways:
        config = RunConfig(**told, evaluate_at=evaluate_at)
        if config.key == row["key"]:
            return config
    return None


def _read(path: Path) -> pd.DataFrame:
    """A table with its numbers to the last digit, which pandas' own parser need not keep."""
    frame = pd.read_csv(path, dtype=str)
    for column in frame.columns.difference(_TEXTS):
        frame[column] = frame[column].astype(float)
    if "status" in frame and "data" not in frame:
        frame["data"] = "mnist"  # of which tables that name none are
    whole = frame.columns.intersection(_WHOLE)
    return frame.astype(dict.fromkeys(whole, int))
