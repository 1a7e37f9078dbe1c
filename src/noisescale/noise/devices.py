"""The batch of one update, shared out: devices, accumulation, examples or tokens.

    B = per_device_batch_size * gradient_accumulation_steps * world_size

is what every rule of this package speaks of: the examples whose gradients make one update. A batch
in tokens is a whole number of sequences. Nothing here needs JAX or PyTorch.
"""

import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError

UNITS = ("examples", "tokens")
_MANY_TOKENS = 10**8  # in one update: nobody trains with as many
_ALL_TOKENS = 10**14  # in a training set: nobody has as many
_FEW_UPDATES = 10  # in an epoch: a batch of more than a tenth of the data
_PARTS = ("per_device_batch_size", "gradient_accumulation_steps", "world_size")


@dataclass(frozen=True, kw_only=True)
class Devices:
    """How the batch of one update is shared out.

    >>> Devices(per_device_batch_size=8, gradient_accumulation_steps=4, world_size=2).batch_size
    64
    """

    per_device_batch_size: int
    gradient_accumulation_steps: int = 1
    world_size: int = 1

    def __post_init__(self) -> None:
        for name in _PARTS:
            object.__setattr__(self, name, check_whole(name, getattr(self, name), at_least=1))

    @property
    def batch_size(self) -> int:
        """Of one update, in examples."""
        return self.per_device_batch_size * self.gradient_accumulation_steps * self.world_size

    def to_dict(self) -> dict[str, Any]:
        """The three by name."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.per_device_batch_size} a device x {self.gradient_accumulation_steps} "
            f"accumulated x {number_of_devices(self.world_size)}"
        )


def number_of_devices(world_size: int) -> str:
    """In words."""
    return f"{world_size} device{'s' if world_size != 1 else ''}"


def layout(
    batch_size: int,
    *,
    world_size: int = 1,
    per_device_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    max_per_device_batch_size: int | None = None,
) -> Devices:
    """The way to make ``batch_size`` examples with what is given, and least accumulation.

    A batch that the devices do not divide is refused, with those nearby that they do.

    >>> str(layout(24, world_size=4, max_per_device_batch_size=4))
    '3 a device x 2 accumulated x 4 devices'
    """
    batch_size = check_whole("batch_size", batch_size, at_least=1)
    world_size = check_whole("world_size", world_size, at_least=1)
    most = _most(max_per_device_batch_size)
    given = {
        "per_device_batch_size": per_device_batch_size,
        "gradient_accumulation_steps": gradient_accumulation_steps,
    }
    fixed = {n: check_whole(n, v, at_least=1) for n, v in given.items() if v is not None}
    if not fixed:
        share = _share(batch_size, world_size, number_of_devices(world_size))
        largest = min(most or share, share)
        size = next(size for size in range(largest, 0, -1) if share % size == 0)
        return Devices(
            per_device_batch_size=size,
            gradient_accumulation_steps=share // size,
            world_size=world_size,
        )
    if len(fixed) == 2:
        whole = Devices(**fixed, world_size=world_size)
        if whole.batch_size != batch_size:
            raise InputError(_mismatch(batch_size, whole))
        return _within(whole, most)
    ((name, value),) = fixed.items()
    words = f"{value} {'a device' if name == _PARTS[0] else 'accumulated'} on "
    rest = _share(batch_size, world_size * value, words + number_of_devices(world_size))
    (other,) = (part for part in _PARTS[:2] if part != name)
    return _within(Devices(**fixed, **{other: rest}, world_size=world_size), most)


def whole_batch(
    batch_size: int | None,
    *,
    per_device_batch_size: int | None = None,
    gradient_accumulation_steps: int | None = None,
    world_size: int | None = None,
) -> int:
    """The batch of one update, from whichever of the four a script knows; they must agree."""
    if per_device_batch_size is None:
        if batch_size is None:
            raise InputError(
                "say how large the batch is: batch_size of one update over all devices, or "
                "per_device_batch_size with gradient_accumulation_steps and world_size."
            )
        if gradient_accumulation_steps is not None or world_size is not None:
            part = "gradient_accumulation_steps" if world_size is None else "world_size"
            raise InputError(
                f"{part} goes with per_device_batch_size: batch_size is that of one whole update."
            )
        return check_whole("batch_size", batch_size, at_least=1)
    devices = Devices(
        per_device_batch_size=per_device_batch_size,
        gradient_accumulation_steps=1
        if gradient_accumulation_steps is None
        else gradient_accumulation_steps,
        world_size=running_world_size() if world_size is None else world_size,
    )
    if batch_size is not None and batch_size != devices.batch_size:
        raise InputError(_mismatch(batch_size, devices))
    return devices.batch_size


def running_world_size() -> int:
    """How many processes train together here, by torch.distributed or its launcher; else 1."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    told = os.environ.get("WORLD_SIZE", "1")  # what torchrun and accelerate set
    return int(told) if told.isdigit() and int(told) > 0 else 1


def check_units(
    batch_size: int, n_train: int | None, unit: str, sequence_length: int | None
) -> tuple[int, int | None, int | None]:
    """Batch, training set and sequence in one unit, as far as that can be seen from numbers."""
    check_choice("unit", unit, UNITS)
    batch_size = check_whole("batch_size", batch_size, at_least=1)
    if n_train is not None:
        n_train = check_whole("n_train", n_train, at_least=1)
        if batch_size > n_train:
            raise InputError(
                f"batch_size must be at most {n_train}, the number of training {unit}, got "
                f"{batch_size}: are both in the same unit, and is n_train not a number of batches?"
            )
    if sequence_length is not None:
        sequence_length = check_whole("sequence_length", sequence_length, at_least=1)
    if unit == "tokens":
        _check_tokens(batch_size, sequence_length)
    return batch_size, n_train, sequence_length


def batch_step(multiple_of: int | None, unit: str, sequence_length: int | None) -> int:
    """What batch sizes are whole numbers of: examples, the tokens of a sequence, or more."""
    least = 1 if unit == "examples" or sequence_length is None else sequence_length
    if multiple_of is None:
        return least
    step = check_whole("multiple_of", multiple_of, at_least=1)
    if step % least:
        raise InputError(
            f"multiple_of counts tokens, as the batch does: {step} is no whole number of sequences "
            f"of {least}."
        )
    return step


def whole_steps(batch_size: float, step: int, most: int) -> int:
    """The nearest whole number of steps, at least one, within ``most``."""
    if step > most:
        raise InputError(f"a multiple of {step} is asked for, and there are {most} to train on.")
    return step * min(max(1, round(batch_size / step)), most // step)


def unit_notes(
    batch_size: int, n_train: int | None, unit: str, sequence_length: int | None
) -> list[str]:
    """A word where tokens seem to have been given as examples, or sequences as tokens."""
    if sequence_length is None:
        return []
    notes = []
    if unit == "tokens":
        if n_train is not None and sequence_length > 1 and n_train < _FEW_UPDATES * batch_size:
            notes.append(
                f"an epoch of {n_train} tokens is {n_train / batch_size:.3g} updates: is n_train "
                f"in tokens? If it counts sequences, it is {n_train * sequence_length}"
            )
        return notes
    for what, count, most, when in (
        ("a batch", batch_size, _MANY_TOKENS, " an update"),
        ("a training set", n_train or 0, _ALL_TOKENS, ""),
    ):
        if (tokens := count * sequence_length) > most:
            notes.append(
                f"{what} of {count} examples of {sequence_length} tokens is {tokens:.2g} "
                f"tokens{when}: if {count} counts tokens, say unit='tokens'"
            )
    return notes


def check_sequence_length(sequence_length: int | None) -> int:
    """The tokens of one example, of a batch in tokens."""
    if sequence_length is None:
        raise InputError(
            "a batch in tokens needs sequence_length, the tokens of one example: scripts count "
            "examples."
        )
    return check_whole("sequence_length", sequence_length, at_least=1)


def _check_tokens(batch_size: int, sequence_length: int | None) -> None:
    sequence_length = check_sequence_length(sequence_length)
    if batch_size < sequence_length:
        raise InputError(
            f"a batch of {batch_size} tokens is less than one sequence of {sequence_length}: if "
            f"{batch_size} counts sequences, say unit='examples'."
        )
    if batch_size % sequence_length:
        low = batch_size // sequence_length * sequence_length
        raise InputError(
            f"a batch of {batch_size} tokens is no whole number of sequences of {sequence_length}: "
            f"{low} and {low + sequence_length} are."
        )


def _share(batch_size: int, parts: int, words: str) -> int:
    """What each of ``parts`` takes."""
    if batch_size % parts == 0:
        return batch_size // parts
    low = batch_size // parts * parts
    each = batch_size // parts
    near = f"{low} = {each} x {parts} and {low + parts} = {each + 1} x {parts} can"
    if not low:
        near = (
            f"the smallest that can is {parts}; if {batch_size} is what one device holds, say "
            "per_device_batch_size"
        )
    raise InputError(f"a batch of {batch_size} cannot be made of {words}: {near}.")


def _most(max_per_device_batch_size: int | None) -> int | None:
    if max_per_device_batch_size is None:
        return None
    return check_whole("max_per_device_batch_size", max_per_device_batch_size, at_least=1)


def _within(devices: Devices, most: int | None) -> Devices:
    """The same, if a device can hold its part."""
    if most is not None and devices.per_device_batch_size > most:
        raise InputError(
            f"{devices} is more on a device than the max_per_device_batch_size of {most}."
        )
    return devices


def _mismatch(batch_size: int, devices: Devices) -> str:
    return (
        f"batch_size {batch_size} is not {devices} = {devices.batch_size}: batch_size is that of "
        "one update, over all devices."
    )
