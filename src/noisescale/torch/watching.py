"""The noise scale of a training run while it runs: one line before the loop.

    watch = noisescale.torch.watch(model, optimizer, n_train=len(dataset))

On measured updates the run's own backward pass gives, beside the batch's gradient C, the squared
norms of its examples' contributions c_i (:mod:`noisescale.torch.observer`), from which |G|^2 and
tr S follow without bias (:mod:`noisescale.noise.watch.reading`). The reading is taken when the
optimiser steps. Nothing in the run changes: weights are the same to the bit.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from noisescale.checks import check_choice, check_flag, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.watch.pace import DEAR, GAP, Pace, Pacer, Timings, gaps_in_words
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord
from noisescale.torch import optimizers, watched
from noisescale.torch.calls import has_hooks
from noisescale.torch.loss_weight import unlike_reduction
from noisescale.torch.observer import Observer
from noisescale.torch.troubles import ADAM, NO_METRIC, failure
from noisescale.torch.update import PLAIN, Update, batches, together

_NOTHING = Batch(math.nan, math.nan, math.nan, 0, math.nan)


class Watch(NoiseRecord):
    """What :func:`watch` returns; see there.

    Attributes:
        every: every how many updates are measured; None until chosen, and chosen anew at times.
        examples: how many examples of a batch; None for all.
        n_updates: updates so far, measured or not.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        n_train: int | None,
        overhead: float,
        every: int | None,
        examples: int | None,
        reduction: str,
        norm: str,
        decay: float | None,
        per_layer: bool,
        unit: str,
        uncovered: str,
        hooked: bool = True,
    ) -> None:
        super().__init__(n_train=n_train, decay=decay, unit=unit)
        self.model = watched.trained(model)
        watched.check_optimizer(optimizer, check_choice("norm", norm, ("l2", "adam")))
        self.optimizer, self.norm = optimizer, norm
        self.reduction = check_choice("reduction", reduction, ("mean", "sum", "whole"))
        check_number("overhead", overhead, "above 0", lambda v: v > 0)
        leave_out = check_choice("uncovered", uncovered, ("func", "leave_out")) == "leave_out"
        given = Pace(
            1 if every is None else check_whole("every", every, at_least=1),
            None if examples is None else check_whole("examples", examples, at_least=1),
        )
        self._pacer = Pacer(overhead)
        if every is not None or examples is not None:
            self._pacer = Pacer(overhead, given, given=True)
        self.per_layer = check_flag("per_layer", per_layer)
        compiled = watched.is_compiled(model)
        self._distributed = any(isinstance(m, DistributedDataParallel) for m in model.modules())
        self._observer = Observer(
            self.model,
            called=watched.called(model),
            label=_layer_of if per_layer else _whole,
            count_tokens=unit == "token",
            leave_out=leave_out,
            averaged=self._distributed,
            measure=self._metric if norm == "adam" else None,
        )
        self.n_updates, self._batch_size, self._passes = 0, 0, 0
        self._last = math.nan  # the clock at the last step
        self._noted: tuple[tuple[int, int], ...] | None = None
        self.closed = False
        self.adam = optimizers.is_adam(optimizer)
        self._unseen: dict[str, torch.Tensor] = {}  # how many entries never had a gradient
        self._handle: Any = None
        try:
            self._prepare()
            if optimizer is not None and hooked:
                self._handle = optimizer.register_step_pre_hook(self._before_step)
            watched.take_over(self.model, self)
            if compiled and watched.has_dropout(self.model):
                self.note(watched.MASKS)
        except BaseException:  # nothing is left behind
            self.close()
            raise

    @property
    def every(self) -> int | None:
        """Every how many updates are measured; None until it is chosen."""
        return None if self._pacer.pace is None else self._pacer.pace.every

    @property
    def examples(self) -> int | None:
        """How many examples of a batch are measured; None for all."""
        return None if self._pacer.pace is None else self._pacer.pace.examples

    @property
    def pending(self) -> bool:
        """Whether a backward pass of the coming update was seen; never if it is not measured."""
        return bool(self._observer.update.passes)

    @property
    def n_seen(self) -> int:
        """Updates so far, measured or not."""
        return self.n_updates

    def step(self, loss_scale: float | None = None) -> None:
        """An update is about to be made: take its reading. The optimiser calls it, if given.

        Args:
            loss_scale: by which the loss was multiplied against underflow; found out, if a
                ``GradScaler`` steps the optimiser.
        """
        if self.closed:
            return
        began = time.perf_counter()
        measured = bool(self._observer.hooks)
        last = self.rows[-1].update if self.rows else 0
        if measured:
            scale = optimizers.loss_scale() if loss_scale is None else float(loss_scale)
            try:
                self._read(self._observer.take(), scale)
            except Warning:  # which somebody wants as an error
                raise
            except Exception as error:  # a run goes on whatever happens in here
                self.whole.lose()
                self.note(failure(error), warn=True)
        if self.n_updates - last > self._pacer.longest(last):
            updates = [0, *(row.update for row in self.rows), self.n_updates]
            self.note(gaps_in_words(updates, self._pacer.longest), instead=GAP)
        if not self._pacer.given:
            self._time(measured, time.perf_counter() - began)
        self.n_updates += 1
        self._prepare()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Take the reading now, or after the backward pass in the step's closure.

        A closure may be called again in one step, at other weights: what comes after the gradient
        of those before the step is not looked at.
        """
        if optimizers.is_nested(optimizer):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        taken = self.pending or not callable(closure)
        if taken:
            self.step()
        if self.closed or not callable(closure):
            return None

        def seen() -> Any:
            nonlocal taken
            if taken:
                with self._observer.aside():
                    return closure()
            loss, taken = closure(), True
            self.step()
            return loss

        if "closure" in kwargs:
            return args, kwargs | {"closure": seen}
        return (args[0], seen, *args[2:]), kwargs

    def close(self) -> None:
        """Stop watching; what was measured stays."""
        self.closed = True
        self._observer.stop()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything measured, as plain numbers and text, and the number of updates."""
        return super().state_dict() | {"n_updates": self.n_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a ``state_dict``, of the same ``norm``."""
        known = isinstance(state, dict) and state.get("history") and "plain" in state
        if known and (state["plain"] is not None) != (self.norm == "adam"):
            other = "l2" if self.norm == "adam" else "adam"
            raise InputError(f"the state is of norm='{other}', this watch measures '{self.norm}'.")
        super().load_state_dict(state)
        self.adam = optimizers.is_adam(self.optimizer)
        before, self._last = self.n_updates, math.nan
        self.n_updates = check_whole("n_updates", state["n_updates"], at_least=0)
        last = self.rows[-1].update if self.rows else 0
        if self._pacer.resumes(self.n_updates, before=before, last=last):
            self._prepare()

    def _prepare(self) -> None:
        """Look at the next update, or look away."""
        observer, pacer = self._observer, self._pacer
        if pacer.begins(self.n_updates):
            observer.start(pacer.examples(self._batch_size // max(self._passes, 1)))
        elif observer.hooks:
            observer.stop()

    def _read(self, update: Update, scale: float) -> None:
        observer = self._observer
        if observer.n_discarded:
            self.whole.lose(observer.n_discarded)
            observer.n_discarded = 0
        if update.trouble == NO_METRIC and self.n_updates == 0:
            return  # Adam has no second moments before its first step
        if update.trouble is not None:
            self.note(update.trouble, warn=True)
        self._batch_size, self._passes = sum(one.n for one in update.passes), len(update.passes)
        made = self._batches(update, scale)
        plain = made.pop(PLAIN, None)
        whole = together(list(made.values())) if made else _NOTHING
        circumstances = tuple((id(e), len(e.left)) for e in self._observer.entries.values())
        if circumstances != self._noted:
            self._note_circumstances()
            self._noted = circumstances
        self.take(
            whole,
            update=self.n_updates,
            layers=made if self.per_layer else None,
            plain=plain,
            **optimizers.rate_of(self.optimizer)[0]._asdict(),
        )

    def _metric(self, params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        metric = optimizers.adam_metric(self.optimizer, params)
        self._unseen = {name: (m == 0).sum() for name, m in (metric or {}).items()}
        return metric

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know about these numbers, in words."""
        sizes = {name: p.numel() for name, p in self.model.named_parameters()}
        unseen = (
            f"{int(n):,} of {sizes[name]:,} entries of {name} never had a gradient before: left out"
            for name, n in self._unseen.items()
            if n
        )
        return (*super().notes, *unseen)

    def _batches(self, update: Update, scale: float) -> dict[str, Batch]:
        """What every layer has seen, in all processes."""
        usable = update.trouble is None
        labels = sorted(update.totals) if usable else []
        if self._distributed:  # of the same layers everywhere, whatever happened here
            labels = sorted({self._observer.label(x) for x in self._observer.followed()})
            labels += [PLAIN] * (self.norm == "adam")
        elif not usable:
            return {}
        numbers = [math.nan] * (4 + len(labels))
        if usable:
            numbers = update.numbers(labels, self.reduction)
        totals = [float(update.totals.get(label, math.nan)) for label in labels]
        world = 1
        if self._distributed:
            world = torch.distributed.get_world_size()
            device = next(self.model.parameters()).device
            shared = torch.tensor(numbers, dtype=torch.float64, device=device)
            torch.distributed.all_reduce(shared)
            numbers = shared.tolist()
        if self.reduction == "whole" and numbers[0] > 0:  # its weights add up to 1 already
            scale *= world / numbers[0]
        eps = max((torch.finfo(t.dtype).eps for t in update.totals.values()), default=0.0)
        made = batches(numbers, totals, world=world, scale=scale, unit=self.unit, eps=eps)
        return dict(zip(labels, made, strict=True))

    def _time(self, measured: bool, reading: float) -> None:
        """Learn what measuring costs, and choose the pace when it is time to."""
        observer, pacer, began = self._observer, self._pacer, self._last
        self._last = self._clock() if pacer.is_timed(self.n_updates, measured) else math.nan
        pacer.add(
            self.n_updates,
            self._last - began,
            measured=measured,
            examples=0 if observer.check_seconds else observer.n_measured,
            own=observer.seconds + reading,
        )
        # Processes come to this together, whatever each of them could measure.
        if measured and pacer.due:
            timings, n, passes = self._together(pacer.settled())
            dear = pacer.choose(timings, n, passes, self.n_updates)
            if dear is not None:
                self.note(dear, instead=DEAR)

    def _clock(self) -> float:
        if self._observer.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def _together(self, timings: Timings) -> tuple[Timings, int, int]:
        """What all processes go by: the slowest timings, the largest batch, the most passes."""
        n, passes = max(self._batch_size, 1), max(self._passes, 1)
        if not self._distributed:
            return timings, n, passes
        numbers = [-timings.update, timings.fixed, timings.each, float(n), float(passes)]
        device = next(self.model.parameters()).device
        slowest = torch.tensor(numbers, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(slowest, op=torch.distributed.ReduceOp.MAX)
        update, fixed, each, n, passes = slowest.abs().tolist()
        return Timings(update, fixed, each), round(n), round(passes)

    def _note_circumstances(self) -> None:
        outputs = self._observer.outputs
        if outputs.row_weight is not None:
            unlike = unlike_reduction(*outputs.row_weight, self.reduction)
            if unlike is not None:
                self.note(unlike, warn=True)
        self.counted = outputs.in_words(self.unit, self.reduction)
        if watched.is_coupled(self.model):
            self.note(watched.COUPLED)
        if self.norm == "l2" and optimizers.is_adam(self.optimizer):
            self.note(ADAM)
        unlike_groups = optimizers.rate_of(self.optimizer)[1]
        if unlike_groups is not None:
            self.note(unlike_groups)
        entries = self._observer.entries.values()
        for entry in entries:
            again = entry.compiled or (entry.rest and not self._observer.leave_out)
            if again and has_hooks(entry.module):
                self.note(watched.HOOKS)
            if entry.unchecked is not None:
                self.note(
                    "layers could not be compared with plain differentiation "
                    f"({entry.unchecked}): examples are taken to lie along their first axis"
                )
            for name, reason in sorted(entry.left.items()):
                self.note(f"left out: {name}, because {reason}")
            rest = ", ".join(sorted(entry.rest.values()))
            if rest and self._observer.leave_out:
                self.note(f"left out, because no rule covers them: {rest}")
            elif rest:
                self.note(f"differentiated example by example, because no rule covers them: {rest}")
                if watched.has_dropout(self.model):
                    self.note(watched.MASKS)
        free = {name for name, p in self.model.named_parameters() if p.requires_grad}
        unseen = free - set().union(*(entry.followed(False) | set(entry.left) for entry in entries))
        if entries and unseen:
            self.note(f"never seen in use, and left out: {', '.join(sorted(unseen))}")

    def __repr__(self) -> str:
        notes = "".join(f"\n  note: {sentence}" for sentence in self.notes)
        return f"Watch: {super().__repr__()}{notes}"


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    n_train: int | None = None,
    overhead: float = 0.1,
    every: int | None = None,
    examples: int | None = None,
    reduction: str = "mean",
    norm: str = "l2",
    decay: float | None = None,
    per_layer: bool = False,
    unit: str = "example",
    uncovered: str = "func",
) -> Watch:
    """Measure the critical batch size and the noise scale of a run while it trains.

    Call it once before the loop; the loop stays as it is. Examples must lie along the first axis of
    the model's inputs.

    Args:
        model: what is trained; wrapped by ``DistributedDataParallel`` or ``torch.compile`` if it
            is called like that.
        optimizer: readings are taken when it steps. Without one, call ``watch.step()`` after the
            backward passes of every update.
        n_train: the size of the training set, for ``watch.noise_scale``.
        overhead: the part of a run's time that measuring may take, by which ``every`` and
            ``examples`` are chosen from timings throughout the run if neither is given. Every 20th
            update is measured whatever it takes, and later on one in a twentieth of those so far.
            Where a measurement takes three milliseconds at most, a second in all is free.
        every: measure every so many updates; the others cost nothing.
        examples: the squared norms of so many examples of each batch, chosen at random: unbiased
            still, with a larger error. None is all of them.
        reduction: whether the loss is a ``"mean"`` or a ``"sum"`` over the batch. Losses of several
            backward passes before a step are taken as divided by their number; ``"whole"`` says
            that they add up to the mean over all of them.
        norm: ``"l2"``, or ``"adam"``: gradients divided by the roots of the optimiser's second
            moments, as its step divides them; the history then has plain gradients beside it.
        decay: None averages over the recent half of the run so far, so that the answer follows
            it; 0.99 forgets after about a hundred updates, 0 never.
        per_layer: whether ``watch.layers`` tells the same of each layer.
        unit: batch sizes in ``"example"``s, or in ``"token"``s: valid ones, of sequences that stay
            the independent examples; the loss is then a mean (or sum) over valid tokens.
        uncovered: parameters that no rule covers are differentiated example by example
            (``"func"``), or left out (``"leave_out"``).

    >>> import torch
    >>> from noisescale.torch import watch
    >>> _ = torch.manual_seed(0)
    >>> x, model = torch.randn(512, 4).double(), torch.nn.Linear(4, 1).double()
    >>> y = x.sum(1, keepdim=True) + torch.randn(512, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> noise = watch(model, optimizer, every=1, decay=0)
    >>> for batch in torch.arange(512).split(32):
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.mse_loss(model(x[batch]), y[batch]).backward()
    ...     optimizer.step()
    >>> noise.close()
    >>> print(noise)
    Watch: critical batch size 7.72 [6.17, 11] examples (mean loss) (16 of 16 updates measured)
    """
    return Watch(
        model,
        optimizer,
        n_train=n_train,
        overhead=overhead,
        every=every,
        examples=examples,
        reduction=reduction,
        norm=norm,
        decay=decay,
        per_layer=per_layer,
        unit=unit,
        uncovered=uncovered,
    )


def _whole(name: str) -> str:
    return ""


def _layer_of(name: str) -> str:
    """The module that a parameter belongs to."""
    return name.rpartition(".")[0] or "(model)"
