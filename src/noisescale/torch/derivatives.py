"""Ways to differentiate a module, learnt as it refuses some.

Forward derivatives and one gradient an example in one stroke are PyTorch's fastest ways, which not
every operation allows. J v follows from two reverse passes as well, u' J being linear in u, and
gradients of single examples from one pass each.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.func import grad, jvp, vjp, vmap

from noisescale.errors import InputError
from noisescale.torch.batches import leaves, taken

Function = Callable[[torch.Tensor], torch.Tensor]


class Ways:
    """What a module has refused so far: ``forward``, ``twice``, ``examples``, ``directions``."""

    def __init__(self) -> None:
        self.refused: set[str] = set()

    def along(self, function: Function, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The derivative of ``function`` at ``w`` along ``v``."""

        def reverse_twice() -> torch.Tensor:
            outputs, pull_back = vjp(function, w)
            return vjp(lambda u: pull_back(u)[0], torch.zeros_like(outputs))[1](v)[0]

        return self._either("forward", lambda: jvp(function, (w,), (v,))[1], reverse_twice)

    def hessian_along(self, function: Function, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The Hessian of a scalar ``function`` times ``v``."""
        slope = grad(function)
        return self._either(
            "twice", lambda: jvp(slope, (w,), (v,))[1], lambda: vjp(slope, w)[1](v)[0]
        )

    def each(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """``function(w, x, *others)`` of one example for all examples, stacked."""

        def every(w: torch.Tensor, *examples: Any) -> torch.Tensor:
            dims = (None, *(0 for _ in examples))
            return self._either(
                "examples",
                lambda: vmap(function, in_dims=dims)(w, *examples),
                lambda: torch.stack(
                    [function(w, *taken(examples, i)) for i in range(leaves(examples)[0].shape[0])]
                ),
            )

        return every

    def directions(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """``function`` of one direction, or one of several things, for each of them, stacked."""
        return lambda *parts: self._either(
            "directions",
            lambda: vmap(function)(*parts),
            lambda: torch.stack(
                [function(*taken(parts, i)) for i in range(leaves(parts)[0].shape[0])]
            ),
        )

    def _either(
        self, way: str, fast: Callable[[], torch.Tensor], slow: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """By the fast way unless that was refused before, else by the slow one."""
        if way not in self.refused:
            try:
                with warnings.catch_warnings():  # that PyTorch would do it one by one as well
                    warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
                    return fast()
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, InputError):
                done = self._slow(slow)
                self.refused.add(way)
                return done
        return self._slow(slow)

    @staticmethod
    def _slow(slow: Callable[[], torch.Tensor]) -> torch.Tensor:
        try:
            return slow()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise InputError(
                "the module cannot be differentiated as this needs it: "
                f"{str(error).splitlines()[0][:200]}; replace the operation, or select= the "
                "parameters that come after it."
            ) from error
