"""The default report: verdicts at once, then a sample run again. Real runs, but tiny ones."""

import json
import re
import shutil
from dataclasses import replace
from html import escape
from types import SimpleNamespace

import pytest

from command_line import run
from noisescale import training
from noisescale.data import DataUnavailableError
from noisescale.errors import InputError
from noisescale.jobs.progress import Progress
from noisescale.paper import SECTIONS, checking, redraw, run_paper, slices, stages
from noisescale.paper.checking import check_shipped
from noisescale.paper.report import page_environment
from noisescale.paper.report.checked import check_part
from noisescale.paper.slices import SLICES, Compared, compare
from noisescale.paper.spot_check import classify, conclude_agreement
from noisescale.sweep import RunStore, make_plan, run_sweep
from oracles.here import Here

SECTION = ["units"]  # the quickest to judge and draw


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A few tiny runs as if they had been shipped with the section ``units``."""
    plan = make_plan(
        {
            "data": "digits",
            "n_train": 200,
            "learning_rate": 0.1,
            "momentum": 0.5,
            "steps": 60,
            "hidden_widths": (),
            "cost_convention": "per_class",
            "evaluate_at": "final",
        },
        grid={"batch_size": (5, 20, 60, 180)},
        seeds=2,
    )
    frame = run_sweep(plan, tmp_path_factory.mktemp("shipped"), Here())
    return classify(frame.assign(section="units", taken=None))


@pytest.fixture
def tiny(shipped, monkeypatch):
    """A check is of these runs."""
    monkeypatch.setattr(checking, "shipped_runs", lambda sections: shipped)


def check(out, **changes):
    request = {"only": SECTION, "check_seed": 1, "executor": Here(), "minutes": 1_000}
    return run_paper(out, **(request | changes))


def count(monkeypatch, name):
    """Counts the calls of a function of ``stages``."""
    calls, function = [], getattr(stages, name)

    def counted(*arguments, **options):
        calls.append(name)
        return function(*arguments, **options)

    monkeypatch.setattr(stages, name, counted)
    return calls


@pytest.fixture(scope="module")
def told(shipped, tmp_path_factory):
    """What the command line printed, its report, how often that was written."""
    out = tmp_path_factory.mktemp("report")
    arguments = ("paper", "--only", *SECTION, "--minutes", "1000", "--workers", "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "shipped_runs", lambda sections: shipped)
        patch.setattr("noisescale.jobs.engines.LocalEngine", lambda *_, **__: Here())
        reports = count(patch, "_write_report")
        return run(*arguments, "--check-seed", "1", "--out", out), out, len(reports)


def test_the_command_line_tells_the_verdicts_then_the_check(told):
    done, out, n_reports = told
    assert n_reports == 2  # the answer, and the same with the check
    lines = done.out.strip().splitlines()
    (headline,) = [n for n, line in enumerate(lines) if "shipped data judged here)." in line]
    assert lines[headline].startswith("40 claims: ")
    place = f"Report: {(out / 'index.html').resolve()}"
    assert place in lines[headline + 1 : -1]
    assert lines[-1] == place
    assert lines[-2].startswith("8 shipped runs, 8 run again here: ")
    assert done.code == 0
    done = run("report", out)
    assert "8 shipped runs, 8 run again here: " in done.out
    done = run("report", out, "--json")
    assert json.loads(done.out)["check"]["seed"] == 1


def test_runs_are_made_again_and_agree(told, shipped):
    report = redraw(told[1])
    found = report.check
    assert len(found.runs.pairs) == len(shipped) == 8
    assert found.conclusion in ("agree", "not enough runs")
    assert all(abs(pair.difference) <= 0.01 for pair in found.runs.pairs)
    assert str(found).startswith(f"8 shipped runs, 8 run again here: {found.conclusion}")
    assert report.claims["check"]["told"] == str(found)
    assert found.speed > 0
    with RunStore(told[1]) as store:
        assert set(store.statuses()) == set(shipped["key"])


def test_the_page_shows_run_by_run_and_the_same_again(told):
    index = told[1] / "index.html"
    page = index.read_text()
    report = redraw(told[1])
    assert index.read_text() == page
    assert str(report.check)[:60] in page
    assert page.count("60 updates, seed") == 8 + 1  # and the picture's words
    assert "Measured here" not in page
    assert "<em>single</em> wrong run among the 8" in page
    assert "if its accuracy is wrong by 0.01" in page
    assert "had all accuracies of a section been off by 0.01" in page


def test_what_is_wrong_is_found_and_shown(told):
    found = redraw(told[1]).check
    pairs = [replace(pair, shipped=pair.shipped - 0.4) for pair in found.runs.pairs]
    wrong = replace(found, runs=conclude_agreement(pairs, 8))
    assert wrong.conclusion == "disagree"
    assert "disagree (section units" in str(wrong)
    page = check_part(wrong, page_environment())
    assert "What refutes agreement" in page
    assert escape(wrong.runs.alarms[0].what) in page
    none = check_part(replace(found, runs=replace(found.runs, pairs=[])), page_environment())
    assert "<svg" not in none  # there is nothing to draw


@pytest.fixture
def copied(told, tmp_path):
    """A copy of the checked report, and where it keeps its check."""
    out = shutil.copytree(told[1], tmp_path / "copy")
    return out, out / "measured" / "spot-check.json"


def test_an_earlier_check_is_there_until_the_new_one_is(tiny, copied, monkeypatch):
    out, kept = copied
    earlier, there = kept.read_text(), []

    class Looking(Progress):
        def line(self, text):
            there.append(kept.read_text() == earlier)

    reports, judged = count(monkeypatch, "_write_report"), count(monkeypatch, "verdicts_of")
    check(out, progress=Looking(), check_seed=2)
    assert there
    assert all(there)
    assert json.loads(kept.read_text())["check"]["seed"] == 2
    assert len(reports) == 2  # the answer, and with the check
    assert len(judged) == 1


def test_a_check_is_shown_of_the_sections_and_the_noisescale_that_it_is_of(copied):
    out, kept = copied
    document = json.loads(kept.read_text())
    assert document["sections"] == SECTION
    assert redraw(out).check is not None
    for change in ({"sections": ["4"]}, {"version": "0.0"}):
        kept.write_text(json.dumps(document | change))
        made = redraw(out)
        assert made.check is None
        assert made.claims["check"]["told"] == "not checked yet"
        assert json.loads(kept.read_text()) == document | change
    kept.write_text(json.dumps({"check": document["check"]}))  # as it was
    assert redraw(out).check is not None


DAMAGED = ["{", "[]", '{"check": null}', "[" * 100_000]


@pytest.mark.parametrize("text", [*DAMAGED, "one more field"])
def test_a_check_that_cannot_be_read_is_told_and_left(copied, text):
    out, kept = copied
    if text == "one more field":
        text = kept.read_text().replace('"seed"', '"surprise":1,"seed"')
    kept.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(kept))):
        redraw(out)
    assert kept.read_text() == text
    made = check(out, minutes=0)  # it needs no earlier check
    assert made.check is None
    assert kept.read_text() == text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"schema": 1', '"schema": 2'),
        ('"seeds": 5', '"seeds": 0'),
        ('"seeds": 5', '"seeds": "5"'),
        ('"scale": "check"', '"scale": "huge"'),
        ('"complete": true', '"complete": 1'),
        ('"units"', '"Z"'),
        ('"units"', "7"),
    ],
)
def test_what_claims_json_begins_with_is_checked(copied, old, new):
    path = copied[0] / "claims.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=re.escape(str(path))):
        redraw(copied[0])


def test_a_store_is_opened_only_if_something_is_run(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("noisescale.jobs.store.network_file_system", lambda path: "nfs4")
    made = check(tmp_path, minutes=0)
    assert redraw(tmp_path).claims["claims"] == made.claims["claims"]
    assert not list(tmp_path.glob("runs.sqlite*"))
    with pytest.raises(InputError, match="lies on a network file system"):
        check(tmp_path)


def boom(context):
    raise RuntimeError("boom")


def test_a_slice_that_crashes_disagrees(monkeypatch):
    monkeypatch.setitem(SLICES, "A", replace(SLICES["A"], measure=boom))
    asked = [SECTIONS["A"]]
    found = check_shipped(asked, minutes=1_000, seed=0, engine=Here(), progress=Progress())
    assert found.conclusion == "disagree"
    told = str(found)
    assert told.startswith("disagree: 1 re-measurement ended in an error, the first: section A: ")
    assert "boom" in told
    assert "no run came to its end" not in told
    assert "which is a disagreement" in check_part(found, page_environment())


def test_runs_that_crash_disagree(tiny, monkeypatch, tmp_path):
    def train(*arguments, batch_size, **options):
        if batch_size == 5:
            raise RuntimeError("boom")
        return training.train(*arguments, batch_size=batch_size, **options)

    monkeypatch.setattr("noisescale.sweep.work.train", train)
    made = check(tmp_path)
    found = made.check
    assert len(found.runs.pairs) == 6
    assert (found.conclusion, made.claims["check"]["conclusion"]) == ("disagree", "disagree")
    assert str(found).startswith(
        "disagree: 2 re-measurements ended in an error, the first: digits, ε = "
    )
    assert str(found) in made.claims["check"]["told"]
    assert "RuntimeError: boom</li>" in made.index.read_text()


def test_without_time_the_verdicts_stand(tiny, tmp_path):
    made = check(tmp_path, minutes=0)
    assert made.check is None
    page = made.index.read_text()
    assert "has not been run to its end" in page
    assert {row["id"] for row in made.claims["claims"]} >= {"C01", "C40"}
    assert made.claims["scale"] == "check"
    assert not (tmp_path / "measured").exists()


def test_without_images_the_verdicts_stand(monkeypatch, tmp_path):
    def nowhere(name):
        raise DataUnavailableError("no network")

    monkeypatch.setattr(checking, "load_kept", nowhere)
    monkeypatch.setattr("noisescale.jobs.engines.LocalEngine", lambda *_, **__: pytest.fail("runs"))
    made = check(tmp_path, only=["4"])
    assert str(made.check).startswith("not checked: MNIST is not on this machine")
    page = made.index.read_text()
    assert "not checked: MNIST is not on this machine" in page
    assert "The verdicts stand" in page
    verdicts = {row["id"]: row["verdict"] for row in made.claims["claims"]}
    assert (verdicts["C16"], verdicts["C17"]) == ("reproduced", "reproduced")


def test_ctrl_c_leaves_the_verdicts_and_what_was_run(tiny, tmp_path):
    class Interrupting(Progress):
        def finished(self, run, record):
            super().finished(run, record)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(tmp_path, progress=Interrupting())
    page = (tmp_path / "index.html").read_text()
    assert "the check was interrupted" in page
    told = json.loads((tmp_path / "claims.json").read_text())["check"]["told"]
    assert re.match(r"8 shipped runs, [1-8] run again here: not enough runs.*interrupted", told)


def test_bad_requests_are_refused_before_any_work(tmp_path, monkeypatch):
    def refuse(match, **changes):
        with pytest.raises(InputError, match=match):
            run_paper(tmp_path / "out", **changes)

    refuse("minutes must be a finite number from 0 to 1440, got -1", minutes=-1)
    refuse("check_seed must be at least 0, got -1", check_seed=-1)
    refuse("the scale check measures no seeds afresh, got seeds = 3", seeds=3)
    refuse("scale must be one of check, smoke, quick, full, got 'huge'", scale="huge")
    refuse("minutes is of the scale check, got .* at the scale smoke", scale="smoke", minutes=0)
    refuse("check_seed is of the scale check, got .* = 7 at", scale="full", check_seed=7)
    for given in (("--minutes", "1"), ("--check-seed", "7")):
        done = run("paper", "--scale", "smoke", "--out", tmp_path / "out", *given)
        assert "is of the scale check" in done.sentence
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(stages, "shipped", lambda section: None)
    refuse("no full-scale data of these sections ship", only=SECTION)
    assert not (tmp_path / "out" / "index.html").exists()


def test_slices_name_the_shipped_numbers():
    for name, one in SLICES.items():
        for section in one.sections:
            told = one.shipped(slices.shipped_data(section))
            compared = compare(name, told)
            assert {row.quantity for row in compared} == set(told)
            assert all(row.agrees for row in compared)


def test_a_slice_that_is_off_disagrees():
    (section,) = SLICES["A"].sections
    told = SLICES["A"].shipped(slices.shipped_data(section))
    off = told | {"shares of the evidence": told["shares of the evidence"] + 1e-3}
    rows = {row.quantity: row for row in compare("A", off)}
    assert not rows["shares of the evidence"].agrees
    assert rows["ln evidence by Laplace"].agrees
    missing = compare("A", told | {"shares of the evidence": [0.1]})
    assert [row.agrees for row in missing] == [True, True, False]


def test_a_slice_measured_here_agrees():
    """Appendix D's fluctuations on the quadratic, which need no images."""
    here = SLICES["D"].measure(SimpleNamespace(scale="full"))
    assert all(isinstance(row, Compared) and row.agrees for row in compare("D", here))
