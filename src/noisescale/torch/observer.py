"""Seeing the gradients of single examples while a model trains, without touching the run.

Forward hooks on layers with rules keep what each use saw; tensor hooks on their outputs (which
survive operations in place) get the output gradients in the run's own backward pass and turn both
into sums of squared norms at once. Uses of a parameter that has several are kept until the pass
ends, because their gradients add up before they are squared. When a pass ends, before anything
clips or scales them back, the norm of the accumulated gradients is taken.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisescale.torch.calls import Call, loss_of, outputs_of
from noisescale.torch.capture import Layer, input_of, of_each
from noisescale.torch.entry import Entry, Seen, make_entry
from noisescale.torch.example_norms import (
    BATCH_NORMS,
    Metric,
    factors_of,
    squares_of,
    sum_of_squares,
)
from noisescale.torch.factors import Factor, added
from noisescale.torch.hooks import (
    Hooks,
    backward_pass,
    full_precision,
    is_behind,
    on_gradient,
    when_backward_ends,
)
from noisescale.torch.loss_weight import OutputGradients
from noisescale.torch.model import unwrapped
from noisescale.torch.part import Part
from noisescale.torch.repeated import repeated
from noisescale.torch.troubles import (
    CHANGED,
    NO_METRIC,
    NOTHING,
    STALE,
    TWICE,
    UNLIKE,
    failure,
)
from noisescale.torch.update import HALF, PLAIN, Pass, Update, floats, squared_totals
from noisescale.torch.watched import is_compiled, seen_parts


@dataclass(eq=False)
class Use:
    """One use of a layer: its input, among how many examples, and how often layers are used."""

    entry: Entry
    layer: Layer
    a: Tensor
    n: int
    uses: Counter[Layer]
    seen: bool = False


class Observer:
    """The gradients that a model's backward passes leave, update by update.

    Args:
        model: what is trained, without wrappers.
        called: what the run calls: the model itself, or its compiled twin, or a model of which
            parts are compiled.
        label: the layer that a parameter's numbers are added to, by the parameter's name.
        count_tokens: whether the valid tokens of every example are counted.
        leave_out: whether parameters without rules are left out, not differentiated again.
        averaged: whether processes average gradients when a pass ends, which comes first.
        measure: the metric of these parameters' gradients, None if there is none yet; None is l2.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        called: nn.Module,
        label: Callable[[str], str],
        count_tokens: bool,
        leave_out: bool,
        averaged: bool,
        measure: Callable[[Mapping[str, Tensor]], Metric | None] | None,
    ) -> None:
        self.model, self.called, self.label = model, called, label
        self.leave_out, self.averaged = leave_out, averaged
        self.known = {id(p): name for name, p in model.named_parameters()}
        holders = Counter(
            id(p)
            for part in model.modules()
            for _, p in part.named_parameters(recurse=False, remove_duplicate=False)
        )
        self.tied = {name for key, name in self.known.items() if holders[key] > 1}
        self.entries: dict[nn.Module, Entry] = {}
        self.hooks = Hooks()
        self.part = Part()
        self._followed: tuple[tuple[int, ...], dict[str, nn.Parameter]] | None = None
        self.measure = measure
        self.metric: Metric | None = None
        self.scouting = True
        self.outputs = OutputGradients(count_tokens=count_tokens)
        self.n_discarded = 0  # updates whose gradients were zeroed before a step
        self.paused = False
        self.cuda = any(p.device.type == "cuda" for p in model.parameters())
        self._forget()

    # What the watch asks for.

    def start(self, examples: int | None) -> None:
        """Look at the next update, at so many examples of each batch (None: all)."""
        self.part.draw(examples)
        self._forget()
        if self.hooks and self.scouting and self.entries:
            self.hooks.remove()
        if not self.hooks:
            self._install()

    def stop(self) -> None:
        """Look away: no hook is left in the model."""
        self.hooks.remove()
        self._forget()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Look at none of the calls in here."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def take(self) -> Update:
        """What the passes since the start left."""
        update = self.update
        if update.trouble is None and not update.passes:
            update.trouble = NOTHING
        return update

    def followed(self) -> dict[str, nn.Parameter]:
        """The parameters whose gradients are seen, by name."""
        now = tuple(len(entry.left) for entry in self.entries.values())
        if self._followed is None or self._followed[0] != now:
            names = set().union(*(e.followed(self.leave_out) for e in self.entries.values()))
            seen = {name: p for name, p in self.model.named_parameters() if name in names}
            self._followed = now, seen
        return self._followed[1]

    # Looking.

    def _forget(self) -> None:
        self.update = Update()
        self.depth, self.n = 0, 0
        self.seconds, self.check_seconds, self.n_measured = 0.0, 0.0, 0
        self._forget_pass()

    def _forget_pass(self) -> None:
        self.passes_running: list[int] = []
        self.uses: Counter[Layer] = Counter()
        self.entered: set[Entry] = set()
        self.deferred: list[tuple[Use, Tensor, float]] = []
        self.pass_n: set[int] = set()
        self.outputs.tokens = None
        for entry in self.entries.values():
            entry.calls.clear()

    def _install(self) -> None:
        # Until it is known which modules are called from outside, all may be.
        self.scouting = not self.entries
        for part in list(self.entries) or seen_parts(self.called):
            self.hooks.around(part, self._safe(self._enter), self._safe(self._leave))
        for entry in self.entries.values():
            self._tap(entry)

    def _tap(self, entry: Entry) -> None:
        for layer in () if entry.compiled else entry.plan.layers:
            self.hooks.after(layer.module, self._safe(self._keeper(entry, layer)))

    def _looking(self) -> bool:
        return not self.paused and torch.is_grad_enabled() and not torch.compiler.is_compiling()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._looking():
            return
        self.depth += 1
        if self.depth > 1 or self.passes_running:  # inside a call, or a checkpoint's second one
            return
        self.call = Call(args, kwargs)
        self.n = self.call.n or 0
        if module not in self.entries:
            began = self._clock()
            with self.aside():
                self.entries[module] = make_entry(
                    unwrapped(module), self.call, self.known, compiled=is_compiled(module)
                )
            self._tap(self.entries[module])
            self.check_seconds += self._clock() - began

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._looking():
            return
        self.depth -= 1
        entry = self.entries.get(module)
        if self.depth or self.passes_running or entry is None:
            return
        self.entered.add(entry)
        twice = entry.compiled or (entry.rest and not self.leave_out)
        seen = Seen(self.call.detached() if twice else None, self.n)
        out = outputs_of(output)
        if out is not None and out.requires_grad:
            seen.outputs = None if self.outputs.judged else out.detach()
            on_gradient(out, self._safe(lambda b: self._output_gradient(entry, seen, b)))
        loss = loss_of(output) if entry.compiled else None
        # Made inside of compiled code, where the gradient at the outputs does not show.
        if loss is not None and (out is None or not is_behind(out, loss)):
            on_gradient(loss, self._safe(lambda b: self._loss_gradient(entry, seen, b)))

    def _keeper(self, entry: Entry, layer: Layer) -> Callable[..., Tensor | None]:
        shared, one = layer.path in entry.plan.shared, entry.plan.shared.get(layer.path)

        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
            if (
                self.depth and not self.passes_running
            ):  # what checkpoints call without gradients too
                self.uses[layer] += 1
            if not self._looking() or not isinstance(output, Tensor) or not output.requires_grad:
                return None
            a, z, n = input_of(args, kwargs), output, self.n
            if a is None:
                return None
            if shared:  # a copy for each example, which may be changed in place
                a, z = (of_each(t, n, one=one) for t in (a, z))
                z = z.clone()
            if not n or not (a.ndim and z.ndim) or len(a) % n or len(z) % n:
                if entry.unchecked is not None:
                    entry.leave_out(layer.parameters.values(), "they see no axis of examples")
                self._trouble(f"layer '{layer.path}' sees no axis of {n} examples")
                return None
            use = Use(entry, layer, a, n, self.uses)
            on_gradient(z, self._safe(lambda b: self._gradient(use, b)))
            return z if shared else None

        return keep

    # In the backward pass.

    def _output_gradient(self, entry: Entry, seen: Seen, b: Tensor | None) -> None:
        if self.paused or not self.hooks or b is None:
            return
        began = self._clock()
        self._in_pass(seen.n)
        trouble = self.outputs.look(seen.n, b, seen.outputs)
        if trouble is not None:
            self._trouble(trouble)
        seen.b, seen.outputs = b.detach(), None
        entry.calls.append(seen)
        self.seconds += self._clock() - began

    def _loss_gradient(self, entry: Entry, seen: Seen, slope: Tensor | None) -> None:
        if self.paused or not self.hooks or slope is None:
            return
        self._in_pass(seen.n)
        seen.slope = slope.detach()
        entry.calls.append(seen)

    def _gradient(self, use: Use, b: Tensor) -> None:
        if self.paused or not self.hooks:
            return
        began = self._clock()
        if use.seen:
            self._trouble(TWICE)
            return
        use.seen = True
        self._in_pass(use.n)
        layer, n = use.layer, use.n
        coupled = isinstance(layer.module, BATCH_NORMS) and layer.module.training
        part, scale = (None, 1.0) if coupled else self.part.of(n)
        m = n if part is None else self.part.size(n)
        with torch.no_grad(), full_precision(b):
            a, b = use.a, b.detach()
            if part is not None:
                a, b = (
                    t[part] if len(t) == n else t.reshape(n, -1, *t.shape[1:])[part].flatten(0, 1)
                    for t in (a, b)
                )
            if b.dtype in HALF:
                b = b.float()
            if a.is_floating_point() and a.dtype != b.dtype:
                a = a.to(b.dtype)
            if use.uses[layer] > 1 or not self.tied.isdisjoint(layer.parameters.values()):
                self.deferred.append((Use(use.entry, layer, a, m, use.uses), b, scale))
            else:
                names, metric = frozenset(layer.parameters), self._metric(layer)
                square = sum_of_squares(layer.module, a, b, m, names, metric)
                self._add(next(iter(layer.parameters.values())), square, scale)
        use.a = b.new_empty(0)  # done with
        self.seconds += self._clock() - began

    def _in_pass(self, n: int) -> None:
        self.pass_n.add(n)
        number = backward_pass()
        if number in self.passes_running:
            return
        if not self.passes_running:
            self._pass_begins()
        self.passes_running.append(number)
        when_backward_ends(self._safe(lambda: self._ended(number, self.averaged)))

    def _pass_begins(self) -> None:
        """Whether the gradients that this pass adds to are those that the last one left."""
        there = floats(squared_totals(self.followed(), self.label))
        nothing = not any(there.values())
        if self.update.passes:
            left = self.update.left
            if nothing:  # zeroed without a step, as after an overflow: the update begins anew
                self.n_discarded += 1
                self.update = Update()
            elif there != left and math.isfinite(sum(left.values())):
                self._trouble(CHANGED)
        elif not nothing:
            self._trouble(STALE)
        if self.measure is not None and not self.update.passes:
            self.metric = self.measure(self.followed())
            if self.metric is None:
                self._trouble(NO_METRIC)

    def _ended(self, number: int, later: bool) -> None:
        if later:  # processes average gradients in a callback of their own, which comes before
            when_backward_ends(self._safe(lambda: self._ended(number, later=False)))
            return
        if number in self.passes_running:
            self.passes_running.remove(number)
        if self.passes_running or not self.hooks:  # a pass inside of another
            return
        began = self._clock()
        try:
            with torch.no_grad(), self.aside():
                self._finish_pass()
        finally:
            self._forget_pass()
        self.seconds += self._clock() - began

    def _finish_pass(self) -> None:
        if len(self.pass_n) != 1:
            self._trouble(UNLIKE)
            return
        (n,) = self.pass_n
        self._add_deferred()
        self._add_again()
        self.n_measured += self.part.size(n)
        self.update.passes.append(Pass(n, self.outputs.tokens))
        self.update.totals = totals = squared_totals(self.followed(), self.label)
        self.update.left = floats(totals)
        if self.metric is not None:
            self.update.totals = squared_totals(self.followed(), self.label, self.metric)
            self.update.totals[PLAIN] = torch.stack(list(totals.values())).sum()

    def _add_deferred(self) -> None:
        made: dict[tuple[str, float], list[Factor]] = defaultdict(list)
        for use, b, scale in self.deferred:
            names = frozenset(use.layer.parameters)
            for local, factor in factors_of(use.layer.module, use.a, b, use.n, names).items():
                made[use.layer.parameters[local], scale].append(factor)
        for (name, scale), factors in made.items():
            metric = None if self.metric is None else self.metric[name]
            self._add(name, squares_of(added(factors), metric), scale)

    def _add_again(self) -> None:
        """Calls that are made again: of a compiled model, or for parameters without rules."""
        for entry in self.entries.values():
            squares, trouble = repeated(
                entry,
                part=self.part,
                leave_out=self.leave_out,
                metric=self.metric,
                outputs=self.outputs,
                entered=entry in self.entered,
                alone=not self.averaged and not self.update.passes,
            )
            for name, square in squares.items():
                self._add(name, square, 1.0)
            if trouble is not None:
                self._trouble(trouble)

    def _metric(self, layer: Layer) -> Metric | None:
        if self.metric is None:
            return None
        return {local: self.metric[name] for local, name in layer.parameters.items()}

    def _add(self, name: str, square: Tensor, scale: float) -> None:
        square = square if scale == 1 else scale * square
        if self.metric is not None:
            square, plain = square.unbind()
            self.update.squares[PLAIN].append(plain)
        self.update.squares[self.label(name)].append(square)

    def _trouble(self, sentence: str) -> None:
        self.update.trouble = self.update.trouble or sentence

    def _safe(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A run goes on whatever happens in here."""

        def guarded(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:
                self._trouble(failure(error))
                return None

        return guarded

    def _clock(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
