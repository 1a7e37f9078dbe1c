"""Recipes side by side, for the command line."""

from collections.abc import Callable, Iterator, Mapping

from rich.table import Table

from noisescale.noise.scale import Recipe


def comparison(recipes: Mapping[str, Recipe]) -> Table:
    """A column a recipe, a row a quantity."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for name in recipes:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[Recipe], str]] = {
        "learning rate": lambda r: f"{r.learning_rate:.6g}",
        "batch size": lambda r: f"{r.batch_size:,}",
        "training examples": lambda r: f"{r.n_train:,}",
        "momentum": lambda r: f"{r.momentum:.6g}",
        "noise scale g": lambda r: f"{r.noise_scale:.6g}",
        "εN/(B(1-m))": lambda r: f"{r.kept('linear'):.6g}",
        "effective learning rate": lambda r: f"{r.effective_learning_rate:.6g}",
        "steps per epoch": lambda r: f"{r.steps_per_epoch:,.1f}",
    }
    for label, value in rows.items():
        table.add_row(label, *(value(recipe) for recipe in recipes.values()))
    return table


def notes(recipes: Mapping[str, Recipe]) -> Iterator[str]:
    """Each note once, with the recipes that it is about unless it is about all."""
    about: dict[str, list[str]] = {}
    for name, recipe in recipes.items():
        for note in recipe.notes:
            about.setdefault(note, []).append(name)
    n_scaled = max(1, len(recipes) - 1)
    for note, names in about.items():
        yield note if len(names) >= n_scaled else f"{' and '.join(names)}: {note}"
