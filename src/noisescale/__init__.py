"""noisescale: should I believe this minimum, and how loud is my SGD?

Public names stand in ``__init__.pyi`` and load what they need on first use, so that ``import
noisescale`` is instant and the commands that compute nothing never wait for JAX.
"""

import ast
import pkgutil
from importlib import import_module


def _homes() -> dict[str, str]:
    """Each public name, and the module that ``__init__.pyi`` imports it from."""
    listed = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    return {
        alias.name: str(line.module)
        for line in listed.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }


_HOMES = _homes()
__all__ = sorted(name for name, home in _HOMES.items() if home != __name__)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == __name__:  # a subpackage
        return import_module(f"{home}.{name}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
