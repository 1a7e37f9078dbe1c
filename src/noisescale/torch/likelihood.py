"""The likelihoods of :mod:`noisescale.likelihood` in PyTorch: nats per example.

Outputs come as (b, C), an example's in one row; a sequence's (b, T C) are told from its labels.
"""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from noisescale.likelihood import Likelihood

Nll = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_LINEAR = 40.0  # from where on softplus(z) is z in float64; PyTorch's 20 is meant for float32


def nll_of(likelihood: Likelihood) -> Nll:
    """``(outputs, targets) -> nats``, one number an example."""
    if likelihood.function is not None:
        return likelihood.function
    if likelihood.name == "gaussian":
        assert likelihood.noise_precision is not None  # estimated where the outputs are known
        return _gaussian(likelihood.noise_precision)
    if likelihood.name == "categorical":
        return _categorical(likelihood.ignore_index)
    return {"bernoulli": _bernoulli, "poisson": _poisson}[likelihood.name]


def _categorical(ignored: int) -> Nll:
    def nll(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y.ndim == 1:
            return functional.cross_entropy(outputs, y, reduction="none")
        log_p = functional.log_softmax(outputs.reshape(*y.shape, -1), dim=2)  # (b, T, C)
        counts = y != ignored
        each = -log_p.gather(2, torch.where(counts, y, 0)[..., None])[..., 0]  # (b, T)
        return torch.where(counts, each, 0.0).sum(dim=1)

    return nll


def _bernoulli(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.where(y == 1, -outputs[:, 0], outputs[:, 0])
    return functional.softplus(z, threshold=_LINEAR)


def _gaussian(precision: float) -> Nll:
    def nll(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        residuals = outputs - y.reshape(outputs.shape)
        constant = 0.5 * outputs.shape[1] * math.log(2 * math.pi / precision)
        return 0.5 * precision * (residuals**2).sum(dim=1) + constant

    return nll


def _poisson(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    counts = y.reshape(outputs.shape).to(outputs.dtype)
    return (torch.exp(outputs) - counts * outputs + torch.lgamma(counts + 1)).sum(dim=1)
