"""Squared gradient norms of single examples from a call that is made once more.

From the inputs of a call and the gradients at its outputs follows everything else: by rules, with
one pass over all examples (:mod:`noisescale.torch.capture`), and for the parameters that rules do
not cover by differentiating example by example, in one stroke if ``vmap`` can. Compiled models,
into which no hook reaches, are seen like this altogether; one that computes its loss itself shows
no gradient at its outputs, which takes another call. Dropout and its kin draw new masks.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from noisescale.torch.calls import Call, Calls, fixed_values, loss_of, outputs_of, undisturbed
from noisescale.torch.capture import Plan, record
from noisescale.torch.example_norms import Metric, squares_of, weighted

_BLOCK = 2**24  # numbers of gradients that are formed at a time


class Again(NamedTuple):
    """By the names of parameters in the whole model.

    Attributes:
        squares: sum_i |g_i|^2.
        sums: sum_i g_i, of parameters that were differentiated example by example.
    """

    squares: dict[str, Tensor]
    sums: dict[str, Tensor]


def again(
    module: nn.Module,
    plan: Plan | None,
    rest: Mapping[str, str],
    call: Call | Calls,
    gradients: Tensor,
    metric: Metric | None,
) -> Again:
    """The gradients of the call's examples.

    Args:
        module: what is called.
        plan: of parameters that rules follow; None if they have been seen already.
        rest: parameters that are differentiated, their names in the module and in the model.
        call: with examples along the first axis.
        gradients: of the loss at the outputs, (n, numbers).
        metric: weights of the squared entries, by name in the model.
    """
    made, sums = dict[str, Tensor](), dict[str, Tensor]()
    with undisturbed(module) as twin, torch.compiler.set_stance("force_eager"):
        if plan is not None and plan.layers:
            fixed = fixed_values(twin)
            recording = record(plan.on(twin), len(gradients), lambda: call.outputs(twin, fixed))
            for name, factor in recording.factors(gradients[:, None]).items():
                made[name] = squares_of(factor, None if metric is None else metric[name])
        if rest:
            squares, totals = _differentiated(twin, list(rest), call, gradients)
            for local, name in rest.items():
                sums[name] = totals[local]
                made[name] = squares[local].sum()
                if metric is not None:
                    made[name] = weighted(squares[local].reshape(-1), metric[name])
    return Again(made, sums)


def at_outputs(module: nn.Module, call: Call, slope: Tensor) -> tuple[Tensor, Tensor] | None:
    """The outputs and the gradient at them of a loss that the module computes itself.

    None if the loss is not made from what the module returns. ``slope`` is the gradient at it.
    """
    values = fixed_values(module)
    for name, _ in module.named_parameters():
        values[name].requires_grad_()
    stance = torch.compiler.set_stance("force_eager")
    with undisturbed(module) as twin, stance, torch.enable_grad():
        returned = call.returned(twin, values)
        outputs, loss = outputs_of(returned), loss_of(returned)
        if outputs is None or loss is None or not outputs.requires_grad:
            return None
        (b,) = torch.autograd.grad(loss, outputs, slope.to(loss.dtype), allow_unused=True)
    return None if b is None else (outputs.detach(), b)


def _differentiated(
    module: nn.Module, names: list[str], call: Call | Calls, gradients: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The squared entries of parameters' gradients and their entries, summed over examples."""
    fixed = fixed_values(module)
    free = {name: fixed.pop(name) for name in names}
    size = sum(value.numel() for value in free.values())
    each = torch.arange(len(gradients), device=gradients.device)

    def one(i: Tensor, c: Tensor) -> dict[str, Tensor]:
        example = call.some(i[None])
        made, pull_back = vjp(lambda free: example.outputs(module, fixed | free)[0], free)
        if made.shape != c.shape:
            raise ValueError(
                f"an example alone has {len(made)} outputs, in its batch {len(c)}; examples must "
                "lie along the first axis of the model's inputs"
            )
        return dict(pull_back(c)[0])

    squares, totals = (
        {name: torch.zeros_like(value) for name, value in free.items()} for _ in range(2)
    )
    with torch.enable_grad():
        for part in each.split(max(1, _BLOCK // size)):
            try:
                made = vmap(one, randomness="different")(part, gradients[part])
            except RuntimeError:  # not every operation can be batched
                rows = [one(i, gradients[i]) for i in part]
                made = {name: torch.stack([row[name] for row in rows]) for name in names}
            for name in names:
                g = made[name].detach()  # (examples, ...)
                totals[name] += g.sum(dim=0)
                squares[name] += g.square().sum(dim=0)
    return squares, totals
