"""``noisescale recipe``: recipes side by side, before and after a change, and as lines to paste."""

import json as jsonlib
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from noisescale.checks import check_whole
from noisescale.cli.options import Debug, Json, Quiet
from noisescale.cli.recipe_devices import NewDevices, Parts, tuned_devices
from noisescale.cli.recipe_table import Recipes, notes, table
from noisescale.cli.recipe_words import in_options, speaking_options
from noisescale.errors import InputError
from noisescale.noise import AdamRecipe, Recipe
from noisescale.noise.adam import ADAM_RULES, check_rule
from noisescale.noise.recipe_notes import ADVICE
from noisescale.noise.scale import RULES

Refusals = Mapping[str, InputError]
_LAW = "law"
_NAMES = {
    "sde": "sde rule",
    "practice": "practice rule",
    "half_life": "half-life rule",
    _LAW: "two-branch law",
}
_FOR_SGD = (
    "This is for SGD, because no --optimizer was given. Adam and AdamW have other rules: give "
    "--optimizer adam or --optimizer adamw."
)
_NO_DECAY = (
    "weight decay is taken to be 0, as transformers' Trainer has it: PyTorch's AdamW has 0.01 "
    "unless told otherwise, so say --weight-decay"
)


class Optimizer(StrEnum):
    """What the recipe is for."""

    sgd = "sgd"
    adam = "adam"
    adamw = "adamw"


class Script(StrEnum):
    """Whose lines to print."""

    pytorch = "pytorch"
    transformers = "transformers"
    lightning = "lightning"


@speaking_options
def recipe(
    learning_rate: Annotated[float, typer.Option(help="For a cost averaged over examples.")],
    batch_size: Annotated[
        int | None, typer.Option(help="B of one update, over all devices.")
    ] = None,
    n_train: Annotated[
        int | None, typer.Option(help="Training examples, N. Leave it out for a stream.")
    ] = None,
    per_device_batch_size: Annotated[
        int | None, typer.Option(help="Instead of B, in examples; with the next two.")
    ] = None,
    gradient_accumulation_steps: Annotated[int | None, typer.Option(help="Default: 1.")] = None,
    world_size: Annotated[int | None, typer.Option(help="Devices. Default: 1.")] = None,
    unit: Annotated[str, typer.Option(help="Of B and N: examples or tokens.")] = "examples",
    sequence_length: Annotated[int | None, typer.Option(help="Tokens in an example.")] = None,
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(help="Default: sgd. adam and adamw follow rules of their own."),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of sgd: m. Default: 0.")] = None,
    dampening: Annotated[float | None, typer.Option(help="Of sgd, as in PyTorch.")] = None,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Of sgd, as in PyTorch.")] = False,
    epochs: Annotated[float | None, typer.Option(help="Length of the tuned run.")] = None,
    beta1: Annotated[float | None, typer.Option(help="Of adam. Default: 0.9.")] = None,
    beta2: Annotated[float | None, typer.Option(help="Of adam. Default: 0.999.")] = None,
    eps: Annotated[float | None, typer.Option(help="Of adam. Default: 1e-8.")] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="Decoupled in adamw. Default: 0.")
    ] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Updates of warm-up.")] = None,
    to_batch_size: Annotated[int | None, typer.Option(help="The new B.")] = None,
    to_n_train: Annotated[
        int | None, typer.Option(help="Of sgd: the new N; with --to-epochs or --to-steps.")
    ] = None,
    to_epochs: Annotated[float | None, typer.Option(help="Length of the new run.")] = None,
    to_steps: Annotated[int | None, typer.Option(help="The same in updates.")] = None,
    to_learning_rate: Annotated[float | None, typer.Option(help="The new learning rate.")] = None,
    to_momentum: Annotated[float | None, typer.Option(help="Of sgd: the new momentum.")] = None,
    to_per_device_batch_size: Annotated[int | None, typer.Option(help="The new one.")] = None,
    to_gradient_accumulation_steps: Annotated[int | None, typer.Option(help="The new one.")] = None,
    to_world_size: Annotated[int | None, typer.Option(help="The new number of devices.")] = None,
    max_per_device_batch_size: Annotated[
        int | None, typer.Option(help="What a device's memory holds, in examples.")
    ] = None,
    via: Annotated[
        str | None,
        typer.Option(help="Of sgd: what moves: learning_rate, momentum or batch_size."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="Only this one. sgd: linear, which keeps εN/(B(1-m)), exact, which keeps g, or "
            "law, for a new N; adam: sde (or square_root), practice or half_life."
        ),
    ] = None,
    script: Annotated[
        Script | None, typer.Option(help="Print the lines to paste, of the first rule.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Change a quantity or two of a tuned recipe and keep its noise scale."""
    per_example = _per_example(unit, sequence_length)
    size, tuned = tuned_devices(
        batch_size,
        Parts(per_device_batch_size, gradient_accumulation_steps, world_size),
        unit,
        sequence_length,
    )
    start: dict[str, Any] = {
        "learning_rate": learning_rate,
        "batch_size": size,
        "n_train": n_train,
        "epochs": epochs,
        "weight_decay": 0.0 if weight_decay is None else weight_decay,
        "warmup_steps": warmup_steps,
        "unit": unit,
        "sequence_length": sequence_length,
    }
    asked = Parts(to_per_device_batch_size, to_gradient_accumulation_steps, to_world_size)
    devices = NewDevices(tuned, asked, max_per_device_batch_size)
    if to_batch_size is None and asked.named:
        to_batch_size = per_example * devices.batch_size()
    changes = {
        "batch_size": to_batch_size,
        "learning_rate": to_learning_rate,
        "n_train": to_n_train,
    }
    only_sgd = {
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov or None,
        "to-momentum": to_momentum,
        "to-epochs": to_epochs,
        "to-steps": to_steps,
        "via": via,
    }
    recipes: Recipes
    refused: Refusals
    chosen = Optimizer.sgd if optimizer is None else optimizer
    if chosen is Optimizer.sgd:
        _refuse({"beta1": beta1, "beta2": beta2, "eps": eps}, "adam")
        sgd = Recipe(
            **start, momentum=momentum or 0.0, dampening=dampening or 0.0, nesterov=nesterov
        )
        changes |= {"momentum": to_momentum}
        moves = {"via": via, "epochs": to_epochs, "steps": to_steps}
        # A batch that moves is one that the devices can share.
        moves["multiple_of"] = per_example * check_whole(
            "world_size", devices.world_size, at_least=1
        )
        recipes, refused = _scaled_sgd(sgd, changes, moves, rule)
    else:
        _refuse(only_sgd, "sgd")
        betas = (0.9 if beta1 is None else beta1, 0.999 if beta2 is None else beta2)
        adam = AdamRecipe(
            **start,
            betas=betas,
            eps=1e-8 if eps is None else eps,
            decoupled=chosen is Optimizer.adamw,
            notes=(_NO_DECAY,) * (chosen is Optimizer.adamw and weight_decay is None),
        )
        recipes, refused = _scaled_adam(adam, changes, rule)
    pasted = _Pasted(recipes, devices)
    if json:
        print(jsonlib.dumps({"optimizer": chosen} | _document(recipes, refused, pasted)))
        return
    lines = None if script is None else pasted.lines(script)  # refused before anything is shown
    if optimizer is None and not quiet:
        print(f"{_FOR_SGD}\n")
    Console().print(table(recipes, of=chosen))
    if not quiet:
        remarks = [f"{name}: {error}" for name, error in refused.items()]
        said = (note for note in notes(recipes) if not note.endswith(ADVICE))  # in the first line
        for note in (*remarks, *said, *pasted.ways(asked=script is not None)):
            print(f"- {in_options(note, law_beside=_NAMES[_LAW] in recipes)}")
    if lines is not None:
        print(f"\n# {pasted.name}\n{lines}")


class _Pasted:
    """The first answer, or the tuned recipe if there is none, as it stands in a script."""

    def __init__(self, recipes: Recipes, devices: NewDevices) -> None:
        self.name = list(recipes)[min(1, len(recipes) - 1)]
        recipe, self._devices = recipes[self.name], devices
        said = dict.fromkeys((*recipe.notes, *recipes["tuned"].said()))
        self._recipe = replace(recipe, notes=tuple(map(in_options, said)))

    def lines(self, trainer: str) -> str:
        return self._recipe.to(trainer, **self.layout())

    def layout(self) -> dict[str, Any]:
        return self._devices.layout(self._recipe).to_dict()

    def ways(self, *, asked: bool) -> list[str]:
        return self._devices.in_words(self.name, self._recipe, pasted=asked)


def _document(recipes: Recipes, refused: Refusals, pasted: _Pasted) -> dict[str, Any]:
    made: dict[str, Any] = {name: recipe.to_dict() for name, recipe in recipes.items()}
    made["refused"] = {name: in_options(str(error)) for name, error in refused.items()}
    try:
        made["layout"] = pasted.layout()
        made["script"] = {"of": pasted.name} | {name: pasted.lines(name) for name in Script}
    except InputError as error:
        made["refused"]["script"] = in_options(str(error))
    return made


def _refuse(options: Mapping[str, object], optimizer: str) -> None:
    if given := [f"--{name}" for name, value in options.items() if value is not None]:
        raise InputError(f"{given[0]} goes with --optimizer {optimizer}: leave it out.")


def _per_example(unit: str, sequence_length: int | None) -> int:
    """Tokens in an example, if batches are in tokens."""
    if unit != "tokens":
        return 1
    if sequence_length is None:
        raise InputError("--unit tokens needs --sequence-length, the tokens of one example.")
    return check_whole("sequence_length", sequence_length, at_least=1)


def _scaled_sgd(
    tuned: Recipe, changes: Mapping[str, Any], moves: Mapping[str, Any], rule: str | None
) -> tuple[Recipes, Refusals]:
    """The tuned recipe and the scaled ones by rule, and the rules that have no answer."""
    more_data = changes["n_train"] is not None
    if rule is not None and rule not in (choices := (*RULES, _LAW)):
        raise InputError(f"rule must be one of {', '.join(choices)}, got {rule!r}.")
    rules = (rule,) if rule is not None else (_LAW, *RULES) if more_data else RULES
    if rule == _LAW and not more_data:
        raise InputError("--rule law is for a new --to-n-train: leave it out.")
    length = [f"--to-{name}" for name in ("epochs", "steps") if moves[name] is not None]
    if length and not more_data:
        raise InputError(f"{length[0]} goes with --to-n-train: leave it out.")
    if len(length) > 1:
        raise InputError("--to-epochs and --to-steps both say how long the run is: give one.")

    def scaled(name: str) -> Recipe:
        if name != _LAW:
            return tuned.scaled_to(**changes, **moves, rule=name)
        if not length:
            raise InputError(
                "with another number of examples the best batch size depends on the length of the "
                "run: give --to-epochs or --to-steps, one of them."
            )
        return tuned.scaled_to(**changes, **moves)

    return _collected(
        tuned, changes, {_NAMES.get(name, f"{name} rule"): name for name in rules}, scaled
    )


def _scaled_adam(
    tuned: AdamRecipe, changes: Mapping[str, Any], rule: str | None
) -> tuple[Recipes, Refusals]:
    rules = ADAM_RULES if rule is None else (check_rule(rule),)
    asked = any(value is not None for value in changes.values())
    by_default = tuned.scaled_to(**changes) if asked and rule is None else None

    def scaled(name: str) -> AdamRecipe:
        made = tuned.scaled_to(**changes, rule=name)
        # The default is one of them, and says how far they are apart.
        return by_default if by_default is not None and by_default == made else made

    return _collected(tuned, changes, {_NAMES[name]: name for name in rules}, scaled)


def _collected(
    tuned: Any, changes: Mapping[str, Any], rules: Mapping[str, str], scaled: Any
) -> tuple[Recipes, Refusals]:
    """What each rule says, or why it says nothing; refused if none does."""
    recipes, refused = {"tuned": tuned}, {}
    for label, name in rules.items() if any(v is not None for v in changes.values()) else ():
        try:
            recipes[label] = scaled(name)
        except InputError as error:  # shown beside the other rule's answer, if that has one
            refused[label] = error
    if refused and len(refused) == len(rules):
        raise next(iter(refused.values()))
    return recipes, refused
