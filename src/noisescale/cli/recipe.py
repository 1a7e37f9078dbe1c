"""``noisescale recipe``: recipes side by side, before and after a change."""

import json as jsonlib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from noisescale.cli.options import Debug, Json, Quiet
from noisescale.errors import InputError
from noisescale.noise import AdamRecipe, Recipe
from noisescale.noise.scale import RULES

Recipes = Mapping[str, Recipe | AdamRecipe]
Refusals = Mapping[str, InputError]


class Optimizer(StrEnum):
    """What the recipe is for."""

    sgd = "sgd"
    adam = "adam"


def recipe(
    learning_rate: Annotated[float, typer.Option(help="For a cost averaged over examples.")],
    batch_size: Annotated[int, typer.Option(help="B.")],
    n_train: Annotated[int, typer.Option(help="Training examples, N.")],
    optimizer: Annotated[
        Optimizer, typer.Option(help="adam follows the square-root rule.")
    ] = Optimizer.sgd,
    momentum: Annotated[
        float | None, typer.Option(help="Of sgd: m, without dampening. Default: 0.")
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Of sgd: length of the run, to judge the momentum by.")
    ] = None,
    beta1: Annotated[float | None, typer.Option(help="Of adam. Default: 0.9.")] = None,
    beta2: Annotated[float | None, typer.Option(help="Of adam. Default: 0.999.")] = None,
    eps: Annotated[float | None, typer.Option(help="Of adam. Default: 1e-8.")] = None,
    to_batch_size: Annotated[int | None, typer.Option(help="The new B.")] = None,
    to_n_train: Annotated[int | None, typer.Option(help="Of sgd: the new N.")] = None,
    to_learning_rate: Annotated[float | None, typer.Option(help="The new learning rate.")] = None,
    to_momentum: Annotated[float | None, typer.Option(help="Of sgd: the new momentum.")] = None,
    via: Annotated[
        str | None,
        typer.Option(help="Of sgd: what moves: learning_rate, momentum or batch_size."),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(help="Of sgd: only linear, which keeps εN/(B(1-m)), or exact, which keeps g."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Change one quantity of a tuned recipe and keep its noise scale."""
    start = {"learning_rate": learning_rate, "batch_size": batch_size, "n_train": n_train}
    changes = {"batch_size": to_batch_size, "learning_rate": to_learning_rate}
    only_sgd = {
        "momentum": momentum,
        "epochs": epochs,
        "to-n-train": to_n_train,
        "to-momentum": to_momentum,
        "via": via,
        "rule": rule,
    }
    only_adam = {"beta1": beta1, "beta2": beta2, "eps": eps}
    recipes: Recipes
    refused: Refusals = {}
    if optimizer is Optimizer.adam:
        _refuse(only_sgd, "sgd")
        betas = (0.9 if beta1 is None else beta1, 0.999 if beta2 is None else beta2)
        adam = AdamRecipe(**start, betas=betas, eps=1e-8 if eps is None else eps)  # type: ignore[arg-type]
        recipes = _scaled_adam(adam, changes)
    else:
        _refuse(only_adam, "adam")
        sgd = Recipe(**start, momentum=momentum or 0.0, epochs=epochs)  # type: ignore[arg-type]
        changes |= {"n_train": to_n_train, "momentum": to_momentum}
        recipes, refused = _scaled_sgd(sgd, changes, via, RULES if rule is None else (rule,))
    if json:
        reasons = {name: str(error) for name, error in refused.items()}
        made = {name: recipe.to_dict() for name, recipe in recipes.items()}
        print(jsonlib.dumps(made | {"refused": reasons}))
        return
    Console().print(_table(recipes))
    if not quiet:
        for note in (*(f"{name}: {error}" for name, error in refused.items()), *_notes(recipes)):
            print(f"- {note}")


def _refuse(options: Mapping[str, object], optimizer: str) -> None:
    if given := [f"--{name}" for name, value in options.items() if value is not None]:
        raise InputError(f"{given[0]} goes with --optimizer {optimizer}: leave it out.")


def _scaled_sgd(
    tuned: Recipe, changes: Mapping[str, float | None], via: str | None, rules: tuple[str, ...]
) -> tuple[Recipes, Refusals]:
    """The tuned recipe and the scaled ones by rule, and the rules that have no answer."""
    recipes, refused = {"tuned": tuned}, {}
    for name in rules if any(value is not None for value in changes.values()) else ():
        try:
            recipes[f"{name} rule"] = tuned.scaled_to(**changes, via=via, rule=name)  # type: ignore[arg-type]
        except InputError as error:  # shown beside the other rule's answer, if that has one
            refused[f"{name} rule"] = error
    if len(refused) == len(rules):
        raise next(iter(refused.values()))
    return recipes, refused


def _scaled_adam(tuned: AdamRecipe, changes: Mapping[str, float | None]) -> Recipes:
    if all(value is None for value in changes.values()):
        return {"tuned": tuned}
    return {"tuned": tuned, "square-root rule": tuned.scaled_to(**changes)}  # type: ignore[arg-type]


def _table(recipes: Recipes) -> Table:
    """A column a recipe, a row a quantity."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for name in recipes:
        table.add_column(name, justify="right")
    columns = [_quantities(recipe) for recipe in recipes.values()]
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    return table


def _quantities(recipe: Recipe | AdamRecipe) -> dict[str, str]:
    common = {
        "learning rate": f"{recipe.learning_rate:.6g}",
        "batch size": f"{recipe.batch_size:,}",
        "training examples": f"{recipe.n_train:,}",
    }
    steps = {"steps per epoch": f"{recipe.steps_per_epoch:,.1f}"}
    if isinstance(recipe, AdamRecipe):
        beta1, beta2 = recipe.betas
        own = {"beta1": f"{beta1:.6g}", "beta2": f"{beta2:.6g}", "eps": f"{recipe.eps:.6g}"}
    else:
        own = {
            "momentum": f"{recipe.momentum:.6g}",
            "noise scale g": f"{recipe.noise_scale:.6g}",
            "εN/(B(1-m))": f"{recipe.kept('linear'):.6g}",
            "effective learning rate": f"{recipe.effective_learning_rate:.6g}",
        }
    return common | own | steps


def _notes(recipes: Recipes) -> Iterator[str]:
    """Each note once, with the recipes that it is about unless it is about all."""
    about: dict[str, list[str]] = {}
    for name, recipe in recipes.items():
        for note in recipe.notes:
            about.setdefault(note, []).append(name)
    n_scaled = max(1, len(recipes) - 1)
    for note, names in about.items():
        yield note if len(names) >= n_scaled else f"{' and '.join(names)}: {note}"
