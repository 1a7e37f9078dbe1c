"""Recording what layers see: their inputs, and the gradients at their outputs.

One forward pass over n examples, with hooks on every module that has a rule
(:mod:`noisescale.torch.layer_rules`), keeps inputs a, and where outputs z stand in the graph;
reverse passes from the model's outputs to all z at once give the output gradients b of k rows c'
J_i of every example. Each does only half of an ordinary one's work: no parameter's gradient is
formed.

A parameter is followed by rules if every module that holds it has one and, among a few examples,
the gradients of the first and the last are those of plain differentiation, one example at a time.
That comparison finds out whatever rules cannot know: a weight that is used elsewhere by name,
examples that lie along another axis, layers that were wrapped. The gradients of all other
parameters are taken example by example.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

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
        shared: paths of layers that see the same for every example (positions, say), and whether
            this has an axis of one example; None if that is not known yet.
        followed: the parameters' names; all others are differentiated example by example.
    """

    layers: tuple[Layer, ...]
    shared: Mapping[str, bool | None] = field(default_factory=dict)
    followed: frozenset[str] = frozenset()

    def without(self, names: set[str]) -> "Plan":
        """The same with fewer parameters, and without layers that have none left."""
        followed = self.followed - names
        layers = tuple(
            layer for layer in self.layers if followed & frozenset(layer.parameters.values())
        )
        return Plan(layers, self.shared, followed)

    def on(self, module: nn.Module) -> "Plan":
        """The same of another module with the same paths."""
        layers = (replace(x, module=module.get_submodule(x.path)) for x in self.layers)
        return replace(self, layers=tuple(layers))


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
    return Plan(tuple(layers), {}, frozenset(wanted)).without(set())


@dataclass(frozen=True, eq=False)
class Use:
    """One call of a layer: its inputs, and its outputs' place in the graph and their shape."""

    layer: Layer
    a: Tensor
    edge: GradientEdge
    shape: torch.Size


@dataclass(eq=False)
class Recording:
    """One forward pass: the outputs (n, C), and every use of a layer."""

    plan: Plan
    outputs: Tensor = field(init=False)
    uses: list[Use] = field(default_factory=list)

    def leave_out_unsplit(self, n: int) -> set[str]:
        """Forget layers whose leading axis is none of ``n`` examples; their parameters' names."""
        odd = {use.layer.path for use in self.uses if len(use.a) % n or use.shape[0] % n}
        left = [use.layer for use in self.uses if use.layer.path in odd]
        self.uses = [use for use in self.uses if use.layer.path not in odd]
        return {p for layer in left for p in layer.parameters.values()}

    def factors(self, coefficients: Tensor) -> dict[str, Factor]:
        """Of the followed parameters, for k rows of each example: coefficients (n, k, C).

        Once: the graph is gone afterwards.
        """
        n, k, _ = coefficients.shape
        edges = [use.edge for use in self.uses]
        passes = [
            torch.autograd.grad(
                self.outputs,
                edges,
                grad_outputs=coefficients[:, j],
                retain_graph=j < k - 1,  # the last pass frees what it has used
                allow_unused=True,
            )
            for j in range(k if edges else 0)
        ]
        parts: dict[str, list[Factor]] = defaultdict(list)
        for at, use in enumerate(self.uses):
            none = coefficients.new_zeros(()).expand(use.shape)
            slots = [none if b[at] is None else b[at].reshape(use.shape) for b in passes]
            b = slots[0][:, None] if k == 1 else torch.stack(slots, dim=1)  # (n or more, k, ...)
            layer, rule = use.layer, rule_of(use.layer.module)
            assert rule is not None
            for local, factor in rule(layer.module, use.a, b).items():
                if layer.parameters.get(local) in self.plan.followed:
                    parts[layer.parameters[local]].append(factor.of_examples(n))
        return {name: added(each) for name, each in parts.items()}


def record(plan: Plan, n: int, run: Callable[[], Tensor], *, guess: bool = False) -> Recording:
    """The recording of ``run()``, a forward pass over ``n`` examples with fixed parameters.

    With ``guess``, layers that see no axis of ``n`` examples join the plan's shared ones.
    """
    recording = Recording(plan)
    with _hooks(recording, n, guess), torch.enable_grad():
        recording.outputs = run()
    return recording


def of_each(t: Tensor, n: int, *, one: bool | None) -> Tensor:
    """What all of n examples see, once for each; ``one`` if it has an axis of one example."""
    if one and len(t) != 1:
        raise ValueError(f"what examples share has an axis of {len(t)} for them")
    return t.expand(n, *t.shape[1 if one else 0 :])


def input_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first tensor that a layer was called with, detached; None without one."""
    given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
    return None if given is None else given.detach()


@contextmanager
def _hooks(recording: Recording, n: int, guess: bool) -> Any:
    handles = []
    for layer in recording.plan.layers:

        def keep(
            module: nn.Module, args: Any, kwargs: Any, output: Tensor, layer: Layer = layer
        ) -> Tensor | None:
            a = input_of(args, kwargs)
            if a is None or not isinstance(output, Tensor) or not (a.ndim and output.ndim):
                return None  # no layer as rules know them
            shared = recording.plan.shared
            if layer.path in shared or (guess and len(a) % n and len(output) % n):
                one = shared.get(layer.path)
                one = len(output) == 1 if one is None else one
                recording.plan = replace(recording.plan, shared={**shared, layer.path: one})
                a, output = (of_each(t, n, one=one) for t in (a, output))
            edge = _edge_of(output)
            if edge is not None:
                recording.uses.append(Use(layer, a, edge, output.shape))
                return None
            z = output if output.requires_grad else output.detach().requires_grad_()
            recording.uses.append(Use(layer, a, get_gradient_edge(z), z.shape))
            return z.clone()  # so that an operation in place leaves z alone

        handles.append(layer.module.register_forward_hook(keep, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _edge_of(z: Tensor) -> GradientEdge | None:
    """Where the gradient at ``z`` as it is now arrives, whatever is done to it in place later.

    Of a view that only has another shape, as Linear gives, that is the edge of what it is a view
    of, which an operation in place continues from. None if there is none such.
    """
    whole = z if z._base is None else z._base
    alike = whole is z or (
        whole.numel() == z.numel() and whole.is_contiguous() and z.is_contiguous()
    )
    return get_gradient_edge(whole) if alike and whole.grad_fn is not None else None


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
    first = _tried(plan, n, run, outputs, guess=True) or _tried(plan, n, run, outputs)
    plan = plan if first is None else first.plan
    generator = torch.Generator().manual_seed(0)
    c = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype).to(outputs.device)
    compared = sorted({0, n - 1})  # rules treat all alike
    reference = {i: plain(i, c[i]) for i in compared}
    agreed = _agreed(first, c, reference)
    # A layer that saw no axis of examples, or a wrong one, may see the same for all of them.
    odd = [x for x in plan.layers if plan.followed & frozenset(x.parameters.values()) - agreed]
    for layer in odd[:_TRIES]:
        others = {path: one for path, one in plan.shared.items() if path != layer.path}
        toggled = others if layer.path in plan.shared else {**others, layer.path: None}
        other = _tried(replace(plan, shared=toggled), n, run, outputs)
        found = _agreed(other, c, reference)
        if other is not None and found > agreed:
            plan, agreed = other.plan, found
    return plan.without(set(plan.followed - agreed))


_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, KeyError, AttributeError)


def _tried(
    plan: Plan, n: int, run: Callable[[], Tensor], outputs: Tensor, *, guess: bool = False
) -> Recording | None:
    """The recording; None if the model does not run like this, or with other outputs."""
    try:
        recording = record(plan, n, run, guess=guess)
    except _REFUSALS:
        return None
    made = recording.outputs.detach()
    if made.shape != outputs.shape:
        return None
    # A copy for each example may be taken for something else: for rows to be averaged, say.
    off = (made - outputs).abs().amax() > AGREEMENT * outputs.abs().amax()
    return None if recording.plan.shared and off else recording


def _agreed(
    recording: Recording | None, c: Tensor, reference: Mapping[int, Mapping[str, Tensor]]
) -> frozenset[str]:
    """The parameters whose gradients are those of the examples in ``reference``."""
    agreed: set[str] = set()
    if recording is None:
        return frozenset()
    try:
        skipped = recording.leave_out_unsplit(len(c))
        found = recording.factors(c[:, None])
    except _REFUSALS:
        return frozenset()
    names = recording.plan.followed & found.keys() - skipped
    wanted = {
        name: torch.stack([each[name].reshape(-1) for each in reference.values()]) for name in names
    }
    # A gradient that is zero by symmetry (of attention's keys' bias) is what rounding leaves.
    largest = max((float(g.abs().amax()) for g in wanted.values()), default=0.0)
    rounding = _ROUNDED * torch.finfo(c.dtype).eps * largest
    for name, g in wanted.items():
        made = found[name].gradients()[list(reference), 0]
        if made.shape == g.shape:
            error = (made - g).abs().amax()
            if error <= AGREEMENT * g.abs().amax() + rounding:
                agreed.add(name)
    return frozenset(agreed)
