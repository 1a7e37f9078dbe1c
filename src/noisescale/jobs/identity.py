"""Which experiment a training function is: a name that changes when anything it depends on does.

A store answers for runs by that name, so two functions that may score differently must never share
one. The name is a hash of the function's code, its defaults, the arguments that a partial has
bound, what it closes over, the globals it reads, and the source of every module of the user's that
it imports, directly or through others. Libraries (site-packages, the standard library, noisescale)
are taken by name. Files that it reads, and modules that it imports by a computed name, are not
seen.

What cannot be told apart in this way (an open connection, a lock) gets a name that is used once.
"""

import ast
import copyreg
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np

# Of a class's own attributes, those that say where it stands, or what its methods say anyway.
_NOT_CONTENT = {
    "__annotations__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__static_attributes__",
    "__weakref__",
    "_abc_impl",
}


@dataclass(frozen=True)
class Identity:
    """The name of an experiment in a store.

    Attributes:
        name: equal for functions that do the same.
        unknown: what could not be told apart, if anything: then no other function has this name,
            and nothing that was stored before is its own.
    """

    name: str
    unknown: str | None = None


class _UnknownError(Exception):
    """An object whose content cannot be told."""


def identity(train: Any) -> Identity:
    """The identity of a training function: its own, if it says so, or that of its content."""
    given = getattr(train, "identity", None)
    if isinstance(given, Identity):
        return given
    if isinstance(given, str):
        return Identity(given)
    owner = train if hasattr(train, "__qualname__") else type(train)
    return identity_of(f"{owner.__module__}:{owner.__qualname__}", train)


def identity_of(prefix: str, *parts: Any) -> Identity:
    """The identity of an experiment that is made of these ``parts``: functions, arrays, numbers."""
    try:
        return Identity(f"{prefix}#{digest(*parts)}")
    except _UnknownError as error:
        return Identity(f"{prefix}#once-{uuid.uuid4().hex}", str(error))


def digest(*parts: Any) -> str:
    """A hash of the content of ``parts``, the same in every process."""
    content = _Content()
    for part in parts:
        content.add(part)
    content.add_sources()
    return content.hexdigest()


class _Content:
    """A hash that objects are added to, each by what it consists of."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._known: dict[int, tuple[int, Any]] = {}  # by id, and kept alive so that ids stay true
        self._modules: set[str] = set()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:16]

    def _write(self, kind: str, content: bytes | str = b"") -> None:
        raw = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        self._hash.update(f"{kind}:{len(raw)}:".encode() + raw)

    def add(self, value: Any) -> None:
        """Add one object; one that was added before is only pointed to."""
        if value is None or value is ... or type(value) in (bool, int, float, complex, str):
            self._write(type(value).__name__, repr(value))
        elif type(value) in (bytes, bytearray):
            self._write("bytes", bytes(value))
        elif id(value) in self._known:
            self._write("again", str(self._known[id(value)][0]))
        else:
            self._known[id(value)] = len(self._known), value
            self._add_new(value)

    def _add_new(self, value: Any) -> None:
        if type(value) in (tuple, list):
            self._write(type(value).__name__, str(len(value)))
            for item in value:
                self.add(item)
        elif type(value) is dict:
            self._add_unordered("dict", value.items())
        elif type(value) in (set, frozenset):
            self._add_unordered("set", value)
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.ModuleType):
            self._write("module", value.__name__)
            self._modules.add(value.__name__)
        elif isinstance(value, functools.partial):
            self._write("partial")
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, (types.MethodType, types.BuiltinMethodType)):
            self._write("method", value.__name__)
            self.add(getattr(value, "__func__", None))
            self.add(value.__self__)
        elif isinstance(value, (staticmethod, classmethod)):
            self._write(type(value).__name__)
            self.add(value.__func__)
        elif isinstance(value, property):
            self._write("property")
            self.add((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self._write("cached property")
            self.add(value.func)
        elif callable(value) and hasattr(value, "__wrapped__"):  # jax.jit, functools.cache
            self._write("wrapper", f"{type(value).__module__}:{type(value).__qualname__}")
            self.add(value.__wrapped__)
        elif (array := _as_array(value)) is not None:
            self._write("array", f"{array.dtype.str}{array.shape}")
            self._write("content", np.ascontiguousarray(array).tobytes())
        else:
            self._add_instance(value)

    def _add_unordered(self, kind: str, items: Any) -> None:
        """By the hash of each item on its own: neither insertion nor the hash seed has a say."""
        each = []
        for item in items:
            part = _Content()
            part._known = dict(self._known)  # a cycle ends here too
            part.add(item)
            self._modules |= part._modules
            each.append(part._hash.digest())
        self._write(kind, b"".join(sorted(each)))

    def _add_code(self, code: types.CodeType) -> None:
        """Instructions, names and constants; where it stands in a file does not matter."""
        self._write("code", code.co_code)
        self.add((code.co_names, code.co_varnames, code.co_freevars, code.co_argcount))
        self.add((code.co_kwonlyargcount, code.co_flags, code.co_consts))

    def _add_function(self, function: types.FunctionType) -> None:
        module = function.__module__ or ""  # code that was executed out of a text has none
        self._write("function", f"{module}:{function.__qualname__}")
        self.add((function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:
                self._write("empty cell")
        if _is_library(module):
            return
        self.add(function.__code__)
        self._modules.add(module)
        has_source = _source(module) is not None
        for name in sorted(set(_names(function.__code__)) & function.__globals__.keys()):
            self._write("global", name)
            self._add_if(function.__globals__[name], may_fail=has_source)

    def _add_class(self, cls: type) -> None:
        self._write("class", f"{cls.__module__}:{cls.__qualname__}")
        if _is_library(cls.__module__):
            return
        self._modules.add(cls.__module__)
        has_source = _source(cls.__module__) is not None
        self.add(cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            data = not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType))
            if data and name not in _NOT_CONTENT:
                self._write("attribute", name)
                self._add_if(value, may_fail=has_source)

    def _add_if(self, value: Any, *, may_fail: bool) -> None:
        """Add it; where a source says how it was made, a value that cannot be told may be."""
        try:
            self.add(value)
        except _UnknownError:
            if not may_fail:
                raise

    def _add_instance(self, value: Any) -> None:
        """By what pickle would take apart, but without its order of sets and its references."""
        kind = f"{type(value).__module__}:{type(value).__qualname__}"
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise _UnknownError(f"{kind} ({error})") from None
        if isinstance(reduced, str):  # a global name
            self._write("name", f"{kind}:{getattr(value, '__module__', '')}:{reduced}")
            return
        maker, args, state, items, pairs = (*reduced, None, None, None)[:5]
        self._write("object", kind)
        if maker is not copyreg.__newobj__:  # type: ignore[attr-defined]
            self.add(maker)
        self.add(type(value))
        self.add((args, state, list(items or ()), list(pairs or ())))

    def add_sources(self) -> None:
        """The sources of the user's modules met so far, and of those that they import."""
        waiting, seen = sorted(self._modules), set[str]()
        while waiting:
            name = waiting.pop()
            source = None if name in seen or _is_library(name) else _source(name)
            seen.add(name)
            if source is not None:
                tree = ast.parse(source)
                self._write("source", f"{name} {ast.dump(tree)}")  # comments do not count
                waiting.extend(sorted(set(_imports(tree, name)) - seen))


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """NumPy's, JAX's and PyTorch's arrays, but not objects in disguise."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif hasattr(value, "__array__") and hasattr(value, "dtype") and hasattr(value, "shape"):
        try:
            tensor = value.detach().cpu() if hasattr(value, "detach") else value
            # NumPy has no bfloat16 of its own: as doubles, of which every float is one.
            array = np.asarray(tensor.double() if "bfloat" in str(value.dtype) else tensor)
        except Exception:
            return None
    else:
        return None
    return None if array.dtype.hasobject else array


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code and the code inside it refer to."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _imports(tree: ast.Module, name: str) -> Iterator[str]:
    """The modules that a module may import, wherever in it."""
    spec = _spec(name)
    package = name if spec and spec.submodule_search_locations else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            stem = package.split(".")[: len(package.split(".")) + 1 - node.level]
            parts = [*(stem if node.level else []), *([node.module] if node.module else [])]
            base = ".".join(parts)
            yield from _with_parents(base)
            for alias in node.names:
                yield f"{base}.{alias.name}"  # a module, or something in one


def _with_parents(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders.append(str(Path(__file__).parents[1]))  # noisescale itself
    return tuple(Path(folder).resolve() for folder in folders)


def _spec(name: str) -> ModuleSpec | None:
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__spec__", None)
    try:
        return importlib.util.find_spec(name)
    except Exception:  # a parent that is no package, or fails to be imported
        return None


def _file(name: str) -> Path | None:
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None and (spec := _spec(name)) is not None and spec.has_location:
        path = spec.origin
    return None if path is None else Path(path).resolve()


def _is_library(name: str) -> bool:
    if name.partition(".")[0] in (*sys.stdlib_module_names, *sys.builtin_module_names):
        return name != "__main__"
    path = _file(name)
    if path is None:
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or any(path.is_relative_to(folder) for folder in _library_folders())


def _source(name: str) -> str | None:
    path = _file(name)
    if path is None or path.suffix != ".py":
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
