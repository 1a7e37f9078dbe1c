"""Functions that users name as ``module:function``, and what they raise."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from noisescale.checks import shown
from noisescale.errors import InputError


@contextmanager
def users_code(trouble: str) -> Iterator[None]:
    """Code of a user's own: what it raises, sys.exit too, ends as an InputError that begins so."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{trouble} {in_words(error)}.") from error


def in_words(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:300]}".rstrip(".: ")


def import_function(what: str, name: str) -> Callable[..., Any]:
    """The function that ``name``, a ``module:function``, stands for; ``what`` says its role."""
    if not isinstance(name, str):
        raise InputError(f"{what} must be named as module:function, got {shown(name)}.")
    module, _, function = name.partition(":")
    trouble = f"{what} {shown(name)} cannot be imported"
    with users_code(f"{trouble}:"):
        try:
            imported = getattr(import_module(module), function)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise InputError(f"{trouble}: {error}.") from error
    if not callable(imported):
        raise InputError(f"{what} {shown(name)} must be a function, got {type(imported).__name__}.")
    return imported  # type: ignore[no-any-return]


def on_first_use(homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__`` for names that are imported from their modules when asked for.

    A package that one framework's users need must not import the other's.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"no attribute {name!r}; there are {', '.join(sorted(homes))}")
        return getattr(import_module(homes[name]), name)

    return get
