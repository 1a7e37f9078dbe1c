"""The layers of the package: a room may import from the layers below its own, and from no others.

    python tools/layers.py        # one line for each import that points up or sideways

Every import statement counts, wherever it stands: at the top of a module, inside a function, under
``TYPE_CHECKING``. Only the package's own ``__init__``, which lists the public names, sees all.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "noisescale"

# From the roof down. Rooms of one layer do not know each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("lightning", "transformers", "skorch"),
    ("paper", "torch", "sklearn", "optax", "examples"),
    ("tune",),
    ("sweep",),
    ("noise",),
    ("evidence",),
    ("training",),
    ("jobs", "data"),
)
# The ground, whose modules may lean on one another.
BASE = (
    "_version",
    "arrays",
    "checks",
    "drawing",
    "errors",
    "files",
    "imports",
    "jax_nlls",
    "likelihood",
    "notebook",
    "plain",
    "saved",
    "seeds",
    "text",
    "uncertainty",
)
DEPTH = {room: depth for depth, rooms in enumerate((*LAYERS, BASE)) for room in rooms}


def imported(path: Path, package: str) -> Iterator[str]:
    """The dotted names that a module of ``package`` imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            home = [*above * bool(node.level), *filter(None, [node.module])]
            yield from (".".join([*home, alias.name]) for alias in node.names)


def violations(source: Path = SOURCE) -> list[str]:
    """One line for each module without a layer and each import that does not lead downwards."""
    wrong = set()
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        own, module = parts[0], ".".join(part for part in parts if part != "__init__")
        if own == "__init__":
            continue
        if own not in DEPTH:
            wrong.add(f"{module} is in no layer")
            continue
        for name in imported(path, ".".join(("noisescale", *parts[:-1]))):
            top, _, rest = name.partition(".")
            room = rest.partition(".")[0]
            if top != "noisescale" or room == own:
                continue
            if room not in DEPTH:  # a public name, not the room that it lives in
                wrong.add(f"{module} imports {room or 'noisescale'}, which is in no layer")
            elif DEPTH[room] <= DEPTH[own] and not {own, room} <= set(BASE):
                wrong.add(f"{module} imports {room}")
    return sorted(wrong)


if __name__ == "__main__":
    wrong = violations()
    for line in wrong:
        print(f"noisescale.{line}: CONTRIBUTING.md shows which way imports may point")
    sys.exit(bool(wrong))
