"""What normalisation layers do to an evidence, said once.

Batch normalisation in evaluation mode is another function than the one that was trained, whose
minimum lies elsewhere. Layer, group and RMS normalisation do not see the scale of what comes before
them: those weights can grow without any change of the fit, so that the curvature at one scale says
little about the posterior's volume (Antoran et al. 2022, "Adapting the linearised Laplace model
evidence for modern deep learning").
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from noisescale.errors import InputError

_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_SCALE_FREE = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_NAMES = ("LayerNorm", "RMSNorm", "GroupNorm")  # many libraries define their own
_FUNCTIONS = {
    functional.layer_norm,
    functional.rms_norm,
    functional.group_norm,
    functional.instance_norm,
    torch.layer_norm,
    torch.rms_norm,
    torch.group_norm,
}


def normalisation_notes(
    module: nn.Module, free: Iterable[str], run: Callable[[], object]
) -> tuple[str, ...]:
    """Notes on a module whose ``free`` parameters are the model; ``run`` calls it once."""
    order, called = _calls(module, run)
    owners = {name.rpartition(".")[0] for name in free}
    parts = dict(module.named_modules())
    batch = [name for name in order if isinstance(parts.get(name), _BATCH)]
    scale = [name for name in order if name in called or _is_scale_free(parts[name])]
    notes = []
    if batch:
        notes.append(
            f"batch normalisation ({_some(batch)}) uses its running statistics here: another "
            "function than the one that was trained, and not at its minimum; fold or freeze it and "
            "train on in evaluation mode, as at='map' does, or use ns.prequential_evidence."
        )
    before = [name for name in owners if scale and _first(order, name) < order.index(scale[-1])]
    if any(name not in scale for name in before):
        after = [name for name in order if name in owners and name not in before]
        behind = f"select={after[-1]!r}, which comes after it" if after and after[-1] else "select="
        notes.append(
            f"{called.get(scale[-1]) or type(parts[scale[-1]]).__name__} ({_some(scale)}) does not "
            "see the scale of what "
            "comes before it, so that the volume of a Laplace approximation means little (Antoran "
            f"et al. 2022); use {behind}, or ns.prequential_evidence."
        )
    return tuple(notes)


def check_statistics(module: nn.Module) -> None:
    """Refuse batch normalisation by the batch itself, in which examples depend on one another."""
    parts = module.named_modules()
    alone = [name for name, p in parts if isinstance(p, _BATCH) and p.running_mean is None]
    if alone:
        raise InputError(
            f"batch normalisation ({_some(alone)}) has no running statistics, so that examples "
            "depend on one another and have no gradients of their own: give it statistics "
            "(track_running_stats=True), or use ns.prequential_evidence."
        )


def _calls(module: nn.Module, run: Callable[[], object]) -> tuple[list[str], dict[str, str]]:
    """The names of submodules in the order of their first calls, and who normalises by a function.

    These are modules that do nothing else, by their names, or places between the calls of one; with
    the name of the function.
    """
    order: list[str] = []
    inside: list[str] = []  # names of the calls that are under way
    called: dict[str, str] = {}
    parts, hooks = dict(module.named_modules()), []

    class Functions(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in _FUNCTIONS and inside and not _is_scale_free(parts[inside[-1]]):
                name = function.__name__
                alone = not any(parts[inside[-1]].children())
                place = inside[-1] if alone else f"in {inside[-1] or 'the module itself'}"
                if place not in order:
                    order.append(place)
                called[place] = name
            return function(*args, **(kwargs or {}))

    for name, part in parts.items():

        def begin(part: nn.Module, args: object, name: str = name) -> None:
            inside.append(name)
            if name not in order:
                order.append(name)

        def end(part: nn.Module, args: object, output: object) -> None:
            inside.pop()

        hooks += [part.register_forward_pre_hook(begin), part.register_forward_hook(end)]
    try:
        with torch.no_grad(), Functions():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return order, called


def _is_scale_free(part: nn.Module) -> bool:
    return isinstance(part, _SCALE_FREE) or type(part).__name__.endswith(_NAMES)


def _first(order: list[str], name: str) -> int:
    """When a module was first called; one that never was counts from the beginning."""
    return order.index(name) if name in order else -1


def _some(names: list[str]) -> str:
    shown = ", ".join(name or "the module itself" for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
