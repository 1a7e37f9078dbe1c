"""Hooks on modules that can be taken away again, and that stay behind when a module is copied.

A module that is copied or pickled (for an average of its weights, or a checkpoint) takes its hooks
along. Copies of these do nothing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


class Silent:
    """Calls a function; a copy of it, or what is unpickled, does nothing."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        """What the function returns, or nothing."""
        return None if self.function is None else self.function(*args)

    def __deepcopy__(self, memo: Any) -> "Silent":
        return Silent()

    def __reduce__(self) -> tuple[type["Silent"], tuple[()]]:
        return Silent, ()


class Hooks:
    """Those that are there now; true if there are any."""

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def around(
        self, module: nn.Module, enter: Callable[..., Any], leave: Callable[..., Any]
    ) -> None:
        """Before and after every call of the module, even one that fails."""
        before, after = Silent(enter), Silent(leave)
        keep = self._handles.append  # one by one, as the second may be refused
        keep(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True))
        keep(module.register_forward_hook(after, with_kwargs=True, always_call=True))

    def after(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """After every call of the module; ahead of others, so that it sees the layer's output."""
        handle = module.register_forward_hook(Silent(function), with_kwargs=True, prepend=True)
        self._handles.append(handle)

    def remove(self) -> None:
        """All of them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __bool__(self) -> bool:
        return bool(self._handles)


def on_gradient(z: Tensor, function: Callable[[Tensor], None]) -> None:
    """Call the function with the gradient at ``z``, as it is now, whatever is done to it later.

    An operation in place on a view cuts its hooks off, but not those of what it is a view of:
    Linear and Embedding give views that only have another shape.
    """
    base, shape = z._base, z.shape
    whole = base is not None and base.requires_grad and base.numel() == z.numel()
    if whole and base.is_contiguous() and z.is_contiguous():
        base.register_hook(lambda b: function(b.reshape(shape)))
    else:
        z.register_hook(function)


def is_behind(z: Tensor, loss: Tensor) -> bool:
    """Whether the loss was made from ``z``, as far as the graph tells.

    >>> w = torch.ones(2, requires_grad=True)
    >>> z = 2 * w
    >>> is_behind(z, (z + 1).sum()), is_behind(z, w.sum())
    (True, False)
    """
    open_nodes, met = [loss.grad_fn], {None}
    while open_nodes:
        node = open_nodes.pop()
        if node in met:
            continue
        if node is z.grad_fn:
            return z is loss or node is not loss.grad_fn  # one node may have made both
        met.add(node)
        open_nodes += [parent for parent, _ in node.next_functions]
    return False


def when_backward_ends(function: Callable[[], None]) -> None:
    """Call the function once, at the end of the backward pass that is running."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def backward_pass() -> int:
    """A number for the backward pass that is running; passes inside of passes have their own."""
    return int(torch._C._current_graph_task_id())


def full_precision(b: Tensor) -> AbstractContextManager[None]:
    """Autocast off, if a backward pass runs inside of it."""
    kind = b.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)  # type: ignore[no-any-return]
    return nullcontext()
