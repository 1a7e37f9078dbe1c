"""How a module is called in a run: its inputs and outputs, in part and again.

Examples lie along the first axis of the first tensor among the inputs; every other tensor whose
first axis is as long has a row for each of them too. Calls that are made again leave no trace:
training flags, buffers and the states of random numbers are as before.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

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
        """The module's outputs (n, numbers) with these parameters and buffers of its own."""
        made = outputs_of(self.returned(module, values))
        if made is None:
            raise ValueError("it returns no outputs of single examples")
        n = self.n or len(made)
        if len(made) % n:
            raise ValueError(f"it returns {len(made)} rows of outputs for {n} examples")
        return made.reshape(n, -1)

    def returned(self, module: nn.Module, values: Mapping[str, Tensor]) -> Any:
        """Whatever the module returns with these parameters and buffers of its own."""
        return functional_call(module, dict(values), self.args, self.kwargs)


@contextmanager
def undisturbed(module: nn.Module, *, evaluation: bool = False) -> Iterator[None]:
    """Call the module again, perhaps in evaluation mode, and leave all as it was."""
    modes = [(part, part.training) for part in module.modules()]
    recurrent = any(isinstance(part, nn.RNNBase) for part, _ in modes)
    devices = sorted({p.device.index for p in module.parameters() if p.device.type == "cuda"})
    device = next((p.device.type for p in module.parameters()), "cpu")
    with (
        torch.random.fork_rng(devices),
        differentiable(recurrent=recurrent),
        torch.autocast(device, enabled=False),
    ):
        try:
            for part, mode in modes:
                part.training = mode and not evaluation
            yield
        finally:
            for part, mode in modes:
                part.training = mode


@dataclass(frozen=True, eq=False)
class Calls:
    """Several calls of one module with the same examples, whose outputs lie side by side."""

    each: tuple[Call, ...]

    def some(self, examples: Any) -> "Calls":
        """With these examples alone (a slice or whole numbers)."""
        return Calls(tuple(call.some(examples) for call in self.each))

    def outputs(self, module: nn.Module, values: Mapping[str, Tensor]) -> Tensor:
        """The outputs (n, numbers) with these parameters and buffers of the module's own."""
        return torch.cat([call.outputs(module, values) for call in self.each], dim=1)


def fixed_values(module: nn.Module) -> dict[str, Tensor]:
    """The parameters detached and the buffers copied, for a call that changes neither."""
    values = {name: p.detach() for name, p in module.named_parameters()}
    return values | {name: b.detach().clone() for name, b in module.named_buffers()}
