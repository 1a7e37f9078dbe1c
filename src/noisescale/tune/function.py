"""The user's training function, checked."""

import dis
import inspect
import math
from dataclasses import dataclass
from typing import Any, Protocol

from noisescale.errors import InputError

ALWAYS = ("batch_size", "learning_rate", "steps", "seed")
ARGUMENTS = (*ALWAYS, "momentum", "betas", "weight_decay")


class TrainFunction(Protocol):
    """Trains once and returns a validation score, higher is better; NaN if training diverged.

    It takes ``batch_size, learning_rate, steps, seed``, and ``momentum`` if it trains by SGD or
    ``betas`` if by Adam, all by keyword; ``weight_decay`` too, if that is to be said.
    """

    def __call__(self, *args: Any, **settings: Any) -> float:
        """Train with these settings."""
        ...


@dataclass(frozen=True)
class Interface:
    """Which optimiser the function trains by, and whether it takes a weight decay."""

    adam: bool = False
    weight_decay: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The keywords that it is called with."""
        own = "betas" if self.adam else "momentum"
        return (*ALWAYS, own, *(["weight_decay"] if self.weight_decay else []))


def interface_of(train: Any) -> Interface:
    """What ``train`` takes by name; of one that takes anything, momentum alone is known."""
    try:
        parameters = inspect.signature(train).parameters
    except (TypeError, ValueError):  # not callable, or written in C
        return Interface()
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = {name for name, parameter in parameters.items() if parameter.kind in by_name}
    if {"betas", "momentum"} <= named:
        raise InputError(
            "train takes momentum and betas: take one of them, and leave the other to its default "
            "with functools.partial."
        )
    return Interface("betas" in named, "weight_decay" in named)


def check_function(train: Any, interface: Interface | None = None) -> list[str]:
    """Refuse what cannot be called as a :class:`TrainFunction`; notes on arguments it ignores."""
    wanted = (interface or interface_of(train)).arguments
    if not callable(train):
        raise InputError(f"train must be a function, got {type(train).__name__}.")
    try:
        parameters = inspect.signature(train).parameters
    except (TypeError, ValueError):  # written in C: it will be seen when called
        return []
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        taken = {n for n, p in parameters.items() if p.kind is not p.POSITIONAL_ONLY}
        if lacking := [name for name in wanted if name not in taken]:
            adam = ", or betas for Adam" if "momentum" in lacking else ""
            raise InputError(
                f"train must take the keywords {', '.join(wanted)}{adam}, but it has no "
                f"{lacking[0]}."
            )
    for name, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in wanted:
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
