"""What an optimiser says of its update: learning rate, momentum, second moments, loss scale."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisescale.torch.update import HALF

_FRAMES = 12  # how far above an optimiser's step a scaler's stands


def learning_rate(optimizer: Any) -> float:
    """Of the first group of parameters; NaN if there is no optimiser."""
    return float(optimizer.param_groups[0]["lr"]) if optimizer is not None else math.nan


def momentum(optimizer: Any) -> float:
    """SGD's; NaN for optimisers of another kind, to which the paper's g does not apply."""
    if optimizer is None or "betas" in optimizer.param_groups[0]:
        return math.nan
    return float(optimizer.param_groups[0].get("momentum", math.nan))


def several_rates(optimizer: Any) -> bool:
    """Whether groups of parameters have different learning rates."""
    return optimizer is not None and len({float(g["lr"]) for g in optimizer.param_groups}) > 1


def adam_metric(optimizer: Any, params: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """1/(sqrt(v/(1 - beta2^t)) + eps)^2 of every entry, by which Adam's step divides it.

    None while the optimiser has no second moments.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    made = {}
    for name, p in params.items():
        state, group = optimizer.state.get(p, {}), groups.get(id(p))
        if group is None or "exp_avg_sq" not in state:
            return None
        v, step = state["exp_avg_sq"], float(state.get("step", math.inf))
        v = v.float() if v.dtype in HALF else v
        beta = group["betas"][1] if "betas" in group else 0.0
        made[name] = (v / (1 - beta**step)).sqrt_().add_(group.get("eps", 0.0)).pow_(-2)
    return made


def loss_scale() -> float:
    """The scale of the ``GradScaler`` that is stepping the optimiser just now; 1 without one.

    A scaler passes its scale to nobody: it is read from the caller, in whose step this is.
    """
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        scaler = frame.f_locals.get("self")
        if isinstance(scaler, torch.amp.GradScaler):
            return float(scaler.get_scale())
        if frame.f_back is None:
            break
        frame = frame.f_back
    return 1.0
