"""The answers of an earlier version: a change that alters one of them shows here.

Where a defect was the reason, the value goes into ALLOWED of ``golden.py`` with that reason. The
numbers of the smoke report are written anew by ``python tools/golden.py --write``, and the
difference is reviewed like code.
"""

import json
import math

import pytest

from command_line import run
from golden import golden
from golden.claims import alike, claims_of
from golden.golden import CASES, HERE, differences
from golden.smoke import smoke_numbers, tolerance

_FRAMEWORKS = ("torch_", "optax_")


@pytest.fixture(autouse=True)
def _commands_in_this_process(monkeypatch):
    monkeypatch.setattr(golden, "command", lambda *words: tuple(run(*words)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.frameworks if name.startswith(_FRAMEWORKS) else ())
        for name in CASES
        if name != "verdicts"  # with all that is said of claims, below
    ],
)
def test_the_public_interface_answers_as_before(name):
    assert list(differences(name)) == []


def test_claims_are_judged_as_before(full_scale, tmp_path, monkeypatch):
    """Judged in this process, where other tests need the same."""
    done = run("paper", "--minutes", "0", "--out", tmp_path)
    written = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(golden, "judged", lambda: (done.code, written))
    assert list(differences("verdicts")) == []
    known = json.loads((HERE / "claims.json").read_text(encoding="utf-8"))
    said = claims_of(written)
    assert said.keys() == known.keys()
    assert {
        name: (known[name], said[name]) for name in said if not alike(known[name], said[name])
    } == {}


def test_the_smoke_report_measures_as_before(report, full_mnist):
    known = json.loads((HERE / "smoke.json").read_text(encoding="utf-8"))
    measured = smoke_numbers(report[1])
    assert measured.keys() == known.keys(), "bump the version of what changed, or mend"
    changed = {
        name: (known[name], measured[name])
        for name in known
        if not math.isclose(known[name], measured[name], rel_tol=tolerance(name), abs_tol=1e-6)
    }
    assert changed == {}, "if that is meant: python tools/golden.py --write, and say why"


@pytest.mark.parametrize(
    ("known", "new", "same"),
    [
        ("0.57 ± 0.06, 3 peaks", "0.57 ± 0.07, 3 peaks", True),
        ("0.57 ± 0.06, 3 peaks", "0.57 ± 0.08, 3 peaks", False),
        ("0.57 ± 0.06, 3 peaks", "0.57 ± 0.06, 3 tops", False),
        ("reproduced", "not reproduced", False),
        (0.5690, 0.5691, True),
        (0.5690, 0.5710, False),
        (None, 0.0, False),
    ],
)
def test_a_difference_is_seen_from_the_last_digit_on(known, new, same):
    assert alike(known, new) is same
