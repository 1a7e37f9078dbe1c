"""What one pass over the first example shows of a module, and what it refuses."""

from typing import Any, NamedTuple

import torch

from noisescale.errors import InputError
from noisescale.torch.model import TorchModel

_REPEATS = 8  # by which outputs that are random are seen to be, few as they may be


class FirstPass(NamedTuple):
    """The outputs' shape, whether parameters move them, how many numbers the layers returned."""

    shape: tuple[int, ...]
    depends: bool
    numbers: int


def first_pass(model: TorchModel, w: torch.Tensor, x: Any) -> FirstPass:
    """Of one example in float64; outputs that are not finite, or differ each time, are refused."""
    sizes: list[int] = []

    def count(module: torch.nn.Module, args: Any, output: Any) -> None:
        sizes.append(_numbers(output))

    hooks = [m.register_forward_hook(count) for m in model.twins["float64"].modules()]
    before = _random_state(model.device)
    try:
        with torch.enable_grad():
            outputs = model("float64", w.requires_grad_(), x)
    finally:
        for hook in hooks:
            hook.remove()
    check_finite(outputs)
    if not torch.equal(before, _random_state(model.device)):  # it drew random numbers: for what?
        with torch.no_grad():
            again = [model("float64", w, x) for _ in range(_REPEATS)]
        if not all(torch.allclose(outputs, other, rtol=1e-6, atol=1e-9) for other in again):
            raise InputError(
                "the module gives other outputs each time, in evaluation mode too: take out "
                "what is random in it (F.dropout(x) needs training=self.training)."
            )
    return FirstPass(tuple(outputs.shape), outputs.requires_grad, sum(sizes))


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


def _numbers(output: Any) -> int:
    """How many a layer returns: a tensor, or several (a recurrent layer's states)."""
    if isinstance(output, torch.Tensor):
        return int(output.numel())
    parts = output.values() if isinstance(output, dict) else output
    return sum(map(_numbers, parts)) if isinstance(output, dict | tuple | list) else 0
