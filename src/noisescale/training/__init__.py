"""The SGD that the paper runs: models, samplers, and a compiled training loop."""

from typing import TYPE_CHECKING

from noisescale.imports import on_first_use

if TYPE_CHECKING:
    from noisescale.training.evaluation import Evaluation
    from noisescale.training.models import (
        INITIALISATIONS,
        DenseNetwork,
        logistic_regression,
        paper_network,
        softmax_regression,
    )
    from noisescale.training.result import TrainResult, Waypoint
    from noisescale.training.sampling import SAMPLERS, BatchStream
    from noisescale.training.settings import COST_CONVENTIONS, Settings
    from noisescale.training.sgd import train

__all__ = [
    "COST_CONVENTIONS",
    "INITIALISATIONS",
    "SAMPLERS",
    "BatchStream",
    "DenseNetwork",
    "Evaluation",
    "Settings",
    "TrainResult",
    "Waypoint",
    "logistic_regression",
    "paper_network",
    "softmax_regression",
    "train",
]

_HOMES = {
    "evaluation": ("Evaluation",),
    "models": (
        "INITIALISATIONS",
        "DenseNetwork",
        "logistic_regression",
        "paper_network",
        "softmax_regression",
    ),
    "result": ("TrainResult", "Waypoint"),
    "sampling": ("SAMPLERS", "BatchStream"),
    "settings": ("COST_CONVENTIONS", "Settings"),
    "sgd": ("train",),
}
__getattr__ = on_first_use(
    {name: f"{__name__}.{home}" for home, names in _HOMES.items() for name in names}
)
