"""A PyTorch optimiser read as a recipe, by what its parameter groups say; PyTorch is not imported.

SGD:    A <- m A + (1 - d) grad,  w <- w - epsilon A      d: dampening; Nesterov's form alike
Adam:   an L2 penalty in the gradient;    AdamW: weight decay that is decoupled

These classes themselves are known, inside Accelerate's and Lightning's wrappers too: a subclass or
another wrapper may do anything between the gradient and the update.

The learning rate is the highest of the run, and what a scheduler leaves in the groups tells it:

- no trace: what stands there now. ReduceLROnPlateau leaves none, nor does a loop of one's own, but
  then it may differ from what the optimizer was made with, and that is refused.
- ``initial_lr``: that, for warm-ups and decays, which multiply it by 1 at the most: PyTorch's
  LinearLR, ConstantLR, StepLR, MultiStepLR, ExponentialLR, PolynomialLR, CosineAnnealingLR and
  CosineAnnealingWarmRestarts, these in a SequentialLR or ChainedScheduler, and the LambdaLR of
  transformers' schedules. Refused where the learning rate is seen to be above it.
- ``max_lr``, of OneCycleLR: that.
- a momentum or beta1 that is cycled, as by OneCycleLR and CyclicLR, and SWALR: refused.
"""

import inspect
import math
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

_KNOWN = ("SGD", "Adam", "AdamW")
_WRAPPERS = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning")
_BY_HAND = "make the Recipe or AdamRecipe by hand"
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
    if options.get("maximize"):
        raise InputError(
            "the optimizer has maximize=True, and the lines of a recipe minimize: minimize the "
            "negative, with maximize=False."
        )
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


def known_class(optimizer: Any) -> tuple[Any, str | None]:
    """The optimiser inside what Accelerate and Lightning put around it, and whose step it makes.

    That is the name of one of PyTorch's classes, of which the optimiser is or whose step it
    inherits; None for all that are not known here.
    """
    while type(optimizer).__module__.partition(".")[0] in _WRAPPERS:
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            break
        optimizer = inner
    kinds: list[Any] = list(type(optimizer).__mro__)
    for kind in kinds:
        if kind.__module__.startswith("torch.optim."):
            same = inspect.unwrap(kinds[0].step) is inspect.unwrap(kind.step)
            return optimizer, kind.__name__ if same and kind.__name__ in _KNOWN else None
    return optimizer, None


def _unwrapped(optimizer: Any) -> tuple[Any, str]:
    """The optimiser inside of wrappers, and which of the known classes it is itself."""
    optimizer, known = known_class(optimizer)
    kind = type(optimizer)
    if known == kind.__name__ and kind.__module__.startswith("torch.optim."):
        return optimizer, known
    if not hasattr(optimizer, "param_groups"):
        raise InputError(
            f"optimizer must be one of PyTorch's, such as torch.optim.SGD(...), got "
            f"{kind.__name__}."
        )
    raise InputError(
        f"rules are known for PyTorch's SGD, Adam and AdamW, and not for {kind.__name__}: make a "
        "Recipe or an AdamRecipe by hand if it is one of them under another name."
    )


def _options(optimizer: Any, group: int | None) -> tuple[dict[str, Any], list[str]]:
    """The options of one parameter group, or of all that agree, as plain numbers."""
    groups = list(optimizer.param_groups)
    if group is not None:
        k = check_whole("group", group, at_least=0)
        if k >= len(groups):
            raise InputError(f"there are {len(groups)} parameter groups, and none has number {k}.")
        groups = [groups[k]]
    groups = [_plain(one) for one in groups]
    notes: list[str] = []
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
    if "max_lr" in first:
        notes.append(f"OneCycleLR changes the learning rate: it is read as max_lr, {first['lr']:g}")
        return first, notes
    made = float(optimizer.defaults["lr"])
    if group is None and not math.isclose(made, first["lr"], rel_tol=1e-6):
        raise InputError(
            f"the optimizer was made with a learning rate of {made:g}, and its groups have "
            f"{first['lr']:g}: a schedule may have changed it (CyclicLR, ReduceLROnPlateau, a loop "
            f"of your own); {_BY_HAND}, or give group=0 if {first['lr']:g} is its highest."
        )
    if "initial_lr" in first:
        notes.append(
            f"a scheduler changes the learning rate: it is read as initial_lr, {first['lr']:g}, "
            "the highest of a warm-up or a decay; under any other make the recipe by hand"
        )
    return first, notes


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """Without the parameters, and with the highest learning rate of the run as far as it shows."""
    options = {name: value for name, value in group.items() if name != "params"}
    if options.get("base_momentum") != options.get("max_momentum"):
        raise InputError(
            "a scheduler (OneCycleLR, CyclicLR) moves the momentum between "
            f"{options['base_momentum']:g} and {options['max_momentum']:g}, beside the learning "
            f"rate: no one of them is the recipe's; {_BY_HAND}, or say cycle_momentum=False."
        )
    if "swa_lr" in options:
        raise InputError(
            f"SWALR leads to a learning rate of {float(options['swa_lr']):g} in a second part of "
            f"the run, which a recipe does not have: {_BY_HAND}."
        )
    now = float(options["lr"])  # may be a tensor
    highest = float(options.get("max_lr", options.get("initial_lr", now)))
    if now > highest * (1 + 1e-6):  # a learning rate in float32 is rounded
        raise InputError(
            f"a scheduler has taken the learning rate to {now:g}, above the {highest:g} that it "
            f"began with, so its highest is not known: {_BY_HAND}."
        )
    return options | {"lr": highest}
