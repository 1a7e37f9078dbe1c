"""Where stage 1 begins: a recipe, a batch size that was predicted or measured, or the usual."""

from dataclasses import replace
from typing import Any

from noisescale.checks import check_number
from noisescale.errors import InputError
from noisescale.noise import AdamRecipe, Recipe
from noisescale.tune.function import Interface
from noisescale.tune.scores import AnyRecipe

_USUAL = {False: {"learning_rate": 0.1, "momentum": 0.9}, True: {"learning_rate": 1e-3}}  # by Adam


def first_recipe(
    start: Any,
    given: dict[str, Any],
    interface: Interface,
    *,
    n_train: int,
    epochs: float,
) -> tuple[AnyRecipe, float | None]:
    """The recipe of stage 1, but for its batch size, and a batch size near the best, if known."""
    given = {name: value for name, value in given.items() if value is not None}
    _check_taken(given, interface)
    if isinstance(start, (Recipe, AdamRecipe)):
        return _from_recipe(start, given, interface, n_train=n_train, epochs=epochs)
    near = None
    if start is not None:
        value = getattr(start, "value", start)  # of a prediction or another estimate
        near = check_number("start", value, "above 0, or a recipe", lambda v: v > 0)
    options: dict[str, Any] = {"batch_size": 1, "n_train": n_train, "epochs": epochs}
    options |= _USUAL[interface.adam] | given
    made = AdamRecipe(**options, decoupled=True) if interface.adam else Recipe(**options)
    return replace(made, notes=()), near


def notes_of(start: Any) -> list[str]:
    """What a predicted batch size says of itself; a recipe's notes are of that recipe alone."""
    told = () if isinstance(start, (Recipe, AdamRecipe)) else getattr(start, "notes", ())
    return [f"start: {str(note).rstrip('.')}" for note in told]


def around(near: float, limit: int) -> list[int]:
    """Half of it, itself and twice it, as far as there is room."""
    middle = min(max(1, round(near)), limit)
    return sorted({max(1, round(middle / 2)), middle, min(2 * middle, limit)})


def _check_taken(given: dict[str, Any], interface: Interface) -> None:
    for name in given:
        if name not in interface.arguments:
            raise InputError(f"{name} was given, but train takes no {name}.")


def _from_recipe(
    start: AnyRecipe,
    given: dict[str, Any],
    interface: Interface,
    *,
    n_train: int,
    epochs: float,
) -> tuple[AnyRecipe, float]:
    if given:
        raise InputError(f"start says the {next(iter(given))} already: leave it out.")
    if isinstance(start, AdamRecipe) is not interface.adam:
        takes = "betas" if interface.adam else "momentum"
        raise InputError(
            f"start is {'an AdamRecipe' if isinstance(start, AdamRecipe) else 'a Recipe'}, but "
            f"train takes {takes}: give it the other kind."
        )
    if start.n_train not in (None, n_train):
        told = f"start is for n_train={start.n_train}, and train has {n_train}: "
        if isinstance(start, AdamRecipe):
            raise InputError(
                f"{told}no rule says how Adam's batch size goes with that, so keep it, "
                f"start.scaled_to(n_train={n_train}, batch_size={start.batch_size})."
            )
        raise InputError(
            f"{told}scale it first, start.scaled_to(n_train={n_train}, epochs={epochs:g})."
        )
    if start.unit != "examples":
        raise InputError(f"start counts {start.unit}, and train takes examples.")
    first = replace(start, n_train=n_train, epochs=epochs, warmup_steps=None, notes=())
    return first, float(start.batch_size)
