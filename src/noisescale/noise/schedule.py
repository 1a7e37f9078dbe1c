"""Growing the batch instead of shrinking the learning rate (Smith et al. 2017).

A decaying learning rate epsilon_t leaves kept_t = epsilon_t L(B)/(1 - m), with L(B) = N/B or
N/B - 1. Where the batch may grow it has that noise at the highest rate so far; beyond a cap the
learning rate takes the rest, epsilon = kept_t (1 - m)/L(cap).
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from noisescale.checks import check_choice, check_learning_rate, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.devices import batch_step
from noisescale.noise.scale import RULES, SMALL_BATCH, batch_size_keeping, loudness
from noisescale.notebook import Displayed


@dataclass(frozen=True)
class Stage:
    """From ``epoch`` on, train with this learning rate and batch size.

    ``start`` counts the examples (or tokens) seen before it; what is not known is NaN, such as the
    noise scale of a schedule from a history, which may be of any optimizer.
    """

    epoch: float
    learning_rate: float
    batch_size: int
    noise_scale: float
    start: float = math.nan


@dataclass(frozen=True, repr=False)
class BatchSchedule(Displayed):
    """Stages in order, and what to know about them.

    >>> import noisescale as ns
    >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000)
    >>> schedule = recipe.as_batch_schedule([(0, 0.1), (60, 0.02)])
    >>> [(stage.epoch, stage.batch_size) for stage in schedule.stages]
    [(0.0, 256), (60.0, 1280)]
    >>> schedule.to("lightning")
    'GradientAccumulationScheduler(scheduling={0: 1, 60: 5})'
    """

    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()
    unit: str = "examples"
    sequence_length: int | None = None

    @classmethod
    def from_history(
        cls,
        history: Any,
        *,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        n_train: int | None = None,
        multiple_of: int | None = None,
        max_batch_size: int | None = None,
        unit: str = "examples",
        sequence_length: int | None = None,
    ) -> "BatchSchedule":
        """A batch that follows a measured critical batch size, and never shrinks.

        Args:
            history: a run that :func:`noisescale.watch` watched, or what it saved; or a frame, or
                the path of a CSV file, with ``critical_batch_size`` and either ``examples`` seen
                (or ``tokens``, if that is the unit), or ``step``.
            batch_size: of the run that was measured, unless a column says so; steps become
                examples by it.
            learning_rate, n_train: if known, to be in the stages; the learning rate stays.
            multiple_of: batch sizes are multiples of this, instead of powers of two (in tokens,
                of powers of two of sequences).
            max_batch_size: what memory allows; n_train caps the batch in any case.
            unit, sequence_length: as in :class:`noisescale.Recipe`.

        >>> import pandas as pd
        >>> noise = {"step": [0, 100, 200], "critical_batch_size": [70.0, 300.0, 600.0]}
        >>> schedule = BatchSchedule.from_history(pd.DataFrame(noise), batch_size=64)
        >>> [(stage.start, stage.batch_size) for stage in schedule.stages]
        [(0.0, 64), (6400.0, 256), (12800.0, 512)]
        """
        from noisescale.noise.schedule_history import schedule_of

        return schedule_of(
            history,
            batch_size=batch_size,
            learning_rate=learning_rate,
            n_train=n_train,
            multiple_of=multiple_of,
            max_batch_size=max_batch_size,
            unit=unit,
            sequence_length=sequence_length,
        )

    def to(self, trainer: str, *, sequence_length: int | None = None) -> Any:
        """The schedule as another trainer takes it; learning rates are in ``"list"`` alone.

        Args:
            trainer: ``"megatron"`` (``--step-batch-size-schedule``), ``"nemo"``
                (``rampup_batch_size``), ``"olmo"`` (``BatchSizeSchedulerCallback``, which scales
                Adam's learning rate by the square root itself), ``"lightning"``
                (``GradientAccumulationScheduler``), each a line of text; or ``"list"``.
            sequence_length: tokens in an example, for those that count tokens.
        """
        from noisescale.noise.schedule_formats import written

        return written(self, trainer, sequence_length)

    def to_dict(self) -> dict[str, Any]:
        """The stages and notes by name; None for what is not known."""
        content = asdict(self)
        content["stages"] = [
            {name: None if value != value else value for name, value in stage.items()}
            for stage in content["stages"]
        ]
        return content

    def __repr__(self) -> str:
        lines = []
        for stage in self.stages:
            if stage.epoch == stage.epoch:
                when = f"epoch {stage.epoch:g}"
            else:
                when = f"{stage.start:,.0f} {self.unit}"
            rate = (
                ""
                if stage.learning_rate != stage.learning_rate
                else (f", learning rate {stage.learning_rate:.4g}")
            )
            lines.append(f"from {when}: B = {stage.batch_size}{rate}")
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])


def batch_schedule(
    learning_rates: Iterable[tuple[float, float]],
    *,
    batch_size: int,
    n_train: int,
    gain: float,
    max_batch_size: int | None,
    multiple_of: int | None,
    rule: str,
    unit: str,
    sequence_length: int | None,
) -> BatchSchedule:
    """See :meth:`noisescale.Recipe.as_batch_schedule`; ``gain`` is (1 - d)/(1 - m)."""
    check_choice("rule", rule, RULES)
    pairs = _check_pairs(learning_rates)
    B, N = batch_size, n_train
    cap, limit = _cap(B, N, max_batch_size)
    step = _step(B, multiple_of, unit, sequence_length)
    stages, highest, capped = [], 0.0, None
    for epoch, learning_rate in pairs:
        # Warm-up stays with the learning rate: the batch grows only from the highest rate on.
        highest = max(highest, learning_rate)
        kept = learning_rate * gain * loudness(B, N, rule)
        wanted = batch_size_keeping(kept, highest * gain, N, rule)
        size = max(B, min(step * round(wanted / step), cap // step * step))
        if capped is None and wanted > cap + 0.5:
            capped = epoch
        rate = learning_rate if size == B else kept / gain / loudness(size, N, rule)
        g = rate * gain * loudness(size, N, "exact")
        stages.append(Stage(epoch, rate, size, g, epoch * N))
    notes = []
    if capped is not None:
        notes.append(
            f"from epoch {capped:g} on the batch is held at {limit}, and the learning rate falls"
        )
    if B > SMALL_BATCH * N:
        notes.append(f"the batch of {B} is more than a tenth of the training set from the start")
    return BatchSchedule(tuple(stages), tuple(notes), unit, sequence_length)


def _step(B: int, multiple_of: int | None, unit: str, sequence_length: int | None) -> int:
    """What batch sizes are multiples of."""
    step = batch_step(multiple_of, unit, sequence_length)
    if B % step:
        raise InputError(
            f"the recipe's own batch size {B} is no multiple of {step}: choose a divisor of it."
        )
    return step


def _cap(B: int, N: int, max_batch_size: int | None) -> tuple[int, str]:
    """The largest batch, and in words what limits it."""
    cap = max(B, int(SMALL_BATCH * N))
    limit = f"a tenth of the training set, {cap}" if cap > B else f"the recipe's own, {B}"
    if max_batch_size is None:
        return cap, limit
    memory = check_whole("max_batch_size", max_batch_size, at_least=1)
    if memory < B:
        raise InputError(
            f"max_batch_size must be at least the recipe's own batch size {B}, got {memory}."
        )
    return (memory, f"max_batch_size, {memory}") if memory < cap else (cap, limit)


def _check_pairs(learning_rates: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    try:
        listed = [(epoch, learning_rate) for epoch, learning_rate in learning_rates]
    except (TypeError, ValueError):
        raise InputError(
            "the schedule must be pairs (epoch, learning rate), such as [(0, 0.1), (30, 0.01)]."
        ) from None
    if not listed:
        raise InputError("the schedule holds no pairs (epoch, learning rate).")
    pairs = [
        (
            check_number("an epoch of the schedule", epoch, "at least 0", lambda v: v >= 0),
            check_learning_rate(learning_rate),
        )
        for epoch, learning_rate in listed
    ]
    epochs = [epoch for epoch, _ in pairs]
    if sorted(set(epochs)) != epochs:
        raise InputError(f"the schedule's epochs must rise, got {epochs}.")
    return pairs
