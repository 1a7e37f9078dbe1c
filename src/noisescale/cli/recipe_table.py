"""Recipes side by side: a column a recipe, a row a quantity, and each note once."""

from collections.abc import Iterator, Mapping

from rich.table import Table

from noisescale.noise import AdamRecipe, Recipe
from noisescale.noise.more_data import in_brackets

Recipes = Mapping[str, Recipe | AdamRecipe]


def table(recipes: Recipes, *, of: str) -> Table:
    """A column a recipe, a row a quantity; the first header says which optimizer it is ``of``."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column({"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}[of])
    for name in recipes:
        made.add_column(name, justify="right")
    columns = [_quantities(recipe) for recipe in recipes.values()]
    labels = dict.fromkeys(label for column in columns for label in column)
    for label in labels:
        made.add_row(label, *(column.get(label, "") for column in columns))
    return made


def notes(recipes: Recipes) -> Iterator[str]:
    """Each note once, with the recipes that it is about unless it is about all."""
    about: dict[str, list[str]] = {}
    for name, recipe in recipes.items():
        for note in recipe.notes:
            about.setdefault(note, []).append(name)
    n_scaled = max(1, len(recipes) - 1)
    for note, names in about.items():
        yield note if len(names) >= n_scaled else f"{' and '.join(names)}: {note}"


def _quantities(recipe: Recipe | AdamRecipe) -> dict[str, str]:
    unit = recipe.unit
    n_train = "not known" if recipe.n_train is None else f"{recipe.n_train:,}"
    rows = {
        "learning rate": f"{recipe.learning_rate:.6g}",
        "batch size" if unit == "examples" else "batch size in tokens": f"{recipe.batch_size:,}",
        f"training {unit}": n_train,
    }
    if unit == "tokens":
        rows["batch size in sequences"] = f"{recipe.examples:,}"
    if isinstance(recipe, AdamRecipe):
        beta1, beta2 = recipe.betas
        rows |= {"beta1": f"{beta1:.6g}", "beta2": f"{beta2:.6g}", "eps": f"{recipe.eps:.6g}"}
    else:
        rows["momentum"] = f"{recipe.momentum:.6g}"
        if recipe.n_train is not None:
            rows["noise scale g"] = f"{recipe.noise_scale:.6g}"
            rows["εN/(B(1-m))"] = f"{recipe.kept('linear'):.6g}"
        rows["effective learning rate"] = f"{recipe.effective_learning_rate:.6g}"
        if recipe.batch_size_interval is not None:
            rows["batch size, interval"] = in_brackets(*recipe.batch_size_interval, ",.0f")
    if recipe.weight_decay or (isinstance(recipe, AdamRecipe) and recipe.decoupled):
        rows["weight decay"] = f"{recipe.weight_decay:.6g}"
    if recipe.warmup_steps is not None:
        rows["warm-up, updates"] = f"{recipe.warmup_steps:,}"
    if recipe.n_train is not None:
        rows["steps per epoch"] = f"{recipe.steps_per_epoch:,.1f}"
        if recipe.epochs is not None:
            rows["updates in all"] = f"{recipe.steps:,.0f}"
    return rows
