"""Functions that users name as ``module:function``."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from noisescale.errors import InputError


def import_function(what: str, name: str) -> Callable[..., Any]:
    """The function that ``name``, a ``module:function``, stands for; ``what`` says its role."""
    module, _, function = name.partition(":")
    try:
        imported = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{what} {name!r} cannot be imported: {error}.") from error
    if not callable(imported):
        raise InputError(f"{what} {name!r} must be a function, got {type(imported).__name__}.")
    return imported  # type: ignore[no-any-return]
