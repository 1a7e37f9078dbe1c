"""A PyTorch optimiser read as a recipe, by what its parameter groups say; PyTorch is not imported.

SGD:    A <- m A + (1 - d) grad,  w <- w - epsilon A      d: dampening; Nesterov's form alike
Adam:   an L2 penalty in the gradient;    AdamW: weight decay that is decoupled
"""

from typing import Any

from noisescale.checks import check_whole, shown
from noisescale.errors import InputError
from noisescale.noise.adam import AdamRecipe
from noisescale.noise.devices import (
    check_sequence_length,
    check_units,
    running_world_size,
    whole_batch,
)
from noisescale.noise.recipe import Recipe

_KNOWN = ("SGD", "AdamW", "Adam")  # AdamW first: it is a kind of Adam
_RATES = ("lr", "momentum", "dampening", "nesterov", "betas", "eps", "amsgrad")


def read_optimizer(
    optimizer: Any,
    *,
    group: int | None,
    batch_size: int | None,
    per_device_batch_size: int | None,
    gradient_accumulation_steps: int | None,
    world_size: int | None,
    unit: str,
    sequence_length: int | None,
    run: dict[str, Any],
) -> Recipe | AdamRecipe:
    """See :meth:`noisescale.Recipe.from_optimizer`."""
    optimizer, kind = _unwrapped(optimizer)
    options, notes = _options(optimizer, group)
    size = _batch_size(
        batch_size,
        unit,
        sequence_length,
        per_device_batch_size,
        gradient_accumulation_steps,
        world_size,
    )
    if per_device_batch_size is None and (world := running_world_size()) > 1:
        notes.append(
            f"{world} processes train together here: batch_size {size} is taken for that of one "
            "update over all of them"
        )
    common: dict[str, Any] = {
        "learning_rate": options["lr"],
        "batch_size": size,
        "unit": unit,
        "sequence_length": sequence_length,
        "weight_decay": options.get("weight_decay", 0.0),
        **run,
    }
    if kind == "SGD":
        return Recipe(
            **common,
            momentum=options.get("momentum", 0.0),
            dampening=options.get("dampening", 0.0),
            nesterov=bool(options.get("nesterov", False)),
            notes=tuple(notes),
        )
    if options.get("amsgrad"):
        notes.append("amsgrad keeps the largest second moment, of which the rules say nothing")
    beta1, beta2 = options["betas"]
    return AdamRecipe(
        **common,
        betas=(float(beta1), float(beta2)),
        eps=options["eps"],
        decoupled=bool(options.get("decoupled_weight_decay", kind == "AdamW")),
        notes=tuple(notes),
    )


def _batch_size(
    batch_size: int | None,
    unit: str,
    sequence_length: int | None,
    per_device_batch_size: int | None,
    gradient_accumulation_steps: int | None,
    world_size: int | None,
) -> int:
    """Of one update in ``unit``; what a device holds is in examples, as loaders count."""
    if batch_size is not None:
        check_units(batch_size, None, unit, sequence_length)
    per_example = 1
    if unit == "tokens" and per_device_batch_size is not None:
        per_example = check_sequence_length(sequence_length)
    return per_example * whole_batch(
        None if batch_size is None else batch_size // per_example,
        per_device_batch_size=per_device_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps,
        world_size=world_size,
    )


def _unwrapped(optimizer: Any) -> tuple[Any, str]:
    """The optimiser inside what Accelerate and Lightning put around it, and which it is."""
    for _ in range(3):
        for cls in type(optimizer).__mro__:
            if cls.__name__ in _KNOWN and cls.__module__.startswith("torch.optim"):
                return optimizer, cls.__name__
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            break
        optimizer = inner
    name = type(optimizer).__name__
    if not hasattr(optimizer, "param_groups"):
        raise InputError(
            f"optimizer must be one of PyTorch's, such as torch.optim.SGD(...), got {name}."
        )
    raise InputError(
        f"rules are known for PyTorch's SGD, Adam and AdamW, and not for {name}: make a Recipe or "
        "an AdamRecipe by hand if it is one of them under another name."
    )


def _options(optimizer: Any, group: int | None) -> tuple[dict[str, Any], list[str]]:
    """The options of one parameter group, or of all that agree, as plain numbers."""
    groups = [_plain(one) for one in optimizer.param_groups]
    notes = []
    if group is not None:
        k = check_whole("group", group, at_least=0)
        if k >= len(groups):
            raise InputError(f"there are {len(groups)} parameter groups, and none has number {k}.")
        groups = [groups[k]]
    first = groups[0]
    for name in _RATES:
        values = [one.get(name) for one in groups]
        if any(value != values[0] for value in values):
            raise InputError(
                f"the parameter groups differ in {name} ({', '.join(map(shown, values[:4]))}): "
                "choose one with group=0, and scale each."
            )
    decays = sorted({float(one.get("weight_decay", 0.0)) for one in groups})
    if len(decays) > 1:
        first = first | {"weight_decay": decays[-1]}
        notes.append(
            f"the parameter groups have weight decays of {', '.join(f'{d:g}' for d in decays)}: "
            "the largest is shown, the others go with it"
        )
    if any("initial_lr" in one for one in optimizer.param_groups):
        notes.append(
            "a scheduler changes the learning rate: it is read as it was before, initial_lr"
        )
    return first, notes


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """Without the parameters, and with the learning rate that a scheduler began with."""
    options = {name: value for name, value in group.items() if name != "params"}
    options["lr"] = float(group.get("initial_lr", group["lr"]))  # may be a tensor
    return options
