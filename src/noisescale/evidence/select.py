"""Which parameters are the model's: chosen by name, by pattern, or by a function.

The others stay as they are and are not part of the model.
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from noisescale.checks import shown
from noisescale.errors import InputError

Select = str | Sequence[str] | Callable[[str], bool]


def chosen_of(select: Select, names: Sequence[str], separator: str) -> tuple[bool, ...]:
    """Whether each of the parameters is selected.

    ``select`` is a function of a parameter's name; or the name of a parameter or of a layer, which
    stands for all parameters below it; or a pattern (``"*bias"``) in the manner of the shell; or a
    sequence of those, each of which must choose something.
    """
    if callable(select):
        chosen = tuple(bool(select(name)) for name in names)
    else:
        wanted = [select] if isinstance(select, str) else select
        if not isinstance(wanted, Sequence) or not all(isinstance(part, str) for part in wanted):
            raise InputError(
                "select must be the name of a layer or parameter, a pattern, a sequence of those, "
                f"or a function of a parameter's name, got {shown(select)}."
            )
        for part in wanted:
            if not any(_matches(part, name, separator) for name in names):
                raise InputError(
                    f"select {shown(part)} chooses none of the parameters: {', '.join(names)}."
                )
        chosen = tuple(any(_matches(part, name, separator) for part in wanted) for name in names)
    if not any(chosen):
        raise InputError(f"select chooses none of the parameters: {', '.join(names)}.")
    return chosen


def _matches(wanted: str, name: str, separator: str) -> bool:
    return name == wanted or name.startswith(wanted + separator) or fnmatchcase(name, wanted)
