"""What an optimiser says of its update: learning rate, momentum, second moments, loss scale."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisescale.torch.update import HALF

# What divides by roots of second moments, and these alone; RAdam does not in its first steps.
_DIVIDE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.SparseAdam)
_FRAMES = 12  # how far above an optimiser's step a scaler's stands


def learning_rate(optimizer: Any) -> float:
    """Of the first group of parameters; NaN if there is no optimiser."""
    return float(optimizer.param_groups[0]["lr"]) if optimizer is not None else math.nan


def momentum(optimizer: Any) -> float:
    """SGD's; NaN for optimisers of another kind, to which the paper's g does not apply."""
    if optimizer is None or "betas" in optimizer.param_groups[0]:
        return math.nan
    return float(optimizer.param_groups[0].get("momentum", math.nan))


def is_adam(optimizer: Any) -> bool:
    """Whether its steps divide by roots of second moments."""
    return isinstance(getattr(optimizer, "optimizer", optimizer), _DIVIDE)


def several_rates(optimizer: Any) -> bool:
    """Whether groups of parameters have different learning rates."""
    return optimizer is not None and len({float(g["lr"]) for g in optimizer.param_groups}) > 1


def adam_metric(optimizer: Any, params: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """1/(sqrt(v/(1 - beta2^t)) + eps)^2 of every entry, by which Adam's step divides it.

    v are the largest second moments so far under amsgrad. SparseAdam's step divides by
    (sqrt(v) + eps)/sqrt(1 - beta2^t). Entries that never had a gradient, whose v is 0, have the
    weight 0. None for other optimisers, and while there are no moments.

    v are those that the last step has left. With the present gradient in them, the metric would
    depend on the noise that it is to measure: |G|^2 would come out too small, by
    2 (1 - beta2)/(1 - beta2^t) tr S/B to first order.
    """
    if not is_adam(optimizer):
        return None
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside of Accelerate's wrapper
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    made = {}
    for name, p in params.items():
        state, group = optimizer.state.get(p, {}), groups.get(id(p))
        if group is None or "exp_avg_sq" not in state:
            return None
        v = state.get("max_exp_avg_sq", state["exp_avg_sq"])
        v = v.float() if v.dtype in HALF else v
        correction = math.sqrt(1 - float(group["betas"][1]) ** float(state["step"]))
        eps = group["eps"] / (correction if isinstance(optimizer, torch.optim.SparseAdam) else 1)
        made[name] = (v.sqrt() / correction).add_(eps).pow_(-2).masked_fill_(v == 0, 0.0)
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
