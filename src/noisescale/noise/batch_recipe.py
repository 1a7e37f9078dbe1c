"""What recipes of every optimiser share: a batch, its unit, the run, and the way into a script."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from noisescale.checks import check_choice, check_learning_rate, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.devices import (
    check_units,
    layout,
    unit_notes,
)
from noisescale.noise.run_length import LENGTHS


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchRecipe:
    """The quantities of a recipe that do not depend on the optimiser.

    See :class:`noisescale.Recipe` and :class:`noisescale.AdamRecipe`.
    """

    learning_rate: float
    batch_size: int
    n_train: int | None = None
    epochs: float | None = None
    weight_decay: float = 0.0
    warmup_steps: int | None = None
    unit: str = "examples"
    sequence_length: int | None = None
    length_in: str = field(default="epochs", compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        batch_size, n_train, sequence_length = check_units(
            self.batch_size, self.n_train, self.unit, self.sequence_length
        )
        check_choice("length_in", self.length_in, LENGTHS)
        checked: dict[str, Any] = {
            "learning_rate": check_learning_rate(self.learning_rate),
            "batch_size": batch_size,
            "n_train": n_train,
            "sequence_length": sequence_length,
            "weight_decay": check_number(
                "weight_decay", self.weight_decay, "at least 0", lambda v: v >= 0
            ),
        }
        if self.epochs is not None:
            checked["epochs"] = check_number("epochs", self.epochs, "above 0", lambda v: v > 0)
            if n_train is None:
                raise InputError(
                    "epochs need n_train: of a stream whose length is not known, leave both out."
                )
        if self.warmup_steps is not None:
            checked["warmup_steps"] = check_whole("warmup_steps", self.warmup_steps, at_least=0)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        notes = [*self.notes, *unit_notes(batch_size, n_train, self.unit, sequence_length)]
        if (self.warmup_steps or 0) >= self.steps:
            notes.append(
                f"a warm-up of {self.warmup_steps} updates leaves nothing of a run of "
                f"{self.steps:.0f}: make it shorter"
            )
        object.__setattr__(self, "notes", tuple(dict.fromkeys(notes)))

    @property
    def steps_per_epoch(self) -> float:
        """N/B; NaN for a stream."""
        return math.nan if self.n_train is None else self.n_train / self.batch_size

    @property
    def steps(self) -> float:
        """Updates in the whole run; NaN if its length is not known."""
        if self.epochs is None:
            return math.nan
        steps = self.steps_per_epoch * self.epochs
        return round(steps) if self.length_in == "steps" else steps

    @property
    def examples(self) -> int:
        """The batch of one update in examples, as data loaders count it."""
        if self.unit == "examples":
            return self.batch_size
        assert self.sequence_length is not None
        return self.batch_size // self.sequence_length

    def to(
        self,
        trainer: str,
        *,
        world_size: int = 1,
        per_device_batch_size: int | None = None,
        gradient_accumulation_steps: int | None = None,
        max_per_device_batch_size: int | None = None,
    ) -> str:
        """The lines of a training script that say this recipe.

        Args:
            trainer: ``"pytorch"``, ``"transformers"`` (``TrainingArguments``) or ``"lightning"``.
            world_size: devices that train together.
            per_device_batch_size, gradient_accumulation_steps: if they are fixed; else the batch is
                shared out with as little accumulation as possible.
            max_per_device_batch_size: what the memory of a device holds, in examples.
        """
        from noisescale.noise.script import lines  # which knows both kinds of recipe

        devices = layout(
            self.examples,
            world_size=world_size,
            per_device_batch_size=per_device_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
            max_per_device_batch_size=max_per_device_batch_size,
        )
        return lines(self, trainer, devices)

    def said(self) -> tuple[str, ...]:
        """The notes that do not follow from the quantities themselves."""
        own = replace(self, notes=()).notes
        return tuple(note for note in self.notes if note not in own)

    def _shared(self) -> dict[str, Any]:
        """The quantities of the run, for ``to_dict``."""
        return {
            "epochs": self.epochs,
            "weight_decay": self.weight_decay,
            "warmup_steps": self.warmup_steps,
            "unit": self.unit,
            "sequence_length": self.sequence_length,
        }

    def _shown(self) -> str:
        """Those of them that are not as usual, for ``repr``."""
        usual = {"epochs": None, "weight_decay": 0.0, "warmup_steps": None, "unit": "examples"}
        usual["sequence_length"] = None
        return "".join(
            f", {name}={value!r}" if isinstance(value, str) else f", {name}={value:.6g}"
            for name, value in self._shared().items()
            if value != usual[name]
        )


def kept_warmup(warmup_steps: int | None, batches: tuple[int, int], memory: float) -> int | None:
    """A warm-up of as many examples with another batch, (before, after).

    Noise and training time are kept per example, so the warm-up is too. It is not made shorter than
    ``memory``, the updates over which the optimiser averages.
    """
    if warmup_steps is None:
        return None
    before, after = batches
    return max(round(warmup_steps * before / after), min(warmup_steps, math.ceil(memory - 1e-9)))
