"""The prior precisions that a PyTorch optimiser's weight decay stands for, parameter by parameter.

See :mod:`noisescale.evidence.weight_decay` for the formulas and for where they are exact.
"""

from typing import Any

import numpy as np
import torch

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError
from noisescale.evidence import weight_decay
from noisescale.torch.model import unwrapped
from noisescale.torch.tensors import to_numpy

# A class's weight decay by its own name or that of the class it is made from. AdamW comes first: in
# PyTorch it is a kind of Adam.
_KINDS = (("AdamW", "adamw"), ("Adam", "adam"), ("SGD", "sgd"))


def prior_precision_of(
    optimizer: torch.optim.Optimizer,
    module: torch.nn.Module,
    *,
    n_train: int,
    undecayed: float | None = None,
) -> dict[str, Any]:
    """The prior precision of each free parameter, to be given as ``prior_precision=``.

    Args:
        optimizer: SGD, Adam or AdamW, after training: AdamW's precisions come from its state.
        module: whose parameters it trained.
        n_train: how many terms the loss is the mean of: examples, or tokens for a language model.
        undecayed: the precision of parameters without weight decay, which have no evidence else.

    >>> import torch
    >>> import noisescale.torch as nst
    >>> module = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.01)
    >>> nst.prior_precision_of(optimizer, module, n_train=500)
    {'weight': 5.0, 'bias': 5.0}
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}."
        )
    check_whole("n_train", n_train, at_least=1)
    if undecayed is not None:
        check_number("undecayed", undecayed, "above 0", lambda v: v > 0)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    precisions: dict[str, Any] = {}
    for name, p in unwrapped(module).named_parameters():
        if not p.requires_grad:
            continue
        if id(p) not in groups:
            raise InputError(f"optimizer does not train the module's parameter {name}: freeze it.")
        group = groups[id(p)]
        if group.get("weight_decay", 0.0) == 0:
            if undecayed is None:
                raise InputError(
                    f"parameter {name} has no weight decay, and so no evidence: give undecayed=, a "
                    "small precision for such parameters."
                )
            precisions[name] = float(undecayed)
            continue
        precisions[name] = _precision(optimizer, group, name, p, n_train)
    return precisions


def _precision(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], name: str, p: Any, n_train: int
) -> Any:
    kind = _kind(optimizer, group)
    settings: dict[str, Any] = {"n_train": n_train, "optimizer": kind}
    if kind == "adamw":
        state = optimizer.state.get(p, {})
        if "exp_avg_sq" not in state:
            raise InputError(
                f"AdamW has not yet updated parameter {name}: its prior precision depends on the "
                "gradients that it has seen; train first."
            )
        v = to_numpy(state.get("max_exp_avg_sq", state["exp_avg_sq"]))
        corrected = v / (1 - float(group["betas"][1]) ** float(state["step"]))
        settings |= {"second_moment": np.asarray(corrected), "eps": group["eps"]}
    return weight_decay.prior_precision_of(group["weight_decay"], **settings)


def _kind(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> str:
    names = {cls.__name__ for cls in type(optimizer).__mro__}
    for name, kind in _KINDS:
        if name in names:
            decoupled = kind == "adam" and group.get("decoupled_weight_decay", False)
            return "adamw" if decoupled else kind
    raise InputError(
        f"the weight decay of {type(optimizer).__name__} is not known here, only that of SGD, Adam "
        "and AdamW: give prior_precision yourself."
    )
