"""The settings that put the law of the best batch size to the test, and what it said of them.

The predictions stand in ``results/predictions.csv``, which was committed before the runs that test
them; the constants in it were fitted to the runs of figures 5, 6 and 7.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from noisescale.errors import InputError
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM, N_CLASSES, N_TRAIN
from noisescale.paper.scaling import Setting, setting
from noisescale.paper.shipped import folder

PREDICTIONS = "predictions.csv"
_PAPER_WIDTHS = (800,)


@dataclass(frozen=True)
class Case:
    """A setting whose best batch size is predicted. Learning rates in the paper's unit.

    ``role``: ``"judged"`` or ``"reported"`` (beside the claim).
    """

    learning_rate: float
    momentum: float
    n_train: int
    steps: int
    data: str = "mnist"
    hidden_widths: tuple[int, ...] = _PAPER_WIDTHS
    role: str = "judged"

    @property
    def at(self) -> dict[str, Any]:
        """What the law predicts from, in its own unit."""
        return {
            "learning_rate": self.learning_rate / N_CLASSES,
            "momentum": self.momentum,
            "n_train": self.n_train,
            "steps": self.steps,
        }

    def setting(self, start: float) -> Setting:
        """Where to run, and where to look first."""
        base = setting(
            steps=self.steps,
            learning_rate=self.learning_rate,
            n_train=self.n_train,
            momentum=self.momentum,
        )
        return Setting({**base.fields, "hidden_widths": self.hidden_widths}, start)


CASES = (
    *(Case(LEARNING_RATE, MOMENTUM, N, 5_000) for N in (20_000, 27_000, 36_000, 46_000, 60_000)),
    *(Case(LEARNING_RATE, MOMENTUM, N, 40_000) for N in (20_000, 60_000)),
    Case(3.0, 0.8, 8_000, 6_000),
    Case(0.3, MOMENTUM, 4_000, 20_000),
    Case(LEARNING_RATE, MOMENTUM, N_TRAIN, 10_000, hidden_widths=(200,), role="reported"),
)


@dataclass(frozen=True)
class Prediction:
    """What was written down for a case."""

    case: Case
    value: float
    low: float
    high: float
    branch: str


def read_predictions() -> tuple[Prediction, ...]:
    """What was committed, in the order of the table; nothing if it is not shipped."""
    place = folder()
    if place is None or not (place / PREDICTIONS).exists():
        return ()
    try:
        rows = pd.read_csv(place / PREDICTIONS).to_dict("records")
        return tuple(_prediction(row) for row in rows)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{place / PREDICTIONS} cannot be read ({error}): install noisescale again."
        ) from None


def _prediction(row: Mapping[Any, Any]) -> Prediction:
    return Prediction(
        Case(
            float(row["learning_rate"]),
            float(row["momentum"]),
            int(row["n_train"]),
            int(row["steps"]),
            str(row["data"]),
            tuple(json.loads(row["hidden_widths"])),
            str(row["role"]),
        ),
        float(row["predicted"]),
        float(row["low"]),
        float(row["high"]),
        str(row["branch"]),
    )
