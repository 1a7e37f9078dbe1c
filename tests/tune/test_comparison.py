"""How one recipe is compared with another: what is found, and how often that is wrong."""

import math

import numpy as np
import pytest
from benchmarks.tune_level import before, simulate
from scipy import stats

from noisescale.tune.comparison import (
    compare,
    error_of_a_look,
    looks,
    seeds_to_decide,
    usual_spread,
)
from noisescale.tune.procedure import reason

PATHS = 20_000
ERRORS = 0.05 + 4 * math.sqrt(0.05 * 0.95 / PATHS)  # four standard errors of a share
SCHEDULES = [
    *(looks(3, last) for last in (3, 5, 7, 9, 11)),
    *(looks(first, last) for first, last in ((2, 2), (2, 9), (3, 8), (3, 20), (5, 13), (4, 100))),
]


@pytest.mark.parametrize("usual", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_a_loss_of_the_tolerance_is_taken_in_no_more_than_5_percent(schedule, usual):
    d = np.random.default_rng(0).normal(-1, 1, (PATHS, schedule[-1]))
    taken, _ = simulate(d, 1.0, usual, schedule)
    assert taken.mean() < ERRORS


@pytest.mark.parametrize("usual", [0.0, 0.5, 1.0])
def test_the_rule_of_before_took_it_more_often(usual):
    d = np.random.default_rng(0).normal(-1, 1, (PATHS, 9))
    assert simulate(d, 1.0, usual, rule=before)[0].mean() > 0.085


@pytest.mark.parametrize("usual", [0.0, 1.0])
def test_the_simulation_is_of_what_the_tuner_asks(usual):
    schedule = looks(3, 9)
    paths = np.random.default_rng(1).normal(-0.5, 1, (300, 9))
    taken, seeds = simulate(paths, 1.0, usual, schedule)
    for d, was_taken, n_seeds in zip(paths, taken, seeds, strict=True):
        for n in schedule:
            alpha = error_of_a_look(schedule)
            found = compare(d[:n], np.zeros(n), 1.0, usual=usual, alpha=alpha).finding
            if found != "unclear":
                break
        assert (n, found in ("held", "rose")) == (n_seeds, was_taken)


def test_schedules():
    assert looks(3, 9) == (3, 5, 7, 9)
    assert looks(3, 8) == (3, 5, 7, 8)
    assert looks(4, 4) == (4,)
    assert looks(3, 100) == (3, 27, 52, 76, 100)
    assert [error_of_a_look(looks(3, last)) for last in (3, 5, 7, 9, 11, 13)] == [
        *(0.05, 0.0285, 0.0215, 0.0175, 0.015),
        0.01,  # steps of more than two: the union bound
    ]
    assert error_of_a_look(looks(2, 4)) == 0.025
    assert error_of_a_look(looks(2, 2)) == 0.05


class TestWithATolerance:
    @pytest.mark.parametrize("alpha", [0.05, 0.0175])
    def test_against_students_test_shifted_by_the_tolerance(self, alpha):
        rng = np.random.default_rng(0)
        seen = set()
        for shift in (-0.5, -0.3, -0.2, 0.0, 0.3):
            for _ in range(20):
                a, b = rng.normal(shift, 0.2, 6), rng.normal(0, 0.2, 6)
                found = compare(a, b, 0.2, alpha=alpha)
                held = stats.ttest_rel(a + 0.2, b, alternative="greater").pvalue < alpha
                fell = stats.ttest_rel(a + 0.2, b, alternative="less").pvalue < 0.05
                rose = stats.ttest_rel(a, b, alternative="greater").pvalue < alpha
                wanted = "rose" if rose else "held" if held else "fell" if fell else "unclear"
                assert found.finding == wanted
                seen.add(wanted)
        assert seen == {"rose", "held", "fell", "unclear"}

    def test_comparisons_that_share_their_errors(self):
        rng = np.random.default_rng(5)
        seen = set()
        for _ in range(60):
            a, b = rng.normal(-0.4, 0.2, 5), rng.normal(0, 0.2, 5)
            found = compare(a, b, 0.1, among=4).finding
            p = stats.ttest_rel(a + 0.1, b, alternative="less").pvalue
            assert (found == "fell") == (p < 0.05 / 4)
            seen.add((found == "fell", p < 0.05))
        assert seen == {(True, True), (False, True), (False, False)}

    def test_without_noise_the_tolerance_alone_decides(self):
        for loss, finding in ((0.0, "held"), (0.001, "held"), (0.002, "held"), (0.003, "fell")):
            found = compare(np.full(3, 0.5 - loss), np.full(3, 0.5), 0.002)
            assert found.finding == finding
        assert compare(np.full(3, 0.6), np.full(3, 0.5), 0.0).finding == "rose"

    def test_a_usual_spread_is_a_floor_of_twice_its_height(self):
        reference, loss = np.array([0.90, 0.92, 0.91]), 0.001
        assert compare(reference - loss, reference, 0.002).finding == "held"
        assert compare(reference - loss, reference, 0.002, usual=0.01).finding == "unclear"
        noisy = reference + np.array([0.0, 0.01, 0.02])
        assert compare(noisy, reference, 0.002, usual=0.019) == compare(noisy, reference, 0.002)

    @pytest.mark.parametrize("usual", [0.0, 0.15, 0.6])
    @pytest.mark.parametrize("first", [3, None])
    def test_the_seeds_that_would_decide_do_and_one_less_does_not(self, usual, first):
        z = np.random.default_rng(2).normal(size=300)

        def decided(mean, n):
            """At the last of n seeds, for differences of this mean and a deviation of .2."""
            d = mean + 0.2 * (z[:n] - z[:n].mean()) / z[:n].std(ddof=1)
            alpha = 0.05 if first is None else error_of_a_look(looks(first, n))
            return compare(d, np.zeros(n), 0.2, usual=usual, alpha=alpha)

        for mean in (-0.29, -0.28, -0.12, -0.11):
            found = decided(mean, 5)
            assert found.finding == "unclear"
            n = seeds_to_decide(found, 0.2, 300, first=first)
            assert decided(mean, n).finding == ("fell" if mean < -0.2 else "held")
            assert decided(mean, n - 1).finding == "unclear"
            assert seeds_to_decide(found, 0.2, n - 1, first=first) is None

    @pytest.mark.parametrize(
        ("candidate", "reference", "finding", "told"),
        [
            ([0.5], [0.5], "unclear", "the reference gave a score in 1 of 1 seeds: too few"),
            ([0.5, 0.5], [0.5, math.nan], "unclear", "the reference gave a score in 1 of 2 seeds"),
            ([0.5, 0.5], [math.nan] * 2, "unclear", "the reference gave a score in 0 of 2 seeds"),
            ([0.5, math.nan], [0.5, 0.5], "fell", "training gave no score in 1 of 2 seeds"),
            ([0.5, math.nan, 0.5], [0.5, math.nan, 0.5], "fell", "training gave no score in 1 of"),
        ],
    )
    def test_runs_without_a_score_are_laid_to_the_recipe_that_lacks_them(
        self, candidate, reference, finding, told
    ):
        candidate, reference = np.array(candidate), np.array(reference)
        for tolerance in (1.0, None):
            found = compare(candidate, reference, tolerance)
            assert found.finding == finding
            assert reason(found, candidate, {}).startswith(told)
        assert found.n_seeds > 1 or seeds_to_decide(found, 1.0, 99) is None


class TestWithoutATolerance:
    @pytest.mark.parametrize("alpha", [0.05, 0.0175])
    def test_against_students_test(self, alpha):
        rng = np.random.default_rng(0)
        for shift in (-0.5, -0.2, 0.0, 0.3):
            a, b = rng.normal(shift, 0.3, 6), rng.normal(0, 0.3, 6)
            found = compare(a, b, None, alpha=alpha)
            less = stats.ttest_rel(a, b, alternative="less").pvalue < alpha
            more = stats.ttest_rel(a, b, alternative="greater").pvalue < alpha
            assert (found.finding == "fell") == less
            assert (found.finding == "rose") == more
            assert found.std == pytest.approx((a - b).std(ddof=1) / np.sqrt(6))

    @pytest.mark.parametrize("usual", [0.0, 0.7, 1.4, 2.8])
    def test_false_falls_and_rises_are_as_rare_as_promised_over_all_looks(self, usual):
        schedule, n = looks(3, 9), 2_000
        rng, ends = np.random.default_rng(1), []
        for d in rng.normal(0, 2**0.5, (n, 9)):
            for k in schedule:
                alpha = error_of_a_look(schedule)
                finding = compare(d[:k], np.zeros(k), None, usual=usual, alpha=alpha).finding
                if finding in ("fell", "rose"):
                    break
            ends.append(finding)
        for end in ("fell", "rose"):
            assert ends.count(end) / n < 0.05 + 4 * math.sqrt(0.05 * 0.95 / n)

    def test_differences_that_happen_to_agree_are_no_proof(self):
        reference = np.array([0.90, 0.92, 0.91])
        candidate = reference - 0.002
        assert compare(candidate, reference, None).finding == "fell"
        assert compare(candidate, reference, None, usual=0.01).finding != "fell"

    def test_a_breakdown_is_a_fall(self):
        good = np.array([0.9, 0.91, 0.92])
        assert compare(np.array([0.95, np.nan, 0.97]), good, None).finding == "fell"

    def test_without_noise_every_difference_counts(self):
        for other, finding in ((0.5, "held"), (0.4, "fell"), (0.6, "rose")):
            assert compare(np.full(3, other), np.full(3, 0.5), None).finding == finding


def test_the_usual_spread_is_that_of_paired_differences():
    rng = np.random.default_rng(3)
    scores = 0.9 + 0.1 * rng.normal(size=60) + 0.01 * rng.normal(size=(9, 60))
    scores[0] = rng.uniform(0, 1, 60)  # broken down
    assert usual_spread(scores) == pytest.approx(0.01 * 2**0.5, rel=0.15)
    scores[1, 3] = np.nan
    assert usual_spread(scores) == pytest.approx(0.01 * 2**0.5, rel=0.15)
    assert usual_spread(scores[:1]) == 0
