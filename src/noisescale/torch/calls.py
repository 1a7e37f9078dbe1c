"""How a module is called in a run: its inputs and outputs, in part and again.

Examples lie along the first axis of the first tensor among the inputs; every other tensor whose
first axis is as long has a row for each of them too. Calls that are made again leave no trace: each
is of a copy of the module, so that what forward stores is thrown away with it, and the states of
random numbers are as before. The copy shares the parameters, and has no hooks but PyTorch's own
and those that measure.
"""

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from noisescale.errors import InputError
from noisescale.torch.model import differentiable, logits_of


def mapped(change: Callable[[Tensor], Any], tree: Any) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(change, part) for key, part in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(change, part) for part in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(change, part) for part in tree)
    return tree


def tensors(tree: Any) -> list[Tensor]:
    """All tensors in a structure, in order."""
    seen: list[Tensor] = []
    mapped(seen.append, tree)
    return seen


def outputs_of(returned: Any) -> Tensor | None:
    """The outputs of examples among what a module returned; None if there is no telling.

    >>> outputs_of((torch.tensor(0.7), torch.zeros(2, 3))).shape  # a loss, then what it is of
    torch.Size([2, 3])
    """
    try:
        outputs = logits_of(returned)
    except InputError:
        return None
    return next((t for t in (outputs, *tensors(returned)) if t.ndim), None)


def loss_of(returned: Any) -> Tensor | None:
    """The loss that a module computes itself: the number among what it returned; None if none."""
    told = getattr(returned, "loss", None)
    return next((t for t in tensors((told, returned)) if not t.ndim and t.requires_grad), None)


@dataclass(frozen=True, eq=False)
class Call:
    """What a module was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def n(self) -> int | None:
        """How many examples; None if no tensor has an axis for them."""
        lengths = [len(t) for t in tensors((self.args, self.kwargs)) if t.ndim]
        return lengths[0] if lengths else None

    def some(self, examples: Any) -> "Call":
        """With these examples alone (a slice or whole numbers)."""
        n = self.n

        def pick(t: Tensor) -> Tensor:
            return t[examples] if t.ndim and len(t) == n else t

        return Call(mapped(pick, self.args), mapped(pick, self.kwargs))

    def detached(self) -> "Call":
        """Cut off from what came before."""
        return Call(mapped(Tensor.detach, self.args), mapped(Tensor.detach, self.kwargs))

    def outputs(self, module: nn.Module, values: Mapping[str, Tensor]) -> Tensor:
        """The module's outputs (n, numbers) with these parameters."""
        made = outputs_of(self.returned(module, values))
        if made is None:
            raise ValueError("it returns no outputs of single examples")
        n = self.n or len(made)
        if len(made) % n:
            raise ValueError(f"it returns {len(made)} rows of outputs for {n} examples")
        return made.reshape(n, -1)

    def returned(self, module: nn.Module, values: Mapping[str, Tensor]) -> Any:
        """Whatever a copy of the module returns with these parameters."""
        twin, args, kwargs = _copied(module, self.args, self.kwargs)
        return functional_call(twin, dict(values), args, kwargs)


class CopyError(RuntimeError):
    """A module that holds what cannot be copied, such as a lock or an open file."""


class _Detached(TorchFunctionMode):  # type: ignore[misc]  # PyTorch says nothing of its type
    """Copies tensors without their history, which PyTorch refuses to copy."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = made = tensor.detach().clone()
        return made


_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_EMPTY = (dict, OrderedDict, set)
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


def _copied(module: nn.Module, args: Any, kwargs: Any) -> tuple[nn.Module, Any, Any]:
    """A copy of a module and of its arguments that shares the parameters."""
    memo: dict[int, Any] = {id(p): p for p in module.parameters()}
    for part in module.modules():
        for name, value in vars(part).items():
            if name in _FORWARD:
                memo[id(value)] = _kept(value)
            elif name in _BACKWARD:
                memo[id(value)] = OrderedDict()
            elif name == "_parameters" or (type(value) in _EMPTY and not value):
                memo[id(value)] = value.copy()  # much faster than a deep copy, and the same
    try:
        with _Detached():
            return copy.deepcopy((module, args, kwargs), memo)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CopyError(f"their module cannot be copied ({reason})") from error


def _kept(hooks: "OrderedDict[int, Any]") -> "OrderedDict[int, Any]":
    """PyTorch's own hooks, as of ``weight_norm``, and those of this package."""

    def known(hook: Any) -> bool:
        homes = [getattr(hook, "__module__", None), *(k.__module__ for k in type(hook).__mro__)]
        return any(str(home).partition(".")[0] in ("torch", "noisescale") for home in homes)

    return OrderedDict((key, hook) for key, hook in hooks.items() if known(hook))


def has_hooks(module: nn.Module) -> bool:
    """Whether it has forward hooks that a copy of it does not get."""
    each = [vars(part)[name] for part in module.modules() for name in _FORWARD]
    return any(len(_kept(hooks)) < len(hooks) for hooks in each)


@contextmanager
def undisturbed(module: nn.Module, *, evaluation: bool = False) -> Iterator[nn.Module]:
    """A copy of the module to call again, perhaps in evaluation mode.

    The module itself is left alone, as other threads may call it meanwhile. Hooks on all modules
    are away, and random numbers are as before afterwards: PyTorch's, NumPy's and Python's.
    """
    everywhere = [getattr(torch_module, f"_global{name}") for name in (*_FORWARD, *_BACKWARD)]
    hooks = [hooks.copy() for hooks in everywhere]
    drawn = random.getstate(), np.random.get_state()  # noqa: NPY002
    twin, _, _ = _copied(module, (), {})
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    devices = sorted({p.device.index for p in module.parameters() if p.device.type == "cuda"})
    device = next((p.device.type for p in module.parameters()), "cpu")
    with (
        torch.random.fork_rng(devices),
        differentiable(recurrent=recurrent),
        torch.autocast(device, enabled=False),
    ):
        try:
            for each in everywhere:
                each.clear()
            for part in twin.modules():
                part.training = part.training and not evaluation
            yield twin
        finally:
            for each, before in zip(everywhere, hooks, strict=True):
                each.update(before)
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])  # noqa: NPY002


@dataclass(frozen=True, eq=False)
class Calls:
    """Several calls of one module with the same examples, whose outputs lie side by side."""

    each: tuple[Call, ...]

    def some(self, examples: Any) -> "Calls":
        """With these examples alone (a slice or whole numbers)."""
        return Calls(tuple(call.some(examples) for call in self.each))

    def outputs(self, module: nn.Module, values: Mapping[str, Tensor]) -> Tensor:
        """The outputs (n, numbers) with these parameters of the module's own."""
        return torch.cat([call.outputs(module, values) for call in self.each], dim=1)


def fixed_values(module: nn.Module) -> dict[str, Tensor]:
    """The parameters detached."""
    return {name: p.detach() for name, p in module.named_parameters()}
