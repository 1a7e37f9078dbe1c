"""Which edits measure a section again: those of what it measures, and no others."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import noisescale
from noisescale.paper import SECTIONS
from noisescale.paper.provenance import code_hash

PACKAGE = Path(noisescale.__file__).parent
SCRIPT = (
    "import json; from noisescale.paper import SECTIONS; "
    "print(json.dumps({name: section.code for name, section in SECTIONS.items()}))"
)


def codes_after(folder, *edits):
    """The sections' hashes in a copy of the package with these edits: (file, old, new)."""
    copy = shutil.copytree(
        PACKAGE, folder / "noisescale", ignore=shutil.ignore_patterns("__pycache__")
    )
    for file, old, new in edits:
        path = copy / file
        text = path.read_text()
        assert text.count(old) >= 1, (file, old)
        path.write_text(text.replace(old, new, 1))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_drawings_criteria_comments_and_commands_measure_nothing(tmp_path):
    after = codes_after(
        tmp_path,
        ("paper/figure4.py", 'xlabel="batch size B"', 'xlabel="the batch size"'),  # a drawing
        ("paper/figure4.py", "5 <= largest_failing <= 15", "5 <= largest_failing <= 14"),
        ("paper/appendix_d.py", "max(off.values()) < 3", "max(off.values()) < 4"),  # a criterion
        ("drawing.py", "#0072B2", "#0072B3"),
        ("paper/claims.py", "unmeasured = ", "not_measured = unmeasured = "),
        ("paper/logistic.py", '"""Test images, half of each class."""', '"""How many."""'),
        ("paper/visits.py", "_STEP = 1e-3  # of Langevin;", "_STEP = 1e-3  # the step;"),
        ("jobs/store.py", 'FILE_NAME = "runs.sqlite"', 'FILE_NAME = "other.sqlite"'),
        ("checks.py", "_LARGEST = 2**62", "_LARGEST = 2**61"),
    )
    assert after == {name: section.code for name, section in SECTIONS.items()}


def test_what_is_measured_counts_however_far_away(tmp_path):
    after = codes_after(
        tmp_path,
        ("paper/visits.py", "_STEP = 1e-3", "_STEP = 2e-3"),  # a constant of appendix A
        ("evidence/linear/newton.py", "_MAX_STEPS = 500", "_MAX_STEPS = 499"),  # of the MAP
        ("sweep/peak.py", "_REACH = 3", "_REACH = 4"),  # by which the search and the tuner go on
        ("evidence/occam/dense.py", "ROUNDING = 1e-6", "ROUNDING = 1e-7"),  # of a method, by name
    )
    changed = {name for name, section in SECTIONS.items() if after[name] != section.code}
    assert changed == {"1", "2", "6", "10", "11", "A", "E", "R05-11", "R31"}


def f(x):
    return g(x) + ONE


def g(x):
    return x


ONE = 1


def test_code_outside_the_package_is_its_name_alone():
    assert code_hash(f) == code_hash(f)
    assert code_hash(f) != code_hash(g)
