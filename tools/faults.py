"""How many planted one-line faults the tests find.

    python tools/faults.py choose --faults FILE                   # 40 faults, drawn with a seed
    python tools/faults.py run --faults FILE --out FILE           # plant each, run its room's tests
    python tools/faults.py show FILE... [--after FILE...]         # what was found, as a table

A fault is a path, a line and what it is replaced by, so the same faults can be planted in a later
tree. ``run`` goes on where it was stopped. ``--with nice`` puts a command before pytest,
``--share 1/2`` takes every second fault, for two trees side by side.
``--begin-for 300`` begins none after so many seconds, and exits with 75 if there is more to do.
"""

import argparse
import ast
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent.parent
PACKAGE = "src/noisescale"
TESTS_OF = {  # folders or files; a room below another comes first
    "linear": ["tests/evidence/linear"],
    "evidence": ["tests/evidence"],
    "torch": ["tests/pytorch"],
    "paper": [
        "tests/paper",
        "tests/test_results.py",
        "tests/test_documented_numbers.py",
    ],
    **{r: [f"tests/{r}"] for r in ("noise", "training", "jobs", "sweep", "tune", "data", "cli")},
    "top": ["tests"],  # the files of the folder itself that are no other room's
}
_OF_THE_DOCS = ("test_docs.py", "test_examples.py", "test_site.py")

# Modules and functions that are drawing, or words, or on the list of what goes.
_MODULES = re.compile(
    r"drawing|/style|/text\.py|notebook|/pages?\.py|cli/reports|recipe_words|_table\.py|script\.py"
    r"|/examples\.py|embedded|imports\.py|_version|schedule_formats"
    r"|evidence/timing|row_timing|outlook|occam/(mixed|band|deflation|bounds|kept)|annealed/gap"
    r"|torch/(langevin|packed)|sweep/listing|paper/(second|statistics)|playground|pace\.py"
)
_FUNCTIONS = re.compile(
    r"draw|plot|picture|repr|__str__|html|words|sentence|describe|notes?$|hint|remark|caption|label"
    r"|second|again$|fashion|salvage|copy_readable|checkpoint|cooled_back|keeper|layouts|divisors"
    r"|less_accumulation|_nearby|_within|outlook|foretell|columns|whole_first|among|aside"
    r"|_look_below|_recommend|numbers|held$|cost|draws$|fits$|passes"
    r"|flops|at_once|_load$|block|_tasks|chunk|memory|bytes|fitting"
)
_OVERRIDDEN = {"_find_batch_size", "_grow", "_retune", "_suspect", "_without_peak", "_finish"}
_LINES = re.compile(
    r"block|bytes|chunk|memory|timeout|seconds|sleep|flops|GiB|MiB|axes|figure\b|\bax\.|fontsize"
    r"|Literal|stacklevel|short\(|SECOND|salvage|checkpoint|fashion|print\(|format\(|width|indent"
    r'|attended|DRAWS|held|numbers|PRICE|\*\* 3\b|uniform\(|facts|SMALL|\bkept\b|NAMED|"mnist"',
    re.IGNORECASE,
)
_WORDS = {"str", "Figure", "Axes", "Picture"}  # what a function returns that makes words, pictures
_COMMUTE = {"min", "max", "minimum", "maximum", "logaddexp", "isclose", "allclose", "array_equal"}
_TYPE = re.compile(r"^(np|jnp|torch)\.(float|int|bool)|^(float|int|str|bool)$")
_NO_ORDER = _COMMUTE | {
    "isinstance",
    "getattr",
    "hasattr",
    "cast",
    "warn",
    "field",
    "stage",
    "hypot",
}


class Faults(ast.NodeVisitor):
    """Every candidate of a module: ``(kind, line number, new line, function)``."""

    def __init__(self, source: str):
        self.lines, self.found, self.inside = source.splitlines(), [], [""]
        self.visit(ast.parse(source))

    def _add(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        if node.lineno != node.end_lineno:
            return
        old = self.lines[node.lineno - 1]
        raw = old.encode()
        line = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
        if not _LINES.search(old) and line != old and self.lines.count(old) == 1:
            self.found.append((kind, node.lineno, line, self.inside[-1]))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        returned = {n.id for n in ast.walk(node.returns or ast.Pass()) if isinstance(n, ast.Name)}
        if _FUNCTIONS.search(node.name) or node.name in _OVERRIDDEN or returned & _WORDS:
            return
        self.inside.append(node.name)
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)
        self.inside.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def _skip(self, node: ast.AST) -> None:
        """Words, refusals."""

    visit_JoinedStr = visit_Raise = visit_Assert = _skip  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._scale(node.value)
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._scale(node.value)
        self.visit(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
        if type(node.op) in other and not _is_text(node):
            swapped = ast.BinOp(node.left, other[type(node.op)](), node.right)
            plain = isinstance(node.op, (ast.Mult, ast.Div))
            self._add("factor" if plain else "sign", node, f"({ast.unparse(swapped)})")
            if not plain:
                self._add("dropped term", node, f"({ast.unparse(node.left)})")
        self._scale(node.left)
        self._scale(node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        other = {ast.Add: ast.Sub, ast.Sub: ast.Add}.get(type(node.op))
        if other and not _is_text(node):
            self._add("sign", node, ast.unparse(ast.AugAssign(node.target, other(), node.value)))
        self.visit(node.value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self._add("sign", node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        other = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
        for at, op in enumerate(node.ops):
            if type(op) in other:
                ops = [*node.ops[:at], other[type(op)](), *node.ops[at + 1 :]]
                new = ast.unparse(ast.Compare(node.left, ops, node.comparators))
                self._add("off by one", node, new)
                self._scale(node.comparators[at])
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        at = node.slice
        ends = (at.lower, at.upper) if isinstance(at, ast.Slice) else (at,)
        for end in filter(None, ends):
            try:
                number = ast.literal_eval(end)
            except ValueError:
                continue
            if type(number) is int:
                self._add("off by one", end, str(number + (1 if number >= 0 else -1)))
        self.visit(node.value)
        if not isinstance(at, ast.Constant):
            self.visit(at)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func).rpartition(".")[2]
        given = [ast.unparse(part) for part in node.args]
        if name not in _NO_ORDER and not any(map(_is_text, node.args)):
            for first, second in zip(node.args, node.args[1:], strict=False):
                types = _TYPE.search(ast.unparse(first)) or _TYPE.search(ast.unparse(second))
                if not types and not {type(first), type(second)} & {
                    ast.Starred,
                    ast.GeneratorExp,
                    ast.Lambda,
                }:
                    at = node.args.index(first)
                    new = [*given[:at], given[at + 1], given[at], *given[at + 2 :]]
                    extra = [ast.unparse(part) for part in node.keywords]
                    said = f"{ast.unparse(node.func)}({', '.join(new + extra)})"
                    self._add("swapped arguments", node, said)
        for part in (node.func, *node.args, *(k.value for k in node.keywords if k.arg != "axis")):
            self.visit(part)

    def _scale(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            if abs(node.value) < 1e-6:  # zero, or room for rounding
                return
            self._add("factor", node, repr(2 * node.value))


def _is_text(node: ast.AST) -> bool:
    """Words or lists: their + joins."""
    joins = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.Set)
    return any(
        isinstance(part, joins) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def room_of(path: str) -> str:
    parts = path.removeprefix(f"{PACKAGE}/").split("/")
    if parts[:2] == ["evidence", "linear"]:
        return "linear"
    return parts[0] if len(parts) > 1 else "top"


def code_lines(source: str) -> int:
    tree = ast.parse(source)
    return len({node.lineno for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.expr))})


def choose(seed: int, total: int) -> list[dict]:
    """Faults by room in proportion to its code, two at least; kinds alike, one a module."""
    sizes, candidates = Counter(), {}
    for file in sorted((HERE / PACKAGE).rglob("*.py")):
        path = str(file.relative_to(HERE))
        if _MODULES.search(path):
            continue
        source = file.read_text(encoding="utf-8")
        room = room_of(path)
        sizes[room] += code_lines(source)
        lines = source.splitlines()
        for kind, number, new, function in Faults(source).found:
            changed = [*lines[: number - 1], new, *lines[number:]]
            same = ast.dump(ast.parse("\n".join(changed))) == ast.dump(ast.parse(source))
            if not same:
                fault = {"room": room, "path": path, "kind": kind, "function": function}
                fault |= {"old": lines[number - 1], "new": new, "occurrence": 1}
                candidates.setdefault(room, {}).setdefault(kind, []).append(fault)
    counts = dict.fromkeys(sizes, 2)
    while sum(counts.values()) < total:
        counts[max(sizes, key=lambda room: sizes[room] / (counts[room] + 0.5))] += 1
    chosen = []
    for room in TESTS_OF:
        taken, draw = set(), random.Random(f"{seed} {room}")
        while len(taken) < counts[room]:
            fault = draw.choice(candidates[room][draw.choice(sorted(candidates[room]))])
            if fault["path"] not in taken:
                taken.add(fault["path"])
                chosen.append({"id": len(chosen) + 1, **fault})
    return chosen


def tests_of(fault: dict) -> Iterator[list[str]]:
    """Test files in the order they are asked: named like the module, naming it, the others."""
    room, module = fault["room"], Path(fault["path"])
    others = {p for r, paths in TESTS_OF.items() if r != "top" for p in paths}
    every = sorted((HERE / "tests").rglob("test_*.py"))
    own = []
    for file in every:
        path = str(file.relative_to(HERE))
        if room == "top":
            if file.parent.name == "tests" and path not in others and file.name not in _OF_THE_DOCS:
                own.append(file)
        elif any(path == p or path.startswith(f"{p}/") for p in TESTS_OF[room]):
            own.append(file)
    stem = module.stem if module.stem != "__init__" else module.parent.name
    named = [f for f in own if stem in f.stem]
    if room == "top" and not named:
        named = [f for f in every if stem in f.stem]
    dotted = ".".join(module.with_suffix("").parts[1:]).removesuffix(".__init__")
    tree = ast.parse((HERE / module).read_text(encoding="utf-8"))
    names = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    words = "|".join([re.escape(dotted), *(n for n in names if n[0] != "_" and len(n) > 4)])
    about = [
        f for f in own if f not in named and re.search(rf"\b({words})\b", f.read_text("utf-8"))
    ]
    rest = [f for f in own if f not in named and f not in about]
    yield from (
        [str(f.relative_to(HERE)) for f in files] for files in (named, about, rest) if files
    )


def ask(fault: dict, before: list[str], limit: float) -> dict:
    """The first failing test of the room, within so many seconds."""
    env = os.environ | {"PYTHONPATH": str(HERE / "src")}
    answer = {"found": "not caught", "by": "", "seconds": 0.0, "passed": 0}
    for files in tests_of(fault):
        left = max(limit - answer["seconds"], 10)
        command = [*before, "timeout", "-k", "10", f"{left:.0f}", sys.executable, "-m", "pytest"]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly", "-x", "-v", "--tb=line"]
        command += ["-m", "not long", *files]
        ran = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True)
        took = re.findall(r" in ([\d.]+)s", ran.stdout)[-1:]
        answer["seconds"] += float(took[0]) if took else left
        answer["passed"] += len(re.findall(r" PASSED", ran.stdout))
        if ran.returncode in (124, 137):  # named: the test that was running
            running = re.findall(r"^(tests/\S+::\S+)", ran.stdout, re.M)[-1:]
            return answer | {"found": "timeout", "by": "".join(running)}
        if ran.returncode not in (0, 5):
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.M)
            return answer | {"found": "caught", "by": (failed or [ran.stdout[-200:]])[0]}
    return answer


def plant(fault: dict) -> Path | None:
    """Put it where its line stands now; None if that is nowhere, or no longer one place."""
    every = [HERE / fault["path"], *sorted((HERE / PACKAGE).rglob("*.py"))]
    texts = {p: p.read_text(encoding="utf-8").splitlines() for p in every if p.exists()}
    there = [p for p, lines in texts.items() if fault["old"] in lines]
    if not there or (len(there) > 1 and there[0] != every[0]):
        return None
    lines = texts[there[0]]
    places = [at for at, line in enumerate(lines) if line == fault["old"]]
    if len(places) < fault["occurrence"]:
        return None
    lines[places[fault["occurrence"] - 1]] = fault["new"]
    there[0].write_text("\n".join(lines) + "\n", encoding="utf-8")
    return there[0]


def run(faults: list[dict], out: Path, before: list[str], limit: float, begin_for: float) -> None:
    end = time.monotonic() + begin_for
    if subprocess.run(["git", "diff", "--quiet", "--", PACKAGE], cwd=HERE).returncode:
        sys.exit(f"{PACKAGE} has changes: commit them, or take back a fault that was left behind")
    for fault in faults:
        done = json.loads(out.read_text()) if out.exists() else {}
        if str(fault["id"]) in done:
            continue
        if time.monotonic() > end:
            sys.exit(75)  # more to do
        file = plant(fault)
        try:
            answer = ask(fault, before, limit) if file else {"found": "gone"}
        finally:
            if file:
                subprocess.run(
                    ["git", "checkout", "--quiet", "--", str(file)], cwd=HERE, check=True
                )
        done[str(fault["id"])] = fault | answer
        out.write_text(json.dumps(done, indent=1) + "\n")
        print(fault["id"], fault["room"], fault["path"], *answer.values(), flush=True)


def show(files: list[Path], after: list[Path]) -> None:
    """The table; with what a later tree found, and what was caught before and is not any more."""
    first, later = (
        {int(k): v for file in paths for k, v in json.loads(file.read_text()).items()}
        for paths in (files, after)
    )
    heads = ["#", "room", "file", "line", "planted", "found", "by", "s", *["after"] * bool(after)]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for number, fault in sorted(first.items()):
        path = fault["path"].removeprefix(f"{PACKAGE}/")
        cells = [number, fault["room"], path, f"`{fault['old'].strip()}`"]
        cells += [f"`{fault['new'].strip()}`", fault["found"], fault.get("by", "")]
        cells += [f"{fault.get('seconds', 0):.0f}"]
        if after:
            cells.append(later.get(number, {"found": "not run"})["found"])
        print("|", " | ".join(str(cell).replace("|", "\\|") for cell in cells), "|")
    for done in (first, later) if after else (first,):
        counts = Counter(fault["found"] for fault in done.values())
        print("\n" + ", ".join(f"{n} {found}" for found, n in counts.most_common()))
    caught = ("caught", "timeout")
    lost = [n for n in later if first[n]["found"] in caught and later[n]["found"] not in caught]
    if after:
        print("caught before, not after:", *(lost or ["none"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("choose", "run", "show"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--faults", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--after", nargs="*", type=Path, default=[])
    parser.add_argument("--seed", type=int, default=35)
    parser.add_argument("--total", type=int, default=40)
    parser.add_argument("--limit", type=float, default=400, help="seconds a fault")
    parser.add_argument("--with", dest="before", default="")
    parser.add_argument("--begin-for", type=float, default=math.inf, help="seconds of a sitting")
    parser.add_argument("--share", default="1/1")
    given = parser.parse_args()
    if given.what == "choose":
        made = choose(given.seed, given.total)
        given.faults.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        for fault in made:
            print(f"{fault['id']} {fault['room']} {fault['path']} ({fault['kind']})")
            print(f"    {fault['old'].strip()}\n    {fault['new'].strip()}")
    elif given.what == "run":
        first, step = map(int, given.share.split("/"))
        faults = json.loads(given.faults.read_text(encoding="utf-8"))[first - 1 :: step]
        run(faults, given.out, given.before.split(), given.limit, given.begin_for)
    else:
        show(given.files, given.after)


if __name__ == "__main__":
    main()
