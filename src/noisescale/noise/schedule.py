"""Growing the batch instead of shrinking the learning rate (Smith et al. 2017).

A decaying learning rate epsilon_t leaves kept_t = epsilon_t L(B)/(1 - m), with L(B) = N/B or
N/B - 1. Where the batch may grow it has that noise at the highest rate so far; beyond a cap the
learning rate takes the rest, epsilon = kept_t (1 - m)/L(cap).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from noisescale.checks import check_choice, check_learning_rate, check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.scale import RULES, SMALL_BATCH, batch_size_keeping, loudness, noise_scale


@dataclass(frozen=True)
class Stage:
    """From ``epoch`` on, train with this learning rate and batch size."""

    epoch: float
    learning_rate: float
    batch_size: int
    noise_scale: float


@dataclass(frozen=True)
class BatchSchedule:
    """Stages in order, and what to know about them.

    >>> import noisescale as ns
    >>> recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000)
    >>> schedule = recipe.as_batch_schedule([(0, 0.1), (60, 0.02)])
    >>> [(stage.epoch, stage.batch_size) for stage in schedule.stages]
    [(0.0, 256), (60.0, 1280)]
    """

    stages: tuple[Stage, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The stages and notes by name."""
        return asdict(self)


def batch_schedule(
    learning_rates: Iterable[tuple[float, float]],
    *,
    batch_size: int,
    n_train: int,
    momentum: float,
    max_batch_size: int | None,
    rule: str,
) -> BatchSchedule:
    """See :meth:`noisescale.Recipe.as_batch_schedule`."""
    check_choice("rule", rule, RULES)
    pairs = _check_pairs(learning_rates)
    B, N, m = batch_size, n_train, momentum
    cap, limit = _cap(B, N, max_batch_size)
    stages, highest, capped = [], 0.0, None
    for epoch, learning_rate in pairs:
        # Warm-up stays with the learning rate: the batch grows only from the highest rate on.
        highest = max(highest, learning_rate)
        kept = learning_rate / (1 - m) * loudness(B, N, rule)
        wanted = batch_size_keeping(kept, highest / (1 - m), N, rule)
        size = max(B, min(round(wanted), cap))
        if capped is None and wanted > cap + 0.5:
            capped = epoch
        rate = learning_rate if size == B else kept * (1 - m) / loudness(size, N, rule)
        stages.append(Stage(epoch, rate, size, noise_scale(rate, size, N, m)))
    notes = []
    if capped is not None:
        notes.append(
            f"from epoch {capped:g} on the batch is held at {limit}, and the learning rate falls"
        )
    if B > SMALL_BATCH * N:
        notes.append(f"the batch of {B} is more than a tenth of the training set from the start")
    return BatchSchedule(tuple(stages), tuple(notes))


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
