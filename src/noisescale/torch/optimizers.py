"""What an optimiser says of its update: learning rate, momentum, second moments, loss scale."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noisescale.noise.optimizer import known_class
from noisescale.torch.update import HALF

# What divides by roots of second moments, and these alone; RAdam does not in its first steps.
_DIVIDE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.SparseAdam)
_FRAMES = 12  # how far above an optimiser's step a scaler's stands


class Rate(NamedTuple):
    """What the noise scale of an update needs; NaN for what is unknown.

    ``momentum`` and ``dampening`` are plain SGD's: the paper's g applies to no other optimiser.
    """

    learning_rate: float = math.nan
    momentum: float = math.nan
    dampening: float = 0.0


def rate_of(optimizer: Any) -> tuple[Rate, str | None]:
    """The rate of the first group of parameters, and what to know if others differ from it."""
    if optimizer is None:
        return Rate(), None
    inner, kind = known_class(optimizer)
    groups = inner.param_groups
    rates = [float(group.get("lr", math.nan)) for group in groups]
    if kind != "SGD":
        return Rate(rates[0]), _several(rates)
    momenta = [float(group["momentum"]) for group in groups]
    # PyTorch ignores dampening without momentum.
    dampings = [float(group["dampening"]) if group["momentum"] else 0.0 for group in groups]
    used = list(zip(momenta, dampings, strict=True))
    if len(set(used)) > 1:
        return Rate(rates[0], used[0][0], math.nan), (
            "groups of parameters have different momenta: there is no one noise scale, and it is "
            "left out"
        )
    return Rate(rates[0], *used[0]), _several(rates)


def is_adam(optimizer: Any) -> bool:
    """Whether its steps divide by roots of second moments."""
    return isinstance(getattr(optimizer, "optimizer", optimizer), _DIVIDE)


def _several(rates: Sequence[float]) -> str | None:
    if len(set(rates)) == 1:
        return None
    return (
        "groups of parameters have different learning rates: the noise scale is the first group's"
    )


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


def is_nested(optimizer: Any) -> bool:
    """Whether this is a step inside of a step, as where a subclass calls that of its base.

    PyTorch wraps the steps of both classes, and both call the optimiser's hooks.
    """
    frame, n = sys._getframe(1), 0
    for _ in range(_FRAMES):
        n += frame.f_code.co_name == "wrapper" and frame.f_locals.get("self") is optimizer
        if frame.f_back is None:
            break
        frame = frame.f_back
    return n > 1
