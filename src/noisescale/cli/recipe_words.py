"""What the library says of recipes, in the words of the command line."""

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from noisescale.errors import InputError
from noisescale.noise.more_data import OWN_LENGTH
from noisescale.noise.recipe_notes import MEASURED

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CHOICE = re.compile(r"\b([a-z_]+)='(\w+)'")  # rule='linear'
_NAME = re.compile(r"\b(say|give|choose) ([a-z]+_[a-z_]+)")  # say per_device_batch_size


def in_options(text: str, *, law_beside: bool = False) -> str:
    """``text`` with options for arguments; ``law_beside``: the law's own answer is shown too."""
    told = "--to-epochs or --to-steps without --rule give"
    if law_beside:
        told = "the two-branch law has"
    text = text.replace(MEASURED, f"{told} what was measured")
    text = text.replace(OWN_LENGTH, "give --epochs")
    text = _CHOICE.sub(lambda found: f"{_option(found[1])} {found[2]}", text)
    return _NAME.sub(lambda found: f"{found[1]} {_option(found[2])}", text)


def speaking_options(command: Callable[_P, _T]) -> Callable[_P, _T]:
    """The command, which refuses in these words too."""

    @wraps(command)
    def spoken(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return command(*args, **kwargs)
        except InputError as error:
            raise InputError(in_options(str(error))) from None

    return spoken


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
