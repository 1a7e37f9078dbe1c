"""What can be watched, and how: wrappers, compiled models, optimisers, one watch a model."""

import weakref
from typing import Any

import torch
from torch import nn

from noisescale.errors import InputError
from noisescale.noise.watch.record import NoiseRecord
from noisescale.torch.model import PARALLEL, unwrapped

MASKS = (
    "dropout draws new masks where a call is made again to see single examples (compiled models, "
    "parameters without rules): their squared norms are of the same distribution, not of the same "
    "masks as the batch's gradient"
)
HOOKS = (
    "forward hooks are not called where a call is made again to see single examples (compiled "
    "models, parameters without rules): what they change in outputs is not in these squared norms"
)
COUPLED = (
    "batch normalisation couples the examples of a batch: what is measured are the contributions "
    "of examples to the gradient, not gradients of examples alone"
)


class UnwatchableError(InputError):
    """A model whose gradients cannot be seen."""


_WATCHED: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]]" = weakref.WeakKeyDictionary()


def trained(model: nn.Module) -> nn.Module:
    """The module inside of wrappers, if its gradients can be seen."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    for part in model.modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UnwatchableError(
                "a ScriptModule takes no hooks, and cannot be watched: train the module that it "
                "was made of."
            )
        kinds = {kind.__name__ for kind in type(part).__mro__}
        if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
            raise UnwatchableError(
                "a model that is sharded over processes (FSDP) cannot be watched: its gradients "
                "are in parts; watch a run of DistributedDataParallel, or of one process."
            )
        if isinstance(part, nn.DataParallel):
            raise UnwatchableError(
                "nn.DataParallel copies the model in every call, and the copies cannot be watched: "
                "use DistributedDataParallel."
            )
    inner = unwrapped(model)
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise UnwatchableError(
            "model.compile() leaves no place to look in: train with compiled = "
            "torch.compile(model), and watch that."
        )
    if not any(p.requires_grad for p in inner.parameters()):
        raise UnwatchableError("the model has no parameters that require gradients.")
    return inner


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of it runs compiled, where hooks do not reach."""
    return any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
        for part in model.modules()
    )


def called(model: nn.Module) -> nn.Module:
    """What a run's calls reach first, inside of wrappers that spread it over processes."""
    while isinstance(model, PARALLEL):
        model = model.module
    return model


def seen_parts(model: nn.Module) -> list[nn.Module]:
    """The modules whose calls can be seen: all that are not inside of a compiled one."""
    if getattr(model, "_compiled_call_impl", None) is not None:  # its own hooks are compiled too
        return []
    if hasattr(model, "_orig_mod"):
        return [model]
    parts = dict.fromkeys([model])
    for part in model.children():
        parts |= dict.fromkeys(seen_parts(part))
    return list(parts)


def has_dropout(model: nn.Module) -> bool:
    """Whether it draws random masks in training."""
    return any(
        (isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0)
        or (isinstance(part, nn.RNNBase) and part.dropout > 0)
        or (isinstance(part, nn.MultiheadAttention) and part.dropout > 0)
        for part in model.modules()
    )


def is_coupled(model: nn.Module) -> bool:
    """Whether batch normalisation mixes the examples of a batch."""
    kind = nn.modules.batchnorm._BatchNorm
    return any(isinstance(part, kind) and part.training for part in model.modules())


def check_optimizer(optimizer: Any, norm: str) -> None:
    """Whether it can tell when it steps, and has what the norm needs."""
    if optimizer is None:
        if norm == "adam":
            raise InputError("norm='adam' needs the optimizer, whose second moments it takes.")
    elif not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; give none "
            "and call watch.step() before every update."
        )


def take_over(model: nn.Module, watch: NoiseRecord) -> None:
    """Let this watch be the model's only one."""
    before = _WATCHED.get(model)
    old = None if before is None else before()
    if old is not None and not old.closed:
        old.close()
        watch.note("this model was watched already: the earlier watch is closed", warn=True)
    _WATCHED[model] = weakref.ref(watch)
