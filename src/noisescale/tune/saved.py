"""A tuning as a file: written by ``save`` and ``noisescale tune``, read without its runs."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from noisescale.errors import InputError
from noisescale.noise import AdamRecipe, Recipe
from noisescale.saved import read_saved, write_saved
from noisescale.tune.result import Decision, TuneResult

KIND = "noisescale tuning"
# What may be None, and is not a number that is not known.
_NOTHING = (
    "n_train",
    "epochs",
    "warmup_steps",
    "sequence_length",
    "batch_size_interval",
    "branch",
    "difference",
    "difference_std",
    "tolerance",
    "inconclusive",
    "confirmed",
    "best_seen",
)


def save(result: TuneResult, path: Path | str) -> None:
    """Write the result into a ``.json`` file."""
    write_saved(path, KIND, asdict(result))


def load(path: Path | str) -> TuneResult:
    """What :func:`save` wrote."""
    content = read_saved(path, KIND, _NOTHING)
    try:
        trail = [
            Decision(**step | {"recipe": _recipe(step["recipe"])}) for step in content["trail"]
        ]
        named = [name for name in ("recipe", "start", "best_seen") if content.get(name) is not None]
        recipes = {name: _recipe(content[name]) for name in named}
        notes = tuple(content["notes"])
        return TuneResult(**content | recipes | {"trail": tuple(trail), "notes": notes})
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is not what save wrote ({error}).") from None


def _recipe(content: dict[str, Any]) -> Recipe | AdamRecipe:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    return AdamRecipe(**fields) if "betas" in fields else Recipe(**fields)
