"""Which code a measurement depends on, so that what was kept answers for that code alone.

The definitions that a function reaches within this package, by name: functions, classes and the
values of constants, recursively. What a parameter is asked to do (``context.runs``) is not
followed; how runs are made is in their own keys. Comments, docstrings, annotations, formatting and
the modules that definitions stand in do not count, nor does the machinery that executes, checks or
reports.
"""

import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "noisescale"
_ROOT = str(Path(__file__).parent.parent)
# What executes, checks and fetches: none of it decides what comes out. What data are is said by
# their fingerprint, not by how they were loaded.
_MACHINERY = tuple(
    f"{_PACKAGE}.{name}"
    for name in (
        "jobs",
        "checks",
        "drawing",
        "errors",
        "imports",
        "notebook",
        "data.cache",
        "data.sources",
        "data.idx",
        "paper.section",
    )
)


@functools.cache
def code_hash(function: Callable[..., Any]) -> str:
    """A hash that changes when what ``function`` computes may have changed."""
    texts = sorted(_definitions(function).values())
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _definitions(function: Callable[..., Any]) -> dict[str, str]:
    """The normalised source of everything reached, by qualified name."""
    reached: dict[str, str] = {}
    waiting: list[Any] = [function]
    while waiting:
        thing = inspect.unwrap(waiting.pop())
        name = f"{thing.__module__}.{thing.__qualname__}"
        if name in reached:
            continue
        reached[name], chains = _read(thing)
        scope = vars(sys.modules[thing.__module__])
        for chain in chains:
            value = _resolve(scope, chain)
            for part in _parts(value):
                if _ours(part):
                    waiting.append(part)
                elif (text := _as_text(part)) is not None:
                    reached[f"{name} {'.'.join(chain)} {text}"] = text
    return reached


@functools.cache
def _read(thing: Any) -> tuple[str, tuple[tuple[str, ...], ...]]:
    """A definition's normalised source, and the names that it reads; sections share most."""
    tree = _parse(inspect.getsource(thing))
    if _is_data(thing):
        tree = _OnlyFields().visit(tree)
    text = ast.unparse(_Normal().visit(tree))
    return text, tuple(_names(tree))


def _parse(source: str) -> ast.AST:
    """The syntax of a definition; a lambda's source is the line it stands in, whatever that is."""
    try:
        return ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return ast.Module([ast.Expr(ast.Constant(source.strip()))], [])


class _Normal(ast.NodeTransformer):
    """Without what does not change a result."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def _without_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


class _OnlyFields(ast.NodeTransformer):
    """A section's data without what is derived from them later, by judging and drawing."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return ast.Pass()


def _is_data(thing: Any) -> bool:
    return inspect.isclass(thing) and any(base.__name__ == "Measured" for base in thing.__mro__)


def _names(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Every name that is read, with the attributes asked of it: ``("np", "linalg", "svd")``."""
    inner = set()  # of longer chains
    for node in ast.walk(tree):
        if node in inner:
            continue
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.append(node.attr)
            node = node.value
            inner.add(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield (node.id, *reversed(chain))


def _resolve(scope: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
    """What a chain of names stands for in a module, as far as it leads through our modules."""
    value = scope.get(chain[0])
    for name in chain[1:]:
        if not isinstance(value, ModuleType):
            break
        value = getattr(value, name, None) if _is_ours(value.__name__) else None
    return value


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == _PACKAGE


def _parts(value: Any) -> Iterator[Any]:
    """The definitions and plain values in a constant."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(key)
            yield from _parts(part)
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _parts(part)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for entry in fields(value):
            yield from _parts(getattr(value, entry.name))
    elif isinstance(value, ModuleType):  # one of several that are alike: a method, by name
        if _is_ours(value.__name__):
            yield from (part for part in vars(value).values() if _home(part) == value.__name__)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords))
    elif hasattr(value, "registry") and callable(value):  # singledispatch
        yield from _parts(dict(value.registry))
        yield value
    else:
        yield value


def _home(value: Any) -> str | None:
    """The module that a function or class is defined in."""
    home = getattr(inspect.unwrap(value), "__module__", None) if callable(value) else None
    return home if isinstance(home, str) else None


def _ours(value: Any) -> bool:
    home = _home(value)
    return (
        home is not None
        and hasattr(value, "__qualname__")
        and _is_ours(home)
        and not home.startswith(_MACHINERY)
        and (inspect.isclass(value) or inspect.isfunction(inspect.unwrap(value)))
    )


def _as_text(value: Any) -> str | None:
    """A constant's value; None for what has none, or says where this package is installed."""
    if isinstance(value, str) and value.startswith(_ROOT):
        return None
    return repr(value) if isinstance(value, bool | int | float | complex | str | bytes) else None
