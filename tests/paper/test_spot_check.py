"""Samples of shipped runs, and what they say: on the shipped runs themselves, simulated."""

import math

import numpy as np
import pytest

from noisescale.paper import SECTIONS
from noisescale.paper.checking import shipped_runs
from noisescale.paper.spot_check import (
    LEVEL,
    MARGIN,
    Pair,
    chances,
    choose,
    classify,
    conclude_agreement,
    shifts_noticed,
)
from noisescale.seeds import random_stream
from noisescale.sweep.tables import config_of

SECONDS = 400.0  # of one core: five minutes of two, less what slices take
# Rounding carried by training, against the noise from seed to seed: little from the peak upwards,
# all of it below.
ROUNDING = {"settled": 0.2, "chaotic": 1.0}


@pytest.fixture(scope="module")
def runs():
    return shipped_runs(list(SECTIONS.values()))


def check(runs, seed, *, shipped=None, rounding=ROUNDING):
    """A simulated check: what comes out here is what was shipped before ``shipped`` was altered."""
    told = runs["test_accuracy"] if shipped is None else shipped
    rng = random_stream(seed, "another machine")
    rows = runs.assign(told=told).set_index("key").loc[choose(runs, seconds=SECONDS, seed=seed)]
    pairs = []
    for key, row in rows.iterrows():
        shift = rounding[row["regime"]] * math.sqrt(2) * row["noise"] * rng.normal()
        here = float(np.clip(row["test_accuracy"] + shift, 0, 1))
        pairs.append(
            Pair(
                key,
                row["section"],
                row["regime"],
                f"B = {row['batch_size']}",
                row["told"],
                here,
                row["noise"],
                row["relative_size"],
                row["duration"],
            )
        )
    return conclude_agreement(pairs, len(runs))


@pytest.fixture(params=[5, pytest.param(20, marks=pytest.mark.long)])
def rate(runs, request):
    """How often a simulated check comes to a conclusion."""

    def of(conclusion, **changes):
        found = [check(runs, seed, **changes).conclusion for seed in range(request.param)]
        return np.mean([one == conclusion for one in found])

    return of


def test_what_was_not_altered_agrees(rate):
    assert rate("disagree") == 0
    assert rate("agree") >= 0.9


def test_rounding_as_loud_as_the_seeds_refutes_nothing(rate):
    assert rate("disagree", rounding={"settled": 1.0, "chaotic": 1.0}) <= 0.1


def test_equal_runs_agree(runs):
    found = check(runs, 0, rounding={"settled": 0.0, "chaotic": 0.0})
    assert found.conclusion == "agree"
    assert (found.settled.low, found.settled.high) == (0, 0)


@pytest.mark.parametrize("section", ["4", "5", "6", "7"])
def test_a_section_that_is_shifted_is_found(runs, rate, section):
    shifted = runs["test_accuracy"] + 0.01 * (runs["section"] == section)
    assert rate("disagree", shipped=shifted) >= 0.9
    named = {alarm.section for alarm in check(runs, 1, shipped=shifted).alarms}
    assert named == {section}


@pytest.mark.parametrize("pair", [("5", "6"), ("5", "7"), ("4", "6")])
def test_sections_that_are_exchanged_are_found(runs, rate, pair):
    one, other = (runs.index[runs["section"] == section] for section in pair)
    exchanged = runs["test_accuracy"].copy()
    n = min(len(one), len(other))
    exchanged[one[:n]] = runs["test_accuracy"][other[:n]].to_numpy()
    exchanged[other[:n]] = runs["test_accuracy"][one[:n]].to_numpy()
    assert rate("disagree", shipped=exchanged) >= 0.9


def pairs_of(differences, *, regime="settled", section="5", noise=0.004):
    return [
        Pair(str(k), section, regime, f"run {k}", 0.9, 0.9 + d, noise, 2.0, 1.0)
        for k, d in enumerate(differences)
    ]


def test_agreement_is_shown_not_merely_not_refuted():
    few = conclude_agreement(pairs_of([0.0, 0.0001]), 100)
    assert (few.conclusion, few.alarms) == ("not enough runs", [])
    wide = conclude_agreement(pairs_of([0.005, -0.006, 0.007, -0.004, 0.006]), 100)
    assert (wide.conclusion, wide.alarms) == ("not enough runs", [])
    assert wide.settled.high > MARGIN
    close = conclude_agreement(pairs_of([0.0005, -0.0006, 0.0007, -0.0004, 0.0006]), 100)
    assert close.conclusion == "agree"
    assert "100 shipped runs, 5 run again here: agree (mean difference +0.0002" in str(close)


def test_a_chaotic_run_may_land_anywhere_in_the_noise_and_no_further():
    settled = pairs_of([0.0005, -0.0006, 0.0007, -0.0004, 0.0006])
    far = pairs_of([-0.148], regime="chaotic", section="4", noise=0.1)
    assert conclude_agreement(settled + far, 100).conclusion == "agree"
    further = pairs_of([-0.8], regime="chaotic", section="4", noise=0.1)
    found = conclude_agreement(settled + further, 100)
    assert found.conclusion == "disagree"
    assert {alarm.section for alarm in found.alarms} == {"4"}
    assert "disagree (section 4, below the peak" in str(found)


def test_all_tests_together_have_the_level():
    """Normal differences of exactly the seeds' noise: the loudest that rounding may be."""
    rng = np.random.default_rng(1)
    n, false = 400, 0
    for _ in range(n):
        pairs = [
            pair
            for section in "4567"
            for regime in ("settled", "chaotic")
            for pair in pairs_of(
                math.sqrt(2) * 0.004 * rng.normal(size=3), regime=regime, section=section
            )
        ]
        false += conclude_agreement(pairs, 100).conclusion == "disagree"
    assert false / n <= LEVEL + 3 * math.sqrt(LEVEL / n)


MANY = pytest.mark.parametrize("n", [10, pytest.param(20, marks=pytest.mark.long)])


@MANY
def test_a_sample_fits_the_time_and_covers_the_sections(runs, n):
    durations = runs.set_index("key")["duration"]
    seen = set()
    for seed in range(n):
        chosen = choose(runs, seconds=SECONDS, seed=seed)
        assert len(set(chosen)) == len(chosen) >= 15
        assert 0.9 * SECONDS <= durations[chosen].sum() <= SECONDS
        drawn = runs[runs["key"].isin(chosen)]
        assert set(drawn["section"]) >= {"4", "5", "6", "7", "8"}
        assert (drawn["regime"] == "settled").mean() > 0.5
        seen |= set(chosen)
    assert len(seen) > 5 * len(chosen)  # other seeds, other runs
    assert choose(runs, seconds=SECONDS, seed=3) == choose(runs, seconds=SECONDS, seed=3)
    again = choose(runs, seconds=SECONDS, seed=3, without=chosen)
    assert not set(again) & set(chosen)
    assert choose(runs, seconds=0, seed=0) == []


def test_regimes_of_the_paper_s_first_setting(runs):
    first = runs[(runs["section"] == "4") & (runs["hidden_widths"] == (800,))]
    by_size = first.groupby("batch_size")[["regime", "noise"]].first()
    assert set(by_size.loc[[1, 5, 7, 10], "regime"]) == {"chaotic"}
    assert set(by_size.loc[[20, 45, 300], "regime"]) == {"settled"}
    assert by_size.loc[7, "noise"] > 0.03 > 10 * 0.002
    assert 0.002 < by_size.loc[45, "noise"] < 0.006
    assert runs["noise"].gt(0).all()
    assert set(runs["regime"]) == {"settled", "chaotic"}


def test_a_setting_without_a_peak_is_taken_for_chaotic(runs):
    alone = runs[(runs["section"] == "4") & runs["batch_size"].isin([20, 30])]
    assert set(classify(alone)["regime"]) == {"chaotic"}


@MANY
def test_a_sample_says_which_shifts_it_would_notice(runs, n):
    """Either way: of most samples each section's; one that would not says so."""
    found = [shifts_noticed(check(runs, seed), ("4", "5", "6", "7", "law")) for seed in range(n)]
    for section in found[0]:
        assert np.mean([noticed[section] for noticed in found]) >= 0.85
    few = conclude_agreement(pairs_of([0.001, -0.001, 0.0005]), 100)
    assert shifts_noticed(few, "56") == {"5": False, "6": False}


def test_the_chance_to_notice_a_single_wrong_run(runs):
    """Against the check itself, with one run altered after another."""
    found = check(runs, 0)
    told = chances(runs, found, seconds=SECONDS)
    assert [chance.error for chance in told] == [0.01, 0.03, 0.1]
    assert 0 < told[0].overall < told[1].overall < told[2].overall < 0.1
    drawn = len(found.pairs) / len(runs)
    assert told[2].overall == pytest.approx(drawn * told[2].noticed, rel=0.25)
    noticed = [
        conclude_agreement(
            [
                Pair(**(vars(other) | {"shipped": other.shipped - 0.1 * (other is pair)}))
                for other in found.pairs
            ],
            len(runs),
        ).conclusion
        == "disagree"
        for pair in found.pairs
    ]
    assert np.mean(noticed) >= told[2].noticed - 3 * math.sqrt(0.25 / len(noticed))


def test_every_shipped_run_can_be_run_again(runs):
    some = runs.iloc[:: len(runs) // 40]
    taken = (steps if isinstance(steps, tuple) else () for steps in some["taken"])
    assert all(
        config_of(row, steps) is not None
        for (_, row), steps in zip(some.iterrows(), taken, strict=True)
    )
