"""Batch schedules as other trainers write them.

Megatron: ``--step-batch-size-schedule "0:256 250B:512"``, thresholds in tokens, batches in
sequences. NeMo: ``rampup_batch_size=[start, increment, samples]``, equal increments of equal
length. OLMo-core: ``BatchSizeSchedulerCallback``, all in tokens, each batch a multiple of the one
before. Lightning: ``GradientAccumulationScheduler``, factors of the first batch by whole epoch.
"""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError

if TYPE_CHECKING:
    from noisescale.noise.schedule import BatchSchedule, Stage

TRAINERS = ("megatron", "nemo", "olmo", "lightning", "list")
_SUFFIXES = (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3))


def written(schedule: "BatchSchedule", trainer: str, sequence_length: int | None) -> Any:
    """See :meth:`noisescale.BatchSchedule.to`."""
    check_choice("trainer", trainer, TRAINERS)
    if trainer == "list":
        return schedule.to_dict()["stages"]
    stages = _steps(schedule.stages)
    if trainer == "lightning":
        return _lightning(stages)
    if any(stage.start != stage.start for stage in stages):
        raise InputError("this schedule does not say how many examples come before its stages.")
    length = schedule.sequence_length if sequence_length is None else sequence_length
    if length is not None:
        length = check_whole("sequence_length", length, at_least=1)
    if schedule.unit == "tokens":
        assert length is not None
        table = [(round(s.start), s.batch_size // length) for s in stages]
        sequences = [(start // length, size) for start, size in table]
    else:
        sequences = [(round(s.start), s.batch_size) for s in stages]
        table = [(start * (length or 1), size) for start, size in sequences]
    if trainer == "nemo":
        return _nemo(sequences)
    if length is None:
        raise InputError(f"{trainer} counts tokens: give sequence_length, those in one example.")
    return _megatron(table) if trainer == "megatron" else _olmo(table, length)


def _steps(stages: "tuple[Stage, ...]") -> "list[Stage]":
    """The stages at which the batch changes."""
    kept = [stages[0]]
    kept += [new for old, new in pairwise(stages) if new.batch_size != old.batch_size]
    return kept


def _megatron(table: list[tuple[int, int]]) -> str:
    steps = " ".join(f"{_short(tokens)}:{size}" for tokens, size in table)
    return f'--step-batch-size-schedule "{steps}"'


def _short(tokens: int) -> str:
    for letter, factor in _SUFFIXES:
        if tokens and tokens % factor == 0:
            return f"{tokens // factor}{letter}"
    return str(tokens)


def _nemo(sequences: list[tuple[int, int]]) -> str:
    if len(sequences) < 2:
        raise InputError("this schedule's batch never grows: NeMo needs no rampup_batch_size.")
    starts, sizes = zip(*sequences, strict=True)
    increments = {b - a for a, b in pairwise(sizes)}
    lengths = [b - a for a, b in pairwise(starts)]
    if len(increments) > 1 or max(lengths) - min(lengths) > 1:
        raise InputError(
            "NeMo's rampup_batch_size grows by equal increments after equal numbers of samples, "
            f"and this schedule by {sorted(increments)} after {lengths}: use 'megatron'."
        )
    return f"rampup_batch_size=[{sizes[0]}, {increments.pop()}, {starts[-1]}]"


def _olmo(table: list[tuple[int, int]], length: int) -> str:
    sizes = [size * length for _, size in table]
    for old, new in pairwise(sizes):
        if max(old, new) % min(old, new):
            raise InputError(
                f"OLMo-core grows the batch by whole factors, and {new} tokens is none of {old}: "
                "make the schedule with powers of two."
            )
    starts = ", ".join(f"Duration.tokens({tokens})" for tokens, _ in table)
    return f"BatchSizeSchedulerCallback(batch_sizes={sizes}, schedule=[{starts}])"


def _lightning(stages: "list[Stage]") -> str:
    first = stages[0].batch_size
    factors = {}
    for stage in stages:
        if not stage.epoch.is_integer():  # nor is NaN, of a schedule without epochs
            raise InputError(
                "Lightning accumulates by whole epochs, and a stage begins at epoch "
                f"{stage.epoch:g}: use 'list' in a callback of your own."
            )
        if stage.batch_size % first:
            raise InputError(
                f"Lightning accumulates whole batches, and {stage.batch_size} is no multiple of "
                f"{first}: make the schedule with multiple_of={first}."
            )
        factors[int(stage.epoch)] = stage.batch_size // first
    return f"GradientAccumulationScheduler(scheduling={factors})"
