"""The devices of ``noisescale recipe``: those of the tuned run, and those of the new one."""

from dataclasses import dataclass

from noisescale.errors import InputError
from noisescale.noise.batch_recipe import BatchRecipe
from noisescale.noise.devices import (
    Devices,
    check_units,
    layout,
    whole_batch,
)

_ONE_DEVICE = (
    "the lines below put the whole batch on one device at once: --to-world-size and "
    "--max-per-device-batch-size share it out"
)


@dataclass(frozen=True)
class Parts:
    """What was said of the devices; None where nothing was."""

    per_device: int | None
    accumulation: int | None
    world_size: int | None

    @property
    def named(self) -> bool:
        """Whether anything was said."""
        return (self.per_device, self.accumulation, self.world_size) != (None, None, None)


def tuned_devices(
    batch_size: int | None, parts: Parts, unit: str, sequence_length: int | None
) -> tuple[int, Devices | None]:
    """The batch of one update, in its unit, and how it was shared out; None if nothing says so."""
    if batch_size is not None:
        check_units(batch_size, None, unit, sequence_length)
    elif parts.per_device is None:
        raise InputError("give --batch-size of one update, or --per-device-batch-size.")
    per_example = 1 if unit == "examples" or sequence_length is None else sequence_length
    examples = None if batch_size is None else batch_size // per_example
    if parts.per_device is not None:
        world_size = 1 if parts.world_size is None else parts.world_size
        size = whole_batch(
            examples,
            per_device_batch_size=parts.per_device,
            gradient_accumulation_steps=parts.accumulation,
            world_size=world_size,
        )
        made = layout(size, world_size=world_size, per_device_batch_size=parts.per_device)
        return per_example * size, made
    assert examples is not None
    assert batch_size is not None
    if not parts.named:
        return batch_size, None
    return batch_size, layout(
        examples,
        world_size=1 if parts.world_size is None else parts.world_size,
        gradient_accumulation_steps=parts.accumulation,
    )


@dataclass(frozen=True)
class NewDevices:
    """How the new run shares its batch out.

    Attributes:
        tuned: the devices of the tuned run, if they are known.
        asked: what was said of the new ones; the rest is as it was.
        most: what a device holds, if that was said.
    """

    tuned: Devices | None
    asked: Parts
    most: int | None

    @property
    def world_size(self) -> int:
        """Devices of the new run."""
        if self.asked.world_size is not None:
            return self.asked.world_size
        return 1 if self.tuned is None else self.tuned.world_size

    def in_full(self) -> Devices | None:
        """What was asked for, and as it was where nothing was; None if that is not known."""
        per_device, accumulation = self.asked.per_device, self.asked.accumulation
        if self.tuned is not None:
            per_device = self.tuned.per_device_batch_size if per_device is None else per_device
            if accumulation is None:
                accumulation = self.tuned.gradient_accumulation_steps
        if per_device is None:
            return None
        return Devices(
            per_device_batch_size=per_device,
            gradient_accumulation_steps=1 if accumulation is None else accumulation,
            world_size=self.world_size,
        )

    def batch_size(self) -> int:
        """Of one update, in examples, if the devices decide it."""
        devices = self.in_full()
        if devices is None:
            raise InputError(
                "to change devices say what each holds: --per-device-batch-size, or --world-size "
                "beside --batch-size, or how large the new batch is: --to-batch-size."
            )
        return devices.batch_size

    def layout(self, recipe: BatchRecipe) -> Devices:
        """The batch as the lines have it: as it was asked for, or anew with what still fits."""
        devices = self.in_full()
        fits = devices is not None and (
            self.most is None or devices.per_device_batch_size <= self.most
        )
        if devices is not None and fits and devices.batch_size == recipe.examples:
            return devices
        if self.asked.per_device is not None or self.asked.accumulation is not None:
            return layout(
                recipe.examples,
                world_size=self.world_size,
                per_device_batch_size=self.asked.per_device,
                gradient_accumulation_steps=self.asked.accumulation,
                max_per_device_batch_size=self.most,
            )
        return layout(
            recipe.examples,
            world_size=self.world_size,
            max_per_device_batch_size=self._at_most(),
        )

    def in_words(self, name: str, recipe: BatchRecipe, *, pasted: bool) -> list[str]:
        """How the batch of the recipe so named is shared out, if devices were; or why it cannot be.

        ``pasted``: whether lines to paste were asked for, which put it all on one device.
        """
        if self.tuned is None and self.most is None and not self.asked.named:
            return [_ONE_DEVICE] if pasted else []
        try:
            way = self.layout(recipe)
        except InputError as error:
            return [f"{name}: {error}"]
        words = [f"{name}: {recipe.examples} examples an update are {way}"]
        told = (self.asked.per_device, self.asked.accumulation) != (None, None)
        if told or way == self.in_full():
            return words
        most = self._at_most()
        if self.most is None and most is not None and most * self.world_size < recipe.examples:
            words.append(
                f"{name}: a device is given no more than the {most} that it held in the tuned run: "
                "--max-per-device-batch-size allows more"
            )
        return words

    def _at_most(self) -> int | None:
        """What a device holds: as was said, or what it held in the tuned run."""
        if self.most is not None or self.asked.per_device is not None:
            return self.most
        return None if self.tuned is None else self.tuned.per_device_batch_size
