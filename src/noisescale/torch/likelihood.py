"""The likelihoods of :mod:`noisescale.likelihood` in PyTorch: nats per example."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from noisescale.checks import check_choice
from noisescale.errors import InputError

Nll = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
NAMES = ("categorical", "bernoulli", "gaussian")


def resolve_nll(likelihood: Any) -> tuple[str, Nll]:
    """The name and the nll of a likelihood, given by its name or as ``ns.gaussian(precision)``."""
    precision = getattr(likelihood, "noise_precision", None)
    if precision is not None:
        return "gaussian", gaussian(precision)
    if not isinstance(likelihood, str):
        raise InputError(
            f"likelihood must be one of {', '.join(NAMES)} or ns.gaussian(noise_precision) for a "
            f"PyTorch module, got {type(likelihood).__name__}: a function of JAX arrays cannot be "
            "differentiated by PyTorch."
        )
    nlls = {"categorical": _categorical, "bernoulli": _bernoulli, "gaussian": gaussian(1.0)}
    return likelihood, nlls[check_choice("likelihood", likelihood, NAMES)]


def _categorical(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs, y, reduction="none")


def _bernoulli(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.softplus(torch.where(y == 1, -outputs[:, 0], outputs[:, 0]))


def gaussian(precision: float) -> Nll:
    """Gaussian noise of this precision on every output."""

    def nll(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        residuals = outputs - y.reshape(outputs.shape)
        constant = 0.5 * outputs.shape[1] * math.log(2 * math.pi / precision)
        return 0.5 * precision * (residuals**2).sum(dim=1) + constant

    return nll
