"""The tables in results/ still say what the documentation says they do."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import noisescale as ns
from noisescale.paper import SECTIONS
from noisescale.paper.claims import all_claims
from noisescale.paper.shipped import runs_of, shipped

RESULTS = Path(__file__).parent.parent / "results"


def test_the_best_batch_size_of_figure_4():
    peak = ns.find_peak(pd.read_csv(RESULTS / "figure4.csv"))
    assert peak.best == 20
    assert peak.n_seeds == 5
    assert peak.fitted == pytest.approx(21.4, abs=0.5)
    assert peak.corrected is not None
    assert peak.corrected.value == pytest.approx(20.7, abs=0.5)  # the cubic's bias taken off


def test_the_verdicts_in_the_documentation_are_those_of_the_results(full_scale):
    judged = [
        judgement
        for section in SECTIONS
        for judgement in full_scale(section).judgements
        if judgement.primary
    ]
    verdicts = {judgement.id: judgement.verdict.value for judgement in judged}
    page = (RESULTS.parent / "docs" / "paper.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| <a id=.*></a>(C\d\d) \|.*\| ([a-z ]+) \|$", page, re.MULTILINE))
    assert len(told) == 46
    assert told == {claim.id: verdicts.get(claim.id, "not measured") for claim in all_claims()}
    counts = Counter(told[claim.id] for claim in all_claims() if not claim.own)
    summary = f"**{counts['reproduced']} reproduced, {counts['not reproduced']} not reproduced, "
    assert summary in page


def test_tables_are_small_and_name_every_run():
    tables = sorted({*RESULTS.glob("figure*.csv"), RESULTS / "curves.csv"})
    assert len(tables) >= 5
    assert sum(path.stat().st_size for path in tables) < 2_000_000
    for path in tables:
        frame = pd.read_csv(path)
        keys = frame["key"]
        assert not frame.duplicated(["key", "step"] if "step" in frame else "key").any()
        assert keys.str.len().eq(64).all()


def test_a_table_has_all_runs_of_its_section():
    tables = sorted(RESULTS.glob("figure*.csv"))
    for path in tables:
        section = SECTIONS[path.stem.removeprefix("figure").removeprefix("-")]
        named = {key for runs in runs_of(shipped(section).data) for key in runs.keys}
        assert set(pd.read_csv(path)["key"]) == named, path.name
