"""The tables in results/ still say what the documentation says they do."""

import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import noisescale as ns
from noisescale.noise.recipe import SEEN_POWER
from noisescale.paper import SECTIONS
from noisescale.paper.claims import all_claims
from noisescale.paper.shipped import shipped

RESULTS = Path(__file__).parent.parent / "results"


def test_the_best_batch_size_of_figure_4():
    peak = ns.find_peak(pd.read_csv(RESULTS / "figure4.csv"))
    assert peak.best == 20
    assert peak.n_seeds == 3
    assert peak.fitted == pytest.approx(21, abs=1)


def test_the_rule_for_momentum():
    rule = ns.fit_scaling_rule(pd.read_csv(RESULTS / "figure7.csv"), "momentum")
    assert rule.n_resolved == 4
    assert 1 in rule.slope
    assert rule.slope.value == pytest.approx(1.05, abs=0.02)


def test_the_rule_for_the_learning_rate():
    runs = pd.read_csv(RESULTS / "figure5.csv")
    main = runs.learning_rate.isin([0.1, 0.3, 1, 1.8, 3, 5.6, 10, 18])
    main &= (runs.n_train == 1_000) & (runs.momentum == 0.9)
    rule = ns.fit_scaling_rule(runs[main], "learning_rate")
    assert rule.n_resolved == 6
    assert 1 in rule.slope
    assert rule.slope.value == pytest.approx(1.04, abs=0.02)


def test_the_rule_for_the_training_set():
    runs = pd.read_csv(RESULTS / "figure6.csv")
    runs = runs[(runs.steps == 10_000) & (runs.n_train >= 20_000)]
    rule = ns.fit_scaling_rule(runs, "n_train")
    assert rule.n_resolved == 5
    # What recipes say of it.
    for part in ("value", "low", "high"):
        assert round(getattr(rule.slope, part), 2) == getattr(SEEN_POWER, part)


def test_the_verdicts_in_the_documentation_are_those_of_the_results():
    judged = [
        judgement
        for section in SECTIONS.values()
        if (kept := shipped(section)) is not None
        for judgement in section.judge(kept.data).judgements
        if judgement.primary
    ]
    verdicts = {judgement.id: judgement.verdict.value for judgement in judged}
    page = (RESULTS.parent / "docs" / "paper.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| (C\d\d) \|.*\| ([a-z ]+) \|$", page, re.MULTILINE))
    assert len(told) == 40
    assert told == {claim.id: verdicts.get(claim.id, "not measured") for claim in all_claims()}
    counts = Counter(told.values())
    summary = f"{counts['reproduced']} reproduced, {counts['not reproduced']} not\nreproduced"
    assert summary in page


def test_tables_are_small_and_name_every_run():
    tables = sorted(RESULTS.glob("*.csv"))
    assert len(tables) >= 5
    assert sum(path.stat().st_size for path in tables) < 2_000_000
    for path in tables:
        frame = pd.read_csv(path)
        keys = frame["key"]
        assert not frame.duplicated(["key", "step"] if "step" in frame else "key").any()
        assert keys.str.len().eq(64).all()
