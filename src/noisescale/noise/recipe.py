"""Recipes of SGD that keep their noise scale when something else must change.

With e = epsilon (1 - d)/(1 - m) the effective learning rate (d, PyTorch's dampening, is mostly 0),
kept = e N/B (``"linear"``) or g = e (N/B - 1) (``"exact"``), and L(B) = N/B or N/B - 1, one of
these moves:

    epsilon = kept (1 - m)/((1 - d) L(B)),    m = 1 - epsilon (1 - d) L(B)/kept,
    B = N e/kept  or  N e/(kept + e).

More data are another matter: see ``more_data.py``. Nothing here needs JAX.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from noisescale.checks import check_choice, check_flag, check_momentum, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.adam import AdamRecipe
from noisescale.noise.batch_law import BatchSizeLaw
from noisescale.noise.batch_recipe import BatchRecipe, kept_warmup
from noisescale.noise.devices import batch_step, whole_steps
from noisescale.noise.more_data import choose_batch
from noisescale.noise.recipe_notes import ADVICE, PAPERS_RULE, and_then, what_to_watch
from noisescale.noise.run_length import check_length, lasting
from noisescale.noise.scale import RULES, batch_size_keeping, loudness
from noisescale.noise.schedule import BatchSchedule, batch_schedule
from noisescale.notebook import Displayed

_MOVABLE = ("learning_rate", "momentum", "batch_size")
_UNKNOWN_DATA = (
    "this recipe's own n_train is not known, and with it how much more data the new one has: give "
    "the recipe its n_train first."
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(BatchRecipe, Displayed):
    """Learning rate, batch size and momentum for a training set of ``n_train`` examples.

    Attributes:
        learning_rate: epsilon, for a cost averaged over the examples of a batch.
        batch_size: B, of one update over all devices.
        n_train: N; None for a stream whose length is not known.
        momentum: m, as in TensorFlow and PyTorch without dampening.
        dampening, nesterov: as in PyTorch; Nesterov's form has the same noise scale.
        weight_decay: of PyTorch's SGD, a part of the cost; it stays as it is.
        epochs: the length of the run, by which the momentum's memory is judged and which more
            data are compared with.
        warmup_steps: updates of warm-up; kept in examples when the batch changes.
        unit: ``"examples"`` or ``"tokens"``, of ``batch_size`` and ``n_train``.
        sequence_length: tokens in an example.
        length_in: ``"epochs"`` or ``"steps"``, in which the run's length was asked for; lines to
            paste have it so. ``steps`` has the updates in all.
        batch_size_interval, branch: of a batch that follows more data: what one tuned recipe
            leaves open, infinite where it has no upper end (None in ``to_dict``), and whether
            ``"noise"`` or ``"epochs"`` bind.
        notes: what to watch out for, in words; not part of equality.

    >>> import noisescale as ns
    >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, momentum=0.9)
    >>> round(recipe.noise_scale, 4)
    194.3125
    >>> recipe.scaled_to(batch_size=1024, via="momentum")
    Recipe(learning_rate=0.1, batch_size=1024, n_train=50000, momentum=0.975)
    >>> print(recipe.to("transformers", world_size=4, max_per_device_batch_size=32))
    training_args = TrainingArguments(
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,  # x 4 devices: 256 examples an update
        learning_rate=0.1,
        optim="sgd",
        optim_args="momentum=0.9",  # reaches SGD from transformers 5 on
    )
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    batch_size_interval: tuple[float, float] | None = field(default=None, compare=False)
    branch: str | None = field(default=None, compare=False)
    # Not a field: of a scaled recipe the tuned one, which replace() forgets.
    _tuned: ClassVar["Recipe | None"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        momentum = check_momentum(self.momentum)
        dampening = check_number("dampening", self.dampening, "in [0, 1)", lambda v: 0 <= v < 1)
        if check_flag("nesterov", self.nesterov) and (momentum == 0 or dampening != 0):
            raise InputError(
                "nesterov needs a momentum above 0 and no dampening, as in PyTorch, got momentum "
                f"{momentum:g} and dampening {dampening:g}."
            )
        object.__setattr__(self, "momentum", momentum)
        # PyTorch ignores dampening without momentum.
        object.__setattr__(self, "dampening", dampening if momentum > 0 else 0.0)
        object.__setattr__(self, "notes", tuple(dict.fromkeys((*self.notes, *what_to_watch(self)))))

    @classmethod
    def from_optimizer(
        cls,
        optimizer: Any,
        *,
        batch_size: int | None = None,
        per_device_batch_size: int | None = None,
        gradient_accumulation_steps: int | None = None,
        world_size: int | None = None,
        n_train: int | None = None,
        epochs: float | None = None,
        warmup_steps: int | None = None,
        unit: str = "examples",
        sequence_length: int | None = None,
        group: int | None = None,
    ) -> "Recipe | AdamRecipe":
        """The recipe of a PyTorch optimiser: SGD, or Adam and AdamW as an ``AdamRecipe``.

        Args:
            optimizer: as it stands in the script; one wrapped by Accelerate or Lightning too, but
                no subclass. Under a scheduler that warms up or decays the learning rate is read as
                it was at first, under OneCycleLR as its max_lr; one that moves the momentum is
                refused.
            batch_size: of one update, over all devices; or:
            per_device_batch_size, gradient_accumulation_steps, world_size: whose product it is.
                In examples, whatever ``unit`` says. A run under torchrun knows its world size.
            n_train, epochs, warmup_steps, unit, sequence_length: as in :class:`Recipe`.
            group: the parameter group to read, if they have different learning rates.
        """
        from noisescale.noise.optimizer import read_optimizer

        recipe: Recipe | AdamRecipe = read_optimizer(
            optimizer,
            group=group,
            batch_size=batch_size,
            per_device_batch_size=per_device_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            world_size=world_size,
            unit=unit,
            sequence_length=sequence_length,
            run={"n_train": n_train, "epochs": epochs, "warmup_steps": warmup_steps},
        )
        return recipe

    @property
    def noise_scale(self) -> float:
        """The paper's g; NaN for a stream, whose N is not known."""
        if self.n_train is None:
            return math.nan
        return self.effective_learning_rate * loudness(self.batch_size, self.n_train, "exact")

    @property
    def effective_learning_rate(self) -> float:
        """epsilon (1 - d)/(1 - m): how far a constant gradient moves the parameters in a step."""
        return self.learning_rate * (1 - self.dampening) / (1 - self.momentum)

    def kept(self, rule: str) -> float:
        """What ``rule`` keeps: e N/B or g; of a stream e/B, which is that but for N."""
        if check_choice("rule", rule, RULES) == "exact" and self.n_train is None:
            raise InputError(
                "the exact rule keeps e (N/B - 1) and needs n_train: of a stream, whose N is not "
                "known, choose rule='linear', in which N has no part."
            )
        return self.effective_learning_rate * loudness(self.batch_size, self.n_train or 1, rule)

    def scaled_to(
        self,
        *,
        batch_size: int | None = None,
        n_train: int | None = None,
        learning_rate: float | None = None,
        momentum: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        via: str | None = None,
        rule: str | None = None,
        law: BatchSizeLaw | None = None,
        multiple_of: int | None = None,
    ) -> "Recipe":
        """Change one quantity or more, and move another so that the noise stays as it is.

        Args:
            batch_size, n_train, learning_rate, momentum: those that change, and their new values.
            epochs, steps: the length of the new run, one of them, which more data ask for: the
                best batch size depends on it. It stays so, whatever else changes.
            via: the one that moves: ``"learning_rate"``, ``"momentum"`` or ``"batch_size"``. By
                default a new batch size moves the learning rate, anything else the batch size.
            rule: ``"linear"`` keeps epsilon N/(B (1 - m)), which is what practitioners expect and
                the default; ``"exact"`` keeps g itself. A new ``n_train`` follows neither unless
                one is named, but what was measured of the paper's network: the batch grows as
                N^0.23 where noise binds, as N/T where the number T of updates does. One recipe does
                not tell which binds on your task: ``batch_size_interval`` spans both.
            law: a :class:`noisescale.BatchSizeLaw` fitted on your own task, to be used instead.
            multiple_of: a batch size that moves becomes a multiple of this, such as the number of
                devices.

        >>> import noisescale as ns
        >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, epochs=90)
        >>> recipe.scaled_to(batch_size=1024)
        Recipe(learning_rate=0.4, batch_size=1024, n_train=50000, momentum=0, epochs=90)
        >>> more = recipe.scaled_to(n_train=400_000, epochs=90)
        >>> more.batch_size, [round(size) for size in more.batch_size_interval]
        (410, [362, 452])
        """
        asked = {
            "batch_size": batch_size,
            "n_train": n_train,
            "learning_rate": learning_rate,
            "momentum": momentum,
        }
        changes: dict[str, Any] = {n: value for n, value in asked.items() if value is not None}
        if not changes:
            raise InputError(f"scaled_to changes {', '.join(asked)}, and was asked for nothing.")
        if rule is not None:
            check_choice("rule", rule, RULES)
        if via is not None:
            check_choice("via", via, _MOVABLE)
        by_law = "n_train" in changes and rule is None
        length = check_length(epochs, steps)
        if length and "n_train" not in changes:
            raise InputError("epochs and steps go with a new n_train: leave them out.")
        if law is not None and not isinstance(law, BatchSizeLaw):
            raise InputError(
                "law must be a noisescale.BatchSizeLaw, such as fit_batch_size_law gives, got "
                f"{type(law).__name__}."
            )
        if law is not None and not by_law:
            raise InputError("law goes with a new n_train and without a rule: leave it out.")
        step = batch_step(multiple_of, self.unit, self.sequence_length)
        if not by_law:
            return self._warming_up(self._kept_by(changes, via, rule or "linear", step, length))
        grown = self._with_more_data(changes.pop("n_train"), length, law, step)
        if not changes and via in (None, "batch_size"):
            return self._warming_up(grown)
        changes = changes or {"batch_size": self.batch_size}
        moved = grown._kept_by(changes, via, "linear", step, length)
        notes = (*grown.said(), and_then(grown, moved), *moved.notes)
        return self._warming_up(replace(moved, notes=notes))

    def _kept_by(
        self,
        changes: dict[str, Any],
        via: str | None,
        rule: str,
        step: int,
        length: dict[str, Any],
    ) -> "Recipe":
        """With ``changes``, and ``via`` moved so that the noise stays as it is."""
        via = _partner(changes) if via is None else via
        if via in changes:
            raise InputError(f"{via} cannot both be set and be moved: choose another via.")
        if self.n_train is None and "n_train" in changes:
            raise InputError(_UNKNOWN_DATA)
        if via == "batch_size":  # it is about to move, and need not fit the old way
            size = changes.get("n_train", self.n_train)
            size = self.batch_size if size is None else check_whole("n_train", size, at_least=1)
            changes = changes | {"batch_size": min(self.batch_size, size)}
        plain: dict[str, Any] = {
            "batch_size_interval": None,
            "branch": None,
            "length_in": "epochs",
            "notes": (),
        }
        moved = self._moved(replace(self, **plain, **changes), via, rule, step)
        papers = (PAPERS_RULE,) * (moved.n_train != self.n_train)
        return replace(
            moved,
            **lasting(length, moved.batch_size, moved.n_train),
            warmup_steps=None,
            notes=(*papers, *moved.said()),
        )

    def _with_more_data(
        self, n_train: int, length: dict[str, Any], law: BatchSizeLaw | None, step: int
    ) -> "Recipe":
        """With another N, and the batch by the law."""
        if not length:
            raise InputError(
                "with another n_train the best batch size depends on the length of the run: give "
                "epochs or steps, one of them, or keep the noise scale with rule='linear'."
            )
        if self.n_train is None:
            raise InputError(_UNKNOWN_DATA)
        N = check_whole("n_train", n_train, at_least=1)
        choice, notes = choose_batch(self, N, length, law)
        size = whole_steps(choice.batch_size, step, N)
        if choice.batch_size > N:
            notes.append(f"there are {N} {self.unit} to train on: the batch is held at {size}")
        return replace(
            self,
            n_train=N,
            batch_size=size,
            **lasting(length, size, N),
            warmup_steps=None,
            batch_size_interval=(choice.low, choice.high),
            branch=choice.branch,
            notes=tuple(notes),
        )

    def as_batch_schedule(
        self,
        learning_rates: Iterable[tuple[float, float]],
        *,
        max_batch_size: int | None = None,
        multiple_of: int | None = None,
        rule: str = "linear",
    ) -> BatchSchedule:
        """Turn a decaying learning rate into a growing batch (Smith et al. 2017).

        Args:
            learning_rates: pairs (epoch at which it begins, learning rate).
            max_batch_size: what memory allows; N/10 caps the batch in any case, and what the batch
                cannot take is left to the learning rate.
            multiple_of: batch sizes are multiples of this; the learning rate takes the rest.
            rule: as in :meth:`scaled_to`.

        >>> import noisescale as ns
        >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000)
        >>> recipe.as_batch_schedule([(0, 0.1), (9, 0.02)]).stages[1].batch_size
        1280
        """
        if self.n_train is None:
            raise InputError("a schedule by epochs needs n_train, and this recipe's is not known.")
        return batch_schedule(
            learning_rates,
            batch_size=self.batch_size,
            n_train=self.n_train,
            gain=self.effective_learning_rate / self.learning_rate,
            max_batch_size=max_batch_size,
            multiple_of=multiple_of,
            rule=rule,
            unit=self.unit,
            sequence_length=self.sequence_length,
        )

    def _moved(self, target: "Recipe", via: str, rule: str, step: int) -> "Recipe":
        """``target`` with ``via`` moved so that it keeps what this recipe's ``rule`` keeps."""
        kept = self.kept(rule)
        if rule == "exact" and target.batch_size == target.n_train and via != "batch_size":
            raise InputError(
                f"a batch of all {target.n_train} examples has no noise, so the exact rule cannot "
                "keep any: choose a smaller batch_size."
            )
        if kept == 0:
            raise InputError(
                f"this recipe's batch is all of its {self.n_train} examples: it has no noise for "
                "the exact rule to keep."
            )
        if via == "batch_size":
            return self._with_batch_size(target, kept, rule, step)
        L = loudness(target.batch_size, target.n_train or 1, rule) * (1 - target.dampening)
        if via == "learning_rate":
            learning_rate = kept * (1 - target.momentum) / L
            return replace(target, learning_rate=learning_rate, notes=ADVICE)
        momentum = 1 - target.learning_rate * L / kept
        if -1e-12 < momentum < 0:  # rounding, on the way back to none
            momentum = 0.0
        if momentum < 0:
            raise InputError(
                f"keeping the noise scale by momentum would need a momentum of {momentum:.3g}, "
                "below 0: lower the learning_rate as well, or choose via='learning_rate'."
            )
        return replace(target, momentum=momentum, notes=ADVICE)

    def _with_batch_size(self, target: "Recipe", kept: float, rule: str, step: int) -> "Recipe":
        most = target.n_train
        wanted = batch_size_keeping(kept, target.effective_learning_rate, most or 1, rule)
        size = step * round(wanted / step)
        if size < 1 or (most is not None and size > most):
            raise InputError(
                f"keeping the noise scale would need a batch_size of {wanted:.3g}, outside 1 to "
                f"{most}: change less, or let another quantity move."
            )
        moved = replace(target, batch_size=size, notes=ADVICE)
        off = moved.kept(rule) / kept - 1
        if abs(off) < 1e-12:
            return moved
        rounding = (
            f"rounding the batch size from {wanted:.5g} to {size} makes the noise scale "
            f"{abs(off):.2g} of itself {'larger' if off > 0 else 'smaller'}"
        )
        return replace(moved, notes=(rounding, *moved.notes))

    def _warming_up(self, scaled: "Recipe") -> "Recipe":
        """``scaled`` with the tuned recipe's warm-up: rounding and its least do not add up."""
        tuned = self._tuned or self
        batches = (tuned.batch_size, scaled.batch_size)
        steps = kept_warmup(tuned.warmup_steps, batches, 1 / (1 - scaled.momentum))
        warmed_up = replace(scaled, warmup_steps=steps)
        object.__setattr__(warmed_up, "_tuned", tuned)
        return warmed_up

    def to_dict(self) -> dict[str, Any]:
        """The quantities, what follows from them, and the notes; None for what is not known."""
        interval = self.batch_size_interval
        return {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "n_train": self.n_train,
            "momentum": self.momentum,
            "dampening": self.dampening,
            "nesterov": self.nesterov,
            **self._shared(),
            "noise_scale": None if self.n_train is None else self.noise_scale,
            "effective_learning_rate": self.effective_learning_rate,
            "steps_per_epoch": None if self.n_train is None else self.steps_per_epoch,
            "steps": None if self.epochs is None else self.steps,
            "batch_size_interval": None
            if interval is None
            else [end if math.isfinite(end) else None for end in interval],
            "branch": self.branch,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        dampening = "" if self.dampening == 0 else f", dampening={self.dampening:.6g}"
        nesterov = ", nesterov=True" if self.nesterov else ""
        return (
            f"Recipe(learning_rate={self.learning_rate:.6g}, batch_size={self.batch_size}, "
            f"n_train={self.n_train}, momentum={self.momentum:.6g}{dampening}{nesterov}"
            f"{self._shown()})"
        )


def _partner(changes: dict[str, Any]) -> str:
    """What moves, if the user does not choose."""
    if "batch_size" not in changes:
        return "batch_size"
    free = [name for name in ("learning_rate", "momentum") if name not in changes]
    if not free:
        raise InputError(
            f"with {' and '.join(changes)} all set there is nothing left to move: leave one out."
        )
    return free[0]
