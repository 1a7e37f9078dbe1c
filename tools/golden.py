"""Write the golden numbers of the smoke report anew, after a change that was meant to alter them.

    python tools/golden.py           where the smoke report differs now from what was written
    python tools/golden.py --write   and write it to tests/golden/smoke.json

Two minutes on two cores. The public answers beside it (golden.json, claims.json) stay as they were
recorded: a value that changed goes into ALLOWED of tests/golden/golden.py with its reason.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

from noisescale.paper import run_paper

TESTS = Path(__file__).parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from golden.smoke import smoke_numbers, tolerance  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write tests/golden/smoke.json")
    parser.add_argument("--folder", type=Path, help="of a smoke report that is there already")
    args = parser.parse_args()
    path = TESTS / "golden" / "smoke.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    with tempfile.TemporaryDirectory() as made:
        folder = args.folder or Path(made)
        if args.folder is None:
            run_paper(folder, scale="smoke")
        measured = smoke_numbers(folder)
    for name in sorted(known.keys() | measured.keys()):
        old, new = known.get(name, math.nan), measured.get(name, math.nan)
        if not math.isclose(old, new, rel_tol=tolerance(name), abs_tol=1e-6):
            print(f"{name}: was {old:g}, is {new:g}")
    if args.write:
        text = json.dumps(measured, indent=0, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(f"{len(measured)} numbers written")


if __name__ == "__main__":
    main()
