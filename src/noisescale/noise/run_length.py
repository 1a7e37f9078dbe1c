"""The length of a run, in epochs or in updates: whichever was asked for is what is kept."""

from typing import Any

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError

LENGTHS = ("epochs", "steps")


def check_length(epochs: float | None, steps: int | None) -> dict[str, Any]:
    """The one that was asked for, by name; empty if neither was."""
    if epochs is not None and steps is not None:
        raise InputError("epochs and steps both say how long the run is: give one of them.")
    if epochs is not None:
        return {"epochs": check_number("epochs", epochs, "above 0", lambda v: v > 0)}
    return {} if steps is None else {"steps": check_whole("steps", steps, at_least=1)}


def lasting(length: dict[str, Any], batch_size: int, n_train: int | None) -> dict[str, Any]:
    """The fields of a recipe that lasts as long; none if nothing was asked for."""
    if not length:
        return {}
    if "epochs" in length:
        return {"epochs": length["epochs"], "length_in": "epochs"}
    assert n_train is not None  # a length is asked for with n_train alone
    return {"epochs": length["steps"] * batch_size / n_train, "length_in": "steps"}
