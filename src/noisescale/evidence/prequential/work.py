"""One stage: train on the examples before a block, and pay for the block."""

import math
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from noisescale.evidence.prequential.blocks import fit_seed, order_of, take
from noisescale.evidence.prequential.fits import Fit, check_gaussian, check_probabilities
from noisescale.evidence.prequential.mixture import class_losses, gaussian_losses
from noisescale.evidence.prequential.targets import Targets
from noisescale.jobs.keyed import Keyed
from noisescale.jobs.packing import unpack
from noisescale.jobs.record import guarded

WORK = f"{__name__}:pay_stages"


@dataclass(frozen=True, kw_only=True)
class Stage(Keyed):
    """A training on the first ``start`` examples of an order, paid on those up to ``stop``."""

    kind = "prequential"

    procedure: str  # its identity, with that of the data
    seed: int
    order: int
    start: int
    stop: int
    ensemble: int

    @property
    def cost(self) -> float:
        """Trainings, the later ones as a rule the longer ones."""
        return self.ensemble * (100.0 + self.start)


@dataclass(frozen=True, eq=False)
class Procedure:
    """What is trained on what, and how its predictions are paid."""

    fit: Fit
    x: Any
    targets: Targets
    temperatures: tuple[float, ...]
    floor: float

    def pay(self, stage: Stage) -> tuple[list[float], float]:
        """What each temperature pays for the block, and the plain score there.

        The score is the accuracy, or the root mean square error for real targets.
        """
        order = order_of(stage.seed, stage.order, len(self.targets.given))
        past, block = order[: stage.start], order[stage.start : stage.stop]
        predictions = []
        for member in range(stage.ensemble):
            seed = fit_seed(stage.seed, stage.order, stage.start, member)
            predict = self.fit(take(self.x, past), self.targets.given[past], seed=seed)
            if not callable(predict):
                raise TypeError(
                    "fit must return a function that predicts, such as predict_proba, got "
                    f"{type(predict).__name__}"
                )
            predictions.append(predict(take(self.x, block)))
        paid, classes = self.targets.paid[block], self.targets.classes
        if classes is None:
            pairs = [check_gaussian(prediction, len(block)) for prediction in predictions]
            means, stds = (np.stack(part) for part in zip(*pairs, strict=True))
            losses = gaussian_losses(means, stds, paid, self.temperatures)
            return losses.tolist(), float(np.sqrt(np.mean((means.mean(axis=0) - paid) ** 2)))
        checked = [check_probabilities(part, classes, len(block)) for part in predictions]
        p = np.mean(checked, axis=0)  # (n, K)
        losses = class_losses(p, paid, self.temperatures, self.floor)
        return losses.tolist(), float(np.mean(p.argmax(axis=1) == paid))


def pay_stages(packed: bytes, stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each stage. This is what workers execute."""
    return [guarded(lambda: _record(packed, Stage(**stage))) for stage in stages]  # noqa: B023


def _record(packed: bytes, stage: Stage) -> dict[str, Any]:
    with redirect_stdout(sys.stderr):  # stdout may carry JSON
        procedure = _procedure(packed)
        losses, score = procedure.pay(stage)
    # JSON has no infinity: what a temperature cannot pay is null.
    finite = [loss if math.isfinite(loss) else None for loss in losses]
    return {
        "status": "done",
        "error": None,
        "history": {"temperature": list(procedure.temperatures), "loss": finite},
        "final": {"score": score},
    }


@lru_cache(maxsize=1)  # the same object again, so that whatever it compiled is found again
def _procedure(packed: bytes) -> Procedure:
    procedure: Procedure = unpack(packed)
    return procedure
