"""Numbers that users give: checked in one place, refused with one sentence."""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

from noisescale.errors import InputError

_LARGEST = 2**62  # whole numbers beyond this overflow somewhere below


def check_whole(name: str, value: int, *, at_least: int) -> int:
    """``value`` as an int that is large enough."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {value!r}.") from None
    if whole < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {whole}.")
    if whole > _LARGEST:
        raise InputError(f"{name} must be at most {_LARGEST}, got {whole}.")
    return whole


def check_number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> float:
    """``value`` as a finite float for which ``holds``; ``rule`` says so in words."""
    wanted = f"{name} must be a finite number{' ' if rule else ''}{rule}"
    try:
        number = float(value) if not isinstance(value, str) else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not holds(number):
        shown = f"{number:g}" if math.isfinite(number) else repr(value)[:40]
        raise InputError(f"{wanted}, got {shown}.")
    return number


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """``value`` if it is one of the ``choices``."""
    choices = list(choices)
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
    return value


def check_momentum(value: float) -> float:
    """The momentum coefficient m: in [0, 1)."""
    return check_number("momentum", value, "in [0, 1)", lambda v: 0 <= v < 1)


def check_batch_size(value: int, n_train: int) -> int:
    """B: from 1 to the number of training examples N."""
    batch_size = check_whole("batch_size", value, at_least=1)
    if batch_size > n_train:
        raise InputError(
            f"batch_size must be at most {n_train}, the number of training examples, "
            f"got {batch_size}."
        )
    return batch_size
