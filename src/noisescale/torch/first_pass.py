"""What one pass over the first example shows of a module, and what it refuses."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from noisescale.errors import InputError
from noisescale.torch.model import TorchModel

_REPEATS = 8  # by which outputs that are random are seen to be, few as they may be


class FirstPass(NamedTuple):
    """The outputs' shape, whether parameters move them, the numbers that an example adds."""

    shape: tuple[int, ...]
    depends: bool
    numbers: int


def first_pass(model: TorchModel, w: torch.Tensor, inputs: Callable[[Any], Any]) -> FirstPass:
    """Of one example in float64; outputs that are not finite, or differ each time, are refused."""
    x = inputs([0])
    before = _random_state(model.device)
    with torch.enable_grad():
        outputs = model("float64", w.requires_grad_(), x)
    check_finite(outputs)
    if not torch.equal(before, _random_state(model.device)):  # it drew random numbers: for what?
        with torch.no_grad():
            again = [model("float64", w, x) for _ in range(_REPEATS)]
        if not all(torch.allclose(outputs, other, rtol=1e-6, atol=1e-9) for other in again):
            raise InputError(
                "the module gives other outputs each time, in evaluation mode too: take out "
                "what is random in it (F.dropout(x) needs training=self.training)."
            )
    one, two = (_made(model, w, inputs([0] * n)) for n in (1, 2))
    return FirstPass(tuple(outputs.shape), outputs.requires_grad, two - one)


class _Made(TorchDispatchMode):  # type: ignore[misc]  # PyTorch says nothing of its type
    """Keeps the memory behind every result, of modules and of functions, once."""

    def __init__(self) -> None:
        super().__init__()
        self.storages = dict[int, Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for part in returned if isinstance(returned, tuple | list) else (returned,):
            if isinstance(part, torch.Tensor) and part.layout is torch.strided:
                storage = part.untyped_storage()
                self.storages[storage.data_ptr()] = storage
        return returned


def _made(model: TorchModel, w: torch.Tensor, x: Any) -> int:
    """Numbers in float64 that a pass takes, if nothing is freed before its end."""
    with torch.no_grad(), _Made() as made:
        model("float64", w, x)
    return sum(int(storage.nbytes()) for storage in made.storages.values()) // 8


def check_outputs(first: FirstPass) -> None:
    """Refuses outputs that no parameter moves, or whose rows are not examples."""
    if not first.depends:
        raise InputError(
            "the module's outputs do not depend on its free parameters: its forward pass "
            "detaches them or runs under torch.no_grad(); take that out, or select= those that "
            "outputs depend on."
        )
    if first.shape[:1] != (1,):
        raise InputError(
            "the module must return one row an example, but returns shape "
            f"{first.shape} for one example: put examples first."
        )


def check_finite(outputs: torch.Tensor) -> None:
    """Refuses outputs of which some are not numbers."""
    if not torch.isfinite(outputs).all():
        raise InputError("the module's outputs are not finite: look for NaN in it or the data.")


def _random_state(device: torch.device) -> torch.Tensor:
    """Of the generator that a module on this device draws from."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()
