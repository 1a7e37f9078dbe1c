"""Squared gradient norms of single examples from a call that is made once more.

From the inputs of a call and the gradients at its outputs follows everything else: by rules, with
one pass over all examples (:mod:`noisescale.torch.capture`), and for the parameters that rules do
not cover by differentiating example by example, in one stroke if ``vmap`` can. Compiled models,
into which no hook reaches, are seen like this altogether. Dropout and its kin draw new masks.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from noisescale.torch.calls import Call, fixed_values, undisturbed
from noisescale.torch.capture import Plan, record
from noisescale.torch.example_norms import Metric, squares_of

_BLOCK = 2**24  # numbers of gradients that are formed at a time


def again(
    module: nn.Module,
    plan: Plan | None,
    rest: Mapping[str, str],
    call: Call,
    gradients: Tensor,
    metric: Metric | None,
) -> dict[str, Tensor]:
    """sum_i |g_i|^2 over the call's examples, by the names of parameters in the whole model.

    Args:
        module: what is called.
        plan: of parameters that rules follow; None if they have been seen already.
        rest: parameters that are differentiated, their names in the module and in the model.
        call: with examples along the first axis.
        gradients: of the loss at the outputs, (n, ...).
        metric: weights of the squared entries, by name in the model.
    """
    n = len(gradients)
    flat = gradients.reshape(n, -1)
    made: dict[str, Tensor] = {}
    with undisturbed(module), torch.compiler.set_stance("force_eager"):
        if plan is not None and plan.layers:
            fixed = fixed_values(module)
            recording = record(plan, n, lambda: call.outputs(module, fixed))
            for name, factor in recording.factors(flat[:, None]).items():
                made[name] = squares_of(factor, None if metric is None else metric[name])
        if rest:
            found = _differentiated(module, list(rest), call, flat)
            for local, square in found.items():
                weight = 1 if metric is None else metric[rest[local]]
                made[rest[local]] = (square * weight).sum()
    return made


def _differentiated(
    module: nn.Module, names: list[str], call: Call, gradients: Tensor
) -> dict[str, Tensor]:
    """The squared entries of parameters' gradients, summed over examples."""
    fixed = fixed_values(module)
    free = {name: fixed.pop(name) for name in names}
    size = sum(value.numel() for value in free.values())
    each = torch.arange(len(gradients), device=gradients.device)

    def one(i: Tensor, c: Tensor) -> dict[str, Tensor]:
        example = call.some(i[None])
        _, pull_back = vjp(lambda free: example.outputs(module, fixed | free)[0], free)
        return dict(pull_back(c)[0])

    total = {name: torch.zeros_like(value) for name, value in free.items()}
    with torch.enable_grad():
        for part in each.split(max(1, _BLOCK // size)):
            try:
                made = vmap(one, randomness="different")(part, gradients[part])
                squares = {name: g.detach().square().sum(dim=0) for name, g in made.items()}
            except RuntimeError:  # not every operation can be batched
                rows = [one(i, gradients[i]) for i in part]
                squares = {name: sum(row[name].detach() ** 2 for row in rows) for name in names}
            for name in names:
                total[name] += squares[name]
    return total
