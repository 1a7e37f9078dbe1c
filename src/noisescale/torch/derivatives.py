"""Ways to differentiate a module, learnt as it refuses some.

Forward derivatives and one gradient an example in one stroke are PyTorch's fastest ways, which not
every operation allows. J v follows from two reverse passes as well, u' J being linear in u, and
gradients of single examples from one pass each.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import grad, jvp, vjp, vmap

from noisescale.errors import InputError
from noisescale.torch.batches import leaves, taken

Function = Callable[[torch.Tensor], torch.Tensor]


class Ways:
    """What a module has allowed so far."""

    def __init__(self) -> None:
        self.forward, self.batched = True, True

    def along(self, function: Function, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The derivative of ``function`` at ``w`` along ``v``."""
        if self.forward:
            try:
                return jvp(function, (w,), (v,))[1]
            except (RuntimeError, InputError) as error:
                fast, self.forward = error, False
        else:
            fast = None
        try:
            outputs, pull_back = vjp(function, w)
            return vjp(lambda u: pull_back(u)[0], torch.zeros_like(outputs))[1](v)[0]
        except RuntimeError as error:
            raise InputError(
                "the module can be differentiated neither forwards nor twice: "
                f"{str(fast or error).splitlines()[0]}"
            ) from error

    def hessian_along(self, function: Function, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The Hessian of a scalar ``function`` times ``v``."""
        return self.along(grad(function), w, v)

    def each(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """``function(w, x, *others)`` of one example for all examples, stacked."""

        def every(w: torch.Tensor, *examples: Any) -> torch.Tensor:
            if self.batched:
                try:
                    return vmap(function, in_dims=(None, *(0 for _ in examples)))(w, *examples)
                except (RuntimeError, InputError):
                    n = len(leaves(examples)[0])
                    one = function(w, *taken(examples, 0))  # fails for the same reason, or not
                    self.batched = False
                    rest = [function(w, *taken(examples, i)) for i in range(1, n)]
                    return torch.stack([one, *rest])
            n = len(leaves(examples)[0])
            return torch.stack([function(w, *taken(examples, i)) for i in range(n)])

        return every
