"""noisescale: should I believe this minimum, and how loud is my SGD?

Public names load what they need on first use, so that ``import noisescale`` is instant and the
commands that compute nothing never wait for JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from noisescale._version import __version__
from noisescale.errors import InputError

if TYPE_CHECKING:
    from noisescale.training import (
        DenseNetwork,
        Evaluation,
        Progress,
        TrainResult,
        logistic_regression,
        paper_network,
        softmax_regression,
        train,
    )

__all__ = [
    # train as the paper does
    "DenseNetwork",
    "Evaluation",
    "InputError",
    "Progress",
    "TrainResult",
    "__version__",
    "logistic_regression",
    "paper_network",
    "softmax_regression",
    "train",
]

_HOME = {
    "DenseNetwork": "training",
    "Evaluation": "training",
    "Progress": "training",
    "TrainResult": "training",
    "logistic_regression": "training",
    "paper_network": "training",
    "softmax_regression": "training",
    "train": "training",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(f"noisescale.{_HOME[name]}"), name)
    if name in {"data", "training"}:
        return import_module(f"noisescale.{name}")
    raise AttributeError(f"module 'noisescale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "data", "training"]
