"""Stored runs as arrays over seeds, and what is compared between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noisescale.jobs.store import RunSource
from noisescale.plain import from_plain

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Runs:
    """The runs of a plan: a row a run, and a row an evaluation."""

    frame: pd.DataFrame
    curves: pd.DataFrame

    @classmethod
    def of(cls, source: RunSource, keys: Sequence[str]) -> Self:
        """The runs with these keys, from wherever runs are kept."""
        frame = source.frame(keys)
        if len(frame) != len(set(keys)):
            raise KeyError(f"{len(set(keys)) - len(frame)} of {len(set(keys))} runs are not there")
        return cls(frame, source.curves(keys))

    def as_plain(self) -> list[str]:
        """The keys alone: runs stay where runs are kept."""
        return self.keys

    @classmethod
    def of_plain(cls, plain: Any, source: RunSource | None) -> Self:
        """The runs with these keys, from the ``source``."""
        if source is None:
            raise TypeError("runs are kept by their keys alone: say where the runs are")
        return cls.of(source, from_plain(list[str], plain))

    @property
    def keys(self) -> list[str]:
        """The runs' keys, in order."""
        return sorted(self.frame["key"])

    def where(self, **fields: Any) -> "Runs":
        """The runs whose configuration has these values."""
        chosen = np.ones(len(self.frame), bool)
        for name, value in fields.items():
            chosen &= (self.frame[name] == value).to_numpy(bool)
        frame = self.frame[chosen].sort_values("seed")
        return Runs(frame, self.curves[self.curves["key"].isin(frame["key"])])

    def final(self, metric: str, **fields: Any) -> Array:
        """The metric after the last step, by seed. A run that diverged has learnt nothing."""
        return np.array(
            [self._final(row, metric) for _, row in self.where(**fields).frame.iterrows()]
        )

    def curve(self, metric: str, **fields: Any) -> tuple[Array, Array]:
        """The steps, and the metric at each: a row a seed; after divergence it is chance."""
        runs = self.where(**fields)
        table = runs.curves.pivot(index="key", columns="step", values=metric)
        rows = []
        for _, run in runs.frame.iterrows():
            row = (
                table.loc[run["key"]].to_numpy(float)
                if run["key"] in table.index
                else np.full(table.shape[1], math.nan)
            )
            rows.append(np.where(np.isnan(row), _chance(run, metric), row))
        return table.columns.to_numpy(float), np.array(rows)

    @staticmethod
    def _final(row: "pd.Series[Any]", metric: str) -> float:
        return float(row[metric]) if row["status"] == "done" else _chance(row, metric)


def _chance(row: "pd.Series[Any]", metric: str) -> float:
    """What guessing at random scores."""
    n_classes = 10 if pd.isna(row["n_classes"]) else int(row["n_classes"])
    return 1 / n_classes if metric.endswith("accuracy") else math.log(n_classes)


def updates_to(steps: Array, curve: Array, share: float = 0.95) -> float:
    """Updates until the curve reaches ``share`` of its last value, interpolated in log steps."""
    target = share * curve[-1]
    k = int(np.argmax(curve >= target))
    if k == 0 or steps[k - 1] < 1:
        return float(max(steps[k], 1))
    low, high = np.log(steps[k - 1 : k + 1])
    part = (target - curve[k - 1]) / (curve[k] - curve[k - 1])
    return float(np.exp(low + part * (high - low)))


def short(value: float) -> float | None:
    """Four digits, for ``claims.json``; None for what is not known."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
