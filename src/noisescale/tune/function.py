"""The user's training function, checked."""

import dis
import inspect
import math
from typing import Any, Protocol

from noisescale.errors import InputError

ARGUMENTS = ("batch_size", "learning_rate", "momentum", "steps", "seed")


class TrainFunction(Protocol):
    """Trains once and returns a validation score, higher is better; NaN if training diverged."""

    def __call__(
        self, *, batch_size: int, learning_rate: float, momentum: float, steps: int, seed: int
    ) -> float:
        """Train with these settings."""
        ...


def check_function(train: Any) -> list[str]:
    """Refuse what cannot be called as a :class:`TrainFunction`; notes on arguments it ignores."""
    if not callable(train):
        raise InputError(f"train must be a function, got {type(train).__name__}.")
    try:
        parameters = inspect.signature(train).parameters
    except (TypeError, ValueError):  # written in C: it will be seen when called
        return []
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        taken = {n for n, p in parameters.items() if p.kind is not p.POSITIONAL_ONLY}
        if lacking := [name for name in ARGUMENTS if name not in taken]:
            raise InputError(
                f"train must take the keywords {', '.join(ARGUMENTS)}, but it has no {lacking[0]}."
            )
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in ARGUMENTS:
            raise InputError(
                f"train has an argument {name!r} without a default, which nobody would give: "
                "give it a default, or use functools.partial."
            )
    return [
        f"train takes {name} but never uses it: what is tuned must have an effect"
        for name in _unused(train)
    ]


def as_score(value: Any) -> float:
    """A score as a float; NaN where training diverged."""
    try:
        score = float(value) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError):
        score = None
    if score is None or score == math.inf:
        raise TypeError(
            f"train must return a number, got {str(value)[:40]!r} of type {type(value).__name__}"
        )
    return score if math.isfinite(score) else math.nan


def _unused(train: Any) -> list[str]:
    code = getattr(train, "__code__", None)
    if code is None or "locals" in code.co_names:
        return []
    count = code.co_argcount + code.co_kwonlyargcount
    loaded = set(code.co_cellvars)
    for instruction in dis.get_instructions(code):
        if "LOAD" in instruction.opname:
            named = instruction.argval
            loaded |= set(named if isinstance(named, tuple) else (named,))
    return [n for n in code.co_varnames[:count] if n in ARGUMENTS and n not in loaded]
