"""Give shipped data the hash of the present code, where it measures what the old code measured.

    python tools/restamp.py REVISION [SECTION ...]

An edit may change the code that a section's `measure` reaches without changing what it measures.
Both revisions measure the section at smoke scale, in processes of their own; where every number
that the old one has agrees to a relative 1e-4 (networks train in float32, and the order of sums may
differ) and every run has the same key, `results/sections/ID.json` gets the present code's hash.
Elsewhere it is left, and what differs is told: then measure again.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped, shipped_path

ROOT = Path(__file__).parent.parent
TIMES = ("seconds", "duration", "finished")  # of the machine, not of the measurement


# Runs in a process of its own, with the package of either revision on its path.
_MEASURE = """
import json, sys, tempfile
from pathlib import Path
from noisescale.data import load_mnist
from noisescale.jobs.engines import LazyEngine, open_engine
from noisescale.jobs.store import RunStore
from noisescale.paper.keeping import to_plain
from noisescale.paper.section import Context
from noisescale.paper.sections import SECTIONS
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with RunStore(folder, write=True) as store:
        engine = LazyEngine(lambda: open_engine(None, workers=1))
        context = Context(load_mnist(), "smoke", 1, store, engine, folder=folder)
        for name in sys.argv[2:]:
            measured = to_plain(SECTIONS[name].measure(context))
            (folder / f"{name}.json").write_text(json.dumps(measured))
        engine.stop()
"""


def start(source: Path, sections: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    """Measure sections at smoke scale by the code in ``source``; a document each in ``folder``."""
    folder.mkdir()
    script = folder / "measure.py"
    script.write_text(_MEASURE, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, str(script), str(folder), *sections], env=environment)


def differences(old: Any, new: Any, where: str = "") -> Iterator[str]:
    """The places in which two documents differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old):  # what was added says nothing of what was measured
            if not any(word in name for word in TIMES):
                yield from differences(old.get(name), new.get(name), f"{where}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{where}[{k}]")
    elif isinstance(old, float | int) and isinstance(new, float | int):
        if not math.isclose(old, new, rel_tol=1e-4, abs_tol=1e-9):
            yield f"{where}: {old} became {new}"
    elif old != new:
        yield f"{where}: {str(old)[:60]} became {str(new)[:60]}"


def main() -> None:
    revision, *chosen = sys.argv[1:]
    stale = [
        section
        for section in SECTIONS.values()
        if (kept := shipped(section)) is not None and not kept.by_this_code(section)
        if not chosen or section.id in chosen
    ]
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), revision], check=True)
        try:
            names = [section.id for section in stale]
            folders = {"old": tree / "src", "new": ROOT / "src"}
            started = [start(at, names, Path(name) / f"by-{age}") for age, at in folders.items()]
            if any(process.wait() for process in started):
                raise SystemExit("a measurement failed, and says why above: nothing is restamped.")
            for section in stale:
                before, after = (
                    json.loads((Path(name) / f"by-{age}" / f"{section.id}.json").read_text())
                    for age in folders
                )
                if found := list(differences(before, after)):
                    print(f"{section.id}: differs in {len(found)} places, first {found[0]}")
                    continue
                path = shipped_path(ROOT / "results", section)
                document = json.loads(path.read_text(encoding="utf-8"))
                stamped = path.read_text(encoding="utf-8").replace(document["code"], section.code)
                path.write_text(stamped, encoding="utf-8")
                print(f"{section.id}: the same, restamped")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    main()
