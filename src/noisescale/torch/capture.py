"""Recording what layers see: their inputs, and the gradients at their outputs.

One forward pass over n examples, with hooks on every module that has a rule
(:mod:`noisescale.torch.layer_rules`), keeps inputs a and outputs z; reverse passes from the model's
outputs to all z at once give the output gradients b of k rows c' J_i of every example. Each pass
does only half of an ordinary one's work: no parameter's gradient is formed.

A parameter is followed by rules if every module that holds it has one and, on a few examples, its
gradients are those of plain differentiation, one example at a time. That comparison finds out
whatever rules cannot know: a weight that is used elsewhere by name, examples that lie along another
axis, layers that were wrapped. The gradients of all other parameters are taken example by example.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from noisescale.torch.factors import Factor, added
from noisescale.torch.layer_rules import rule_of

_TRIES = 8  # layers that are tried as seeing the same for every example
_ROUNDED = 64  # roundings of the largest gradient that another one may be off by
AGREEMENT = 1e-3  # of a gradient: rounding is far below, a rule that does not fit far above


@dataclass(frozen=True, eq=False)
class Layer:
    """A module with a rule, and the full names of its parameters by their own."""

    path: str
    module: nn.Module
    parameters: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Plan:
    """Which parameters are followed by rules, in which layers.

    Attributes:
        layers: to be recorded.
        shared: paths of layers that see the same for every example (positions, say).
        followed: the parameters' names; all others are differentiated example by example.
    """

    layers: tuple[Layer, ...]
    shared: frozenset[str] = frozenset()
    followed: frozenset[str] = frozenset()

    def without(self, names: set[str]) -> "Plan":
        """The same with fewer parameters, and without layers that have none left."""
        followed = self.followed - names
        layers = tuple(
            layer for layer in self.layers if followed & frozenset(layer.parameters.values())
        )
        return Plan(layers, self.shared, followed)


def layers_with_rules(module: nn.Module, names: Sequence[str]) -> Plan:
    """All parameters among ``names`` that only modules with rules hold."""
    known = {id(p): name for name, p in module.named_parameters()}  # of tied ones the first name
    wanted, layers = set(names), []
    for path, part in module.named_modules():
        own = {
            local: known[id(p)]
            for local, p in part.named_parameters(recurse=False, remove_duplicate=False)
        }
        if rule_of(part) is None:
            wanted -= set(own.values())
        elif own:
            layers.append(Layer(path, part, own))
    return Plan(tuple(layers), frozenset(), frozenset(wanted)).without(set())


@dataclass(eq=False)
class Recording:
    """One forward pass: the outputs (n, C), and every use of a layer."""

    plan: Plan
    outputs: Tensor = field(init=False)
    uses: list[tuple[Layer, Tensor, Tensor]] = field(default_factory=list)  # layer, a, z

    def leave_out_unsplit(self, n: int) -> set[str]:
        """Forget layers whose leading axis is none of ``n`` examples; their parameters' names."""
        odd = {layer.path for layer, a, z in self.uses if len(a) % n or len(z) % n}
        names = {p for use in self.uses if use[0].path in odd for p in use[0].parameters.values()}
        self.uses = [use for use in self.uses if use[0].path not in odd]
        return names

    def factors(self, coefficients: Tensor) -> dict[str, Factor]:
        """Of the followed parameters, for k rows of each example: coefficients (n, k, C)."""
        n, k, _ = coefficients.shape
        z = [z for _, _, z in self.uses]
        passes = [
            torch.autograd.grad(
                self.outputs,
                z,
                grad_outputs=coefficients[:, j],
                retain_graph=True,
                allow_unused=True,
            )
            for j in range(k if z else 0)
        ]
        parts: dict[str, list[Factor]] = defaultdict(list)
        for at, (layer, a, out) in enumerate(self.uses):
            slots = [torch.zeros_like(out) if b[at] is None else b[at] for b in passes]
            b = slots[0][:, None] if k == 1 else torch.stack(slots, dim=1)  # (n or more, k, ...)
            rule = rule_of(layer.module)
            assert rule is not None
            for local, factor in rule(layer.module, a, b).items():
                if layer.parameters.get(local) in self.plan.followed:
                    parts[layer.parameters[local]].append(factor.of_examples(n))
        return {name: added(each) for name, each in parts.items()}


def record(plan: Plan, n: int, run: Callable[[], Tensor]) -> Recording:
    """The recording of ``run()``, a forward pass over ``n`` examples with fixed parameters."""
    recording = Recording(plan)
    with _hooks(recording, n), torch.enable_grad():
        recording.outputs = run()
    return recording


def input_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first tensor that a layer was called with, detached; None without one."""
    given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    return None if given is None else given.detach()


@contextmanager
def _hooks(recording: Recording, n: int) -> Any:
    handles = []
    for layer in recording.plan.layers:

        def keep(
            module: nn.Module, args: Any, kwargs: Any, output: Tensor, layer: Layer = layer
        ) -> Tensor | None:
            a = input_of(args, kwargs)
            if a is None or not isinstance(output, Tensor):  # no layer as rules know them
                return None
            if layer.path in recording.plan.shared:  # a copy for each example
                a, output = (t.expand(n, *t.shape[t.shape[0] == 1 :]) for t in (a, output))
            z = output if output.requires_grad else output.detach().requires_grad_()
            recording.uses.append((layer, a, z))
            return z.clone()  # so that an operation in place leaves z alone

        handles.append(layer.module.register_forward_hook(keep, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def checked_plan(
    plan: Plan,
    run: Callable[[], Tensor],
    plain: Callable[[int, Tensor], Mapping[str, Tensor]],
    n: int,
) -> Plan:
    """The part of a plan that agrees with plain differentiation on ``n`` examples.

    Args:
        plan: to be tried.
        run: the outputs (n, C) of the examples.
        plain: the gradients by name of one of the examples' outputs times a vector (C,).
        n: how many examples.
    """
    with torch.no_grad():
        outputs = run()
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype).to(outputs.device)
    reference = [plain(i, c[i]) for i in range(n)]
    agreed = _try(plan, run, c, reference, n)
    # A layer that saw no axis of examples, or a wrong one, may see the same for all of them.
    odd = [x for x in plan.layers if plan.followed & frozenset(x.parameters.values()) - agreed]
    for layer in odd[:_TRIES]:
        other = Plan(plan.layers, plan.shared | {layer.path}, plan.followed)
        found = _try(other, run, c, reference, n)
        if found > agreed:
            plan, agreed = other, found
    return plan.without(set(plan.followed - agreed))


def _try(
    plan: Plan,
    run: Callable[[], Tensor],
    c: Tensor,
    reference: Sequence[Mapping[str, Tensor]],
    n: int,
) -> frozenset[str]:
    """The parameters whose gradients agree; none if the model does not run like this."""
    agreed = set()
    try:
        recording = record(plan, n, run)
        skipped = recording.leave_out_unsplit(n)
        found = recording.factors(c[:, None])
    except (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError):
        return frozenset()
    names = plan.followed & found.keys() - skipped
    wanted = {name: torch.stack([each[name].reshape(-1) for each in reference]) for name in names}
    # A gradient that is zero by symmetry (of attention's keys' bias) is what rounding leaves.
    largest = max((float(g.abs().amax()) for g in wanted.values()), default=0.0)
    rounding = _ROUNDED * torch.finfo(c.dtype).eps * largest
    for name, g in wanted.items():
        made = found[name].gradients()[:, 0]
        if made.shape == g.shape:
            error = (made - g).abs().amax()
            if error <= AGREEMENT * g.abs().amax() + rounding:
                agreed.add(name)
    return frozenset(agreed)
