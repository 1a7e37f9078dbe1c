"""A module that a training loop calls, and how the parameters inside of it are followed.

On a few examples of its first call, in evaluation mode and with random gradients at its outputs,
rules are compared with plain differentiation of one example at a time. What does not agree, or has
no rule, is differentiated again at every reading, or left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from noisescale.torch.calls import Call, fixed_values, undisturbed
from noisescale.torch.capture import Layer, Plan, checked_plan, layers_with_rules, record

_CHECKED = 3  # examples


@dataclass(eq=False)
class Seen:
    """One call of a module, whose backward pass is running or yet to come.

    Attributes:
        call: with what it was made; None if it need not be made again.
        n: among how many examples.
        outputs: what it returned; None if nobody is to look at it.
        b: the gradient at its outputs; None until it was seen.
        slope: the gradient at the loss that the module computes itself; None if there is none.
    """

    call: Call | None
    n: int
    outputs: Tensor | None = None
    b: Tensor | None = None
    slope: Tensor | None = None


@dataclass(eq=False)
class Entry:
    """How the parameters of a module are followed.

    Attributes:
        module: what is called.
        plan: of the parameters that rules follow, by their names in the whole model.
        rest: the other free parameters' names, in the module and in the whole model.
        compiled: whether it runs compiled, so that all of it is seen by making its calls again.
        unchecked: why rules could not be compared with plain differentiation; None if they were.
        left: parameters that turned out not to be seen after all, and why.
        summed: whether examples that were differentiated alone were seen to add up.
        calls: of the pass that is running.
    """

    module: nn.Module
    plan: Plan
    rest: dict[str, str]
    compiled: bool = False
    unchecked: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    summed: bool = False
    calls: list[Seen] = field(default_factory=list)

    def followed(self, rules_alone: bool) -> set[str]:
        """The parameters that are seen, as the whole model calls them."""
        return {*self.plan.followed, *(() if rules_alone else self.rest.values())} - set(self.left)

    def leave_out(self, names: Iterable[str], reason: str) -> None:
        """From now on."""
        self.left |= dict.fromkeys(names, reason.strip().splitlines()[0][:200])
        self.plan = self.plan.without(set(self.left))
        self.rest = {own: name for own, name in self.rest.items() if name not in self.left}


def make_entry(module: nn.Module, call: Call, known: Mapping[int, str], *, compiled: bool) -> Entry:
    """The entry of a module from its first call; ``known`` names parameters by their id."""
    free = [name for name, p in module.named_parameters() if p.requires_grad]
    names = {name: known[id(p)] for name, p in module.named_parameters() if p.requires_grad}
    plan, unchecked = layers_with_rules(module, free), None
    try:
        plan = _checked(module, call.detached(), plan)
    except Exception as error:  # whatever a user's module may raise when it is called like this
        unchecked = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    rest = {name: names[name] for name in free if name not in plan.followed}
    return Entry(module, _renamed(plan, names), rest, compiled, unchecked)


def _checked(module: nn.Module, call: Call, plan: Plan) -> Plan:
    if not call.n:
        raise ValueError("no tensor among its inputs has an axis of examples")
    n = _CHECKED  # again and again if there are fewer: of one alone, any axis may be that of many
    few = call.some(torch.arange(n) % call.n)

    def plain(i: int, c: Tensor) -> dict[str, Tensor]:
        free = {name: fixed[name].clone().requires_grad_() for name in plan.followed}
        with torch.enable_grad():
            value = few.some(slice(i, i + 1)).outputs(twin, fixed | free)[0] @ c
        made = torch.autograd.grad(value, list(free.values()), allow_unused=True)
        return {
            name: torch.zeros_like(free[name]) if g is None else g
            for name, g in zip(free, made, strict=True)
        }

    def run() -> Tensor:
        return few.outputs(twin, fixed)

    stance = torch.compiler.set_stance("force_eager")
    with undisturbed(module, evaluation=True) as twin, stance:
        fixed, plan = fixed_values(twin), plan.on(twin)
        # A failure of the call itself says nothing of the rules, and is the caller's to tell.
        recording = record(plan, n, run)
        recording.leave_out_unsplit(n)
        recording.factors(torch.ones_like(recording.outputs)[:, None])
        return checked_plan(plan, run, plain, n).on(module)


def _renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    layers = tuple(
        Layer(
            layer.path,
            layer.module,
            {local: names[p] for local, p in layer.parameters.items() if p in plan.followed},
        )
        for layer in plan.layers
    )
    return Plan(layers, plan.shared, frozenset(names[p] for p in plan.followed))
