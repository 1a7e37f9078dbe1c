"""What users give, checked in one place and refused with one sentence."""

import errno
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from noisescale.errors import InputError

_LARGEST = 2**62  # whole numbers beyond this overflow somewhere below


def shown(value: Any, length: int = 40) -> str:
    """A value as a sentence shows it: short, whatever it is."""
    try:
        return repr(value)[:length]
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return f"a number of {value.bit_length():,} bits" if isinstance(value, int) else "that"


def _is_flag(value: Any) -> bool:
    """Whether ``value`` is True or False, of Python or of an array library: no number."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


def check_whole(name: str, value: int, *, at_least: int) -> int:
    """``value`` as an int that is large enough."""
    try:
        if _is_flag(value):
            raise TypeError
        whole = operator.index(value)
    except TypeError:
        raise InputError(f"{name} must be a whole number, got {shown(value)}.") from None
    if whole < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {shown(whole)}.")
    if whole > _LARGEST:
        raise InputError(f"{name} must be at most {_LARGEST}, got {shown(whole)}.")
    return whole


def check_number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> float:
    """``value`` as a finite float for which ``holds``; ``rule`` says so in words."""
    wanted = f"{name} must be a finite number{' ' if rule else ''}{rule}"
    try:
        number = math.nan if isinstance(value, (str, bytes)) or _is_flag(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or not holds(number):
        got = f"{number:g}" if math.isfinite(number) else shown(value)
        raise InputError(f"{wanted}, got {got}.")
    return number


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """``value`` if it is one of the ``choices``."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}.")
    return value


def check_flag(name: str, value: bool) -> bool:
    """``value`` as a bool: NaN and most texts would count as true."""
    if not _is_flag(value) or getattr(value, "ndim", None):
        raise InputError(f"{name} must be True or False, got {shown(value)}.")
    return bool(value)


def check_list(name: str, values: Any, what: str, at_most: int = 10**6) -> list[Any]:
    """``values`` as a list: a text and a mapping have parts too, but not those that are meant.

    One that is longer than ``at_most`` is refused, and not waited for: it may never end.
    """
    try:
        if isinstance(values, (str, bytes, Mapping)):
            raise TypeError
        listed = list(islice(values, at_most + 1))
    except TypeError:
        raise InputError(f"{name} must be {what}, got {shown(values)}.") from None
    if len(listed) > at_most:
        raise InputError(f"{name} must have at most {at_most:,} values, got more.")
    return listed


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise InputError(f"{name} must be a function, got {shown(value)}.")


def check_path(name: str, value: Any) -> Path:
    """``value`` as a path that the system can look for, whether or not something is there."""
    try:
        if not isinstance(value, (str, os.PathLike)) or not value:
            raise TypeError
        path = Path(value)
        path.stat()
    except (TypeError, ValueError):  # the latter for a null character
        raise InputError(f"{name} must be the path of a file, got {shown(value)}.") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InputError(
                f"{name} must be a path that exists or can be made ({error.strerror}), got "
                f"{shown(value)}."
            ) from None
    return path


def check_learning_rate(value: float) -> float:
    """The learning rate epsilon: positive, and of a size that arithmetic can handle."""
    return check_number(
        "learning_rate", value, "above 0 (from 1e-38 to 1e38)", lambda v: 1e-38 <= v <= 1e38
    )


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


def memory_limit() -> float:
    """Bytes that one computation may take: most of this machine's memory."""
    try:
        return 0.7 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return 8.0 * 2**30


def check_memory(what: str, need: float, instead: str = "") -> None:
    """Refuse what would not fit, saying how much it would take and what to do ``instead``."""
    if need > memory_limit():
        raise InputError(
            f"{what} would take {need / 2**30:.3g} GiB, more than 70 % of this machine's memory: "
            f"{instead or 'use fewer features or classes'}."
        )
