"""Second readings and their statistics, on data whose truth is known."""

import math
from dataclasses import replace
from datetime import date
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from noisescale.evidence.linear.path import lambda_path
from noisescale.evidence.linear.regression import linear_problem
from noisescale.paper import (
    SECTIONS,
    figure3,
    figure8,
    figure9,
    reading_curvature,
    reading_grid,
    reading_longer,
    reading_posterior,
    reading_steps,
)
from noisescale.paper.batches import PENALTIES, SIZES, late_steps
from noisescale.paper.claims import Judgement, Verdict, all_claims, entries
from noisescale.paper.footnote import Footnote
from noisescale.paper.logistic import LABELS
from noisescale.paper.matched import DOUBLED, MATCHED, paired_ratios
from noisescale.paper.posterior_draws import Draws
from noisescale.paper.reading_curvature import Trajectory, matched_ratio
from noisescale.paper.readings import all_readings, meanings, overall, reading_entries, verdicts_on
from noisescale.paper.scaling import slope_of
from noisescale.paper.statistics import SLOPES, above, inside
from noisescale.seeds import random_stream
from noisescale.uncertainty import Estimate, mean_of
from paper.circumstances import DECIDING
from paper.test_batches import bowl, falling, make_runs, regularised, rise
from paper.test_logistic import curves, random_curves

R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED
THREE = replace(DECIDING, seeds=3)


class TestData:
    def test_every_reading_is_of_claims_and_has_a_day_and_a_section(self):
        readings = all_readings()
        numbers = (14, 20, 23, 24, 25, 29, 31, 33, 37, 38, 39)
        assert [reading.id for reading in readings] == ["R05-11", *(f"R{k}" for k in numbers)]
        known = {claim.id for claim in all_claims()}
        for reading in readings:
            assert set(reading.of) <= known
            assert date.fromisoformat(reading.fixed_on) <= date(2026, 11, 16)
            assert all((reading.reading, reading.criterion, reading.reason))
            assert reading.if_reproduced != reading.if_not_reproduced
            assert reading.section in SECTIONS

    def test_a_section_of_its_own_is_named_after_its_reading(self):
        own = [section.id for section in SECTIONS.values() if section.reading]
        assert set(own) == {r.id for r in all_readings() if r.section == r.id}
        assert len(own) == 6

    def test_what_was_not_measured_is_undecided(self):
        rows = reading_entries([])
        assert {row["verdict"] for row in rows} == {U}
        assert all(isinstance(row["of"], list) for row in rows)
        with pytest.raises(ValueError, match="R99"):
            reading_entries([Judgement("R99", R)])

    def test_identities_are_labelled(self):
        labels = {claim.id: claim.identity for claim in all_claims() if claim.identity}
        assert labels.pop("C02") == "test accuracy near one half"
        assert labels == dict.fromkeys(["C07", "C12", "C28", "C30", "C35", "C36", "C40"], "all")


def rows(*verdicts):
    return [{"verdict": verdict} for verdict in verdicts]


def test_readings_are_judged_under_the_conventions_they_name(full_scale):
    judged = {}
    for section in SECTIONS:
        for judgement in full_scale(section).readings:
            judged.setdefault(judgement.id, []).append(judgement.convention)
    assert judged == {reading.id: list(reading.conventions) for reading in all_readings()}


def test_conventions_must_agree():
    assert overall(rows(R, R)) is R
    assert overall(rows(N, N)) is N
    assert overall(rows(N, R)) is overall(rows(R, U)) is U
    judged = [Judgement("R24", R, 1.02, convention="one"), Judgement("R24", U, 1.05, None, "other")]
    read = reading_entries(judged)
    (row,) = (m for m in meanings(entries([Judgement("C24", N, 1.0)]), read) if m["id"] == "C24")
    assert row["readings"] == {"R24": U}
    assert verdicts_on(read)["R24"] == U
    assert row["meaning"].startswith("Settled under some conventions alone: reproduced under one")
    assert {r["overall"] for r in read if r["id"] == "R24"} == {U}
    opposed = reading_entries([judged[0], replace(judged[1], verdict=N)])
    (other,) = (
        m for m in meanings(entries([Judgement("C24", N, 1.0)]), opposed) if m["id"] == "C24"
    )
    assert other["meaning"].startswith("Depends on the convention: reproduced under one (1.02)")
    assert row["meaning"].endswith("reproduced under one (1.02); undecided under other (1.05).")


@pytest.mark.parametrize(
    ("claim", "first", "reading", "second", "told"),
    [
        ("C23", N, "R23", R, "L2 does shrink the gap if the penalty is not divided"),
        ("C23", N, "R23", N, "L2 does not shrink the gap if the penalty is not divided either"),
        ("C23", N, "R23", U, "Not settled"),
        ("C14", R, "R14", N, "The gap does not open after about a thousand updates"),
        ("C14", R, "R14", R, "The gap opens after about a thousand updates"),
        ("C33", U, "R33", R, "The best learning rate is proportional"),
        ("C20", N, "R20", R, "Not proportional to N where updates are many"),
        ("C20", N, "R20", N, "Proportional to N where updates are many"),
    ],
)
def test_what_a_verdict_and_a_reading_mean(claim, first, reading, second, told):
    judged = entries([Judgement(claim, first, 1.0)])
    read = reading_entries([Judgement(reading, second, 1.0)])
    (row,) = (row for row in meanings(judged, read) if row["id"] == claim)
    assert row["readings"] == {reading: second}
    assert row["meaning"].startswith(told)
    assert row["meaning"].endswith((" (1).", ": 1."))
    unread = {row["id"]: row["meaning"] for row in meanings(judged, reading_entries([]))}
    assert "not measured yet" in unread[claim]


def test_a_reading_of_many_claims_is_told_of_those_that_failed():
    judged = [Judgement(f"C{k:02d}", N if k == 5 else R, 1.0) for k in range(1, 12)]
    told = [row["id"] for row in meanings(entries(judged), reading_entries([]))]
    assert "C05" in told
    assert not {"C01", "C02", "C11"} & set(told)
    cells = {"cells of 8 in which C05 holds": 3, "cells of 8 in which C09 holds": 0}
    read = reading_entries([Judgement("R05-11", N, 7, cells)])
    (row,) = (row for row in meanings(entries(judged), read) if row["id"] == "C05")
    assert row["meaning"].startswith("No one procedure gives all of figures 1 and 2 (")
    assert row["meaning"].endswith("(cells of 8 in which C05 holds: 3; first measured 1; 7).")
    other = Judgement("C05", U, 2.0, convention="whitened", primary=False)
    (row,) = (row for row in meanings(entries([*judged, other]), read) if row["id"] == "C05")
    assert row["meaning"].endswith("first measured 1; whitened: undecided; 7).")


class TestStatistics:
    def test_few_seeds_need_more_than_two_standard_errors(self):
        # Student's t: 2.776 standard errors of five values at 95 %, 4.604 at 99 %.
        for k, at_95, at_99 in ((2.7, None, None), (2.8, True, None), (4.7, True, True)):
            estimate = Estimate(k, 1.0, n=5)
            assert above(estimate, 0, by=2) is at_95
            assert above(estimate, 0, by=3) is at_99
        assert above(Estimate(-2.8, 1.0, n=5), 0, by=2) is False

    def test_a_bound_is_kept_by_the_whole_interval(self):
        near, far = Estimate(1.04, 0.01, n=5), Estimate(1.2, 0.01, n=5)
        assert inside(near, high=1.05) is None
        assert inside(far, high=1.05) is False
        assert inside(Estimate(1.0, 0.01, n=5), 0.9, 1.05) is True
        assert inside(Estimate(1.0), 0.9, 1.05) is None  # one seed knows no interval

    @pytest.mark.parametrize(
        ("slope", "error", "verdict"), [(1.0, 0.01, True), (1.0, 0.2, None), (0.5, 0.01, False)]
    )
    def test_a_noisy_slope_does_not_pass(self, slope, error, verdict):
        x = 3.0 ** np.arange(5)
        tops = [(at, Estimate(20 * at**slope, 20 * at**slope * error)) for at in x]
        assert inside(slope_of(tops), *SLOPES) is verdict
        assert slope_of(tops[:2]) is None


@pytest.mark.parametrize(("opens", "verdict"), [(1_000, R), (100, N), (6_000, N)])
def test_the_gap_opens_after_about_a_thousand_updates(opens, verdict):
    def apart(step):
        return rise(0.9, 5)(step) + 0.02 * (step > opens)

    runs = make_runs(
        [
            ({"batch_size": 30}, apart, falling),
            ({"batch_size": 1000}, rise(0.9, 5), falling),
        ],
        noise=1e-3,
    )
    judged = figure3._judge_opening(figure3.Data(DECIDING, runs, runs), 1000)
    assert judged.verdict is verdict
    assert judged.measured["not yet at update"] <= opens
    assert judged.measured["for good from update"] >= opens
    assert figure3._judge_opening(figure3.Data(THREE, runs, runs), 1000).verdict is U


def gap_by_seed(gaps):
    """Steps at which each seed has these gaps, around which nothing else differs."""
    steps = np.array([0.0, 400.0, 600.0, 1_500.0, 3_000.0])
    return steps, np.transpose([np.zeros(5), np.zeros(5), *gaps])


class TestOpening:
    EVEN = 0.02 + 1e-4 * np.arange(5)

    def test_three_errors_are_student_s_at_99_percent(self):
        """Four standard errors of five seeds are no sure gap: 4.604 are asked for."""
        pattern = np.array([-1.0, 1, 0, 1, -1])  # mean 0, standard error sqrt(4/4/5)
        for k, opens in ((4.0, 1_500), (5.0, 600)):
            noisy = k * np.sqrt(1 / 5) + pattern
            steps, gaps = gap_by_seed([noisy, self.EVEN, self.EVEN])
            assert figure3._opening(steps, gaps)[1] == opens

    def test_a_seed_that_carries_it_widens_the_interval(self, monkeypatch):
        """With one seed left out the gap is there before 500 updates: no longer wholly inside."""
        early = np.array([0.01, 0.011, 0.012, 0.0105, -0.02])
        steps = np.array([0.0, 300.0, 600.0, 1_500.0, 3_000.0])
        gaps = np.transpose([np.zeros(5), early, early, self.EVEN, self.EVEN])
        monkeypatch.setattr(figure3, "_gaps", lambda runs, large: (steps, gaps))
        data = SimpleNamespace(at=DECIDING, network=None)
        judged = figure3._judge_opening(data, 1000)
        assert judged.measured == {"not yet at update": 600, "for good from update": 1_500}
        ends = judged.uncertainty["earliest and latest with a seed left out"]
        assert ends == [0, 1_500]
        assert judged.verdict is U


def test_figure_8_with_the_penalty_undivided():
    steps = np.array(late_steps(SIZES["full"]))[1:]
    plain = make_runs(
        [
            ({"batch_size": 30}, rise(0.92, 40), bowl(0.9)),
            ({"batch_size": 1000}, rise(0.90, 10), bowl(1.0)),
        ]
    )
    closed = make_runs(regularised(0.915, 0.913, "penalty undivided", wobble=0.004), steps=steps)
    found = {
        j.id: j.verdict for j in figure8._judge_readings(figure8.Data(DECIDING, plain, closed))
    }
    assert found == {"R23": R, "R25": R, "R39": R}
    swapped = make_runs(
        [
            ({"batch_size": 30}, rise(0.92, 10), bowl(0.9)),
            ({"batch_size": 1000}, rise(0.90, 40), bowl(1.0)),
        ]
    )
    data = figure8.Data(DECIDING, swapped, closed)
    assert {j.id: j.verdict for j in figure8._judge_readings(data)}["R25"] is N
    few = {j.verdict for j in figure8._judge_readings(figure8.Data(THREE, plain, closed))}
    assert few == {U}


@pytest.mark.parametrize(("final", "verdict"), [(0.300, R), (0.315, U), (0.40, N)])
def test_cross_entropies_that_rise_late(final, verdict):
    runs = make_runs(
        [
            ({"batch_size": B, "prior_precision": L}, rise(0.9, 10), bowl(final, low=0.3))
            for B in (30, 1000)
            for L in PENALTIES.values()
        ],
        noise=1e-3,
        draw=3,
    )
    judged = reading_longer.judge(reading_longer.Data(DECIDING, runs)).readings
    assert [(j.id, j.verdict) for j in judged] == [("R24", verdict)] * 2


class TestFootnote:
    def footnote(self, cliff):
        """Best rates proportional to B; at the largest B a rate at the cliff, noisy or not."""
        rng = np.random.default_rng(1)
        rows = []
        for B in (7, 14, 28, 56):
            for k, rate in enumerate(1.4 ** np.arange(-4, 5) * B / 28):
                for seed in range(5):
                    accuracy = 0.92 - 0.002 * (k - 4) ** 2 + rng.normal(0, 1e-3)
                    if B == 56 and k == 5 and cliff:
                        accuracy = 0.7 + 0.1 * (seed - 2)
                    rows.append((B, rate, seed, accuracy))
        frame = pd.DataFrame(rows, columns=["batch_size", "learning_rate", "seed", "test_accuracy"])
        frame = frame.assign(status="done", n_train=1000, momentum=0.9, n_classes=10)
        return Footnote.fit(DECIDING, SimpleNamespace(frame=frame))

    def test_the_spread_without_the_cliff_keeps_the_peak(self):
        found = self.footnote(cliff=True)
        assert found.over_size.n_resolved == 3
        judged = found.judge_without_cliff()
        assert judged.measured["batch sizes used"] == 4
        assert judged.measured["slope"] == pytest.approx(1, abs=0.15)

    def test_clean_peaks_are_used_by_both(self):
        found = self.footnote(cliff=False)
        assert found.judge_without_cliff().verdict is R
        few = replace(found, at=THREE)
        assert few.judge_without_cliff().verdict is U


class TestProcedures:
    """What a cell of the grid is made of, against a regression of a few features."""

    @pytest.fixture
    def data(self):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(60, 4))
        y = np.where(rng.random(60) < 1 / (1 + np.exp(-2 * x[:, 0])), 1.0, -1.0)
        return np.column_stack([x, np.ones(60)]), y

    def test_the_evidence_of_a_point_is_that_of_the_linear_problem(self, data):
        x, y = data
        problem = linear_problem(x[:, :-1], (y > 0).astype(int))
        for fit in lambda_path(problem, np.array([0.1, 3.0])):
            w = np.append(fit.coef, fit.intercept)
            E = reading_grid._ratio(w, x, y, fit.prior_precision)
            assert pytest.approx(fit.E, abs=1e-8) == E

    def test_the_evidence_where_there_are_more_features_than_examples(self, data):
        x, y = data
        wide = np.hstack([x] * 20)[:20]
        w = np.random.default_rng(0).normal(size=wide.shape[1]) / 10
        p = 1 / (1 + np.exp(-(wide @ w)))
        hessian = wide.T @ (wide * (p * (1 - p))[:, None]) + 0.5 * np.eye(len(w))
        nll = np.logaddexp(0, -y[:20] * (wide @ w)).sum()
        expected = nll + 0.25 * w @ w + 0.5 * np.linalg.slogdet(hessian / 0.5)[1] - 20 * np.log(2)
        assert reading_grid._ratio(w, wide, y[:20], 0.5) == pytest.approx(expected)

    def test_descent_is_that_of_a_plain_loop_and_ends_at_the_minimum(self, data):
        x, y = data
        grid = np.array([0.3, 10.0])
        found = reading_grid._descend(x, y, grid, sd=0.5, steps=7, seed=1)
        start = random_stream(1, "start of the descent").standard_normal(x.shape[1])
        for precision, reached in zip(grid, found, strict=True):
            w = 0.5 * start
            step = 1 / (np.linalg.eigvalsh(x.T @ x)[-1] / 4 + precision)
            for _ in range(7):
                slope = -(x * (y / (1 + np.exp(y * (x @ w))))[:, None]).sum(axis=0) + precision * w
                w = w - step * slope
            np.testing.assert_allclose(reached, w, rtol=1e-4, atol=1e-5)
        long = reading_grid._descend(x, y, grid, sd=0.5, steps=5_000, seed=1)
        np.testing.assert_allclose(long, reading_grid._minima(x, y, grid), rtol=1e-3, atol=1e-4)


class TestGrid:
    def test_a_cell_in_which_all_hold_is_named(self):
        found = {}
        for cell in reading_grid.CELLS:
            good = cell == reading_grid.CELLS[5]
            true = curves() if good else curves(margin=np.linspace(200, 100, 57))
            found |= {(cell, "informative"): true, (cell, "random"): random_curves()}
        data = reading_grid.Data(DECIDING, found)
        (judged,) = reading_grid.judge(data).readings
        assert judged.verdict is R
        assert judged.measured == {"all hold": [reading_grid.CELLS[5]]}
        assert reading_grid.CELLS[5] in reading_grid.draw(data)[0].alt

    def test_else_the_best_cell_and_what_fails_there(self):
        bad = curves(margin=np.linspace(200, 100, 57))
        found = {
            (cell, labels): bad if labels == LABELS[0] else random_curves()
            for cell in reading_grid.CELLS
            for labels in LABELS
        }
        (judged,) = reading_grid.judge(reading_grid.Data(DECIDING, found)).readings
        assert judged.verdict is N
        assert judged.measured["not"] == "C04, C05"
        (few,) = reading_grid.judge(reading_grid.Data(THREE, found)).readings
        assert few.verdict is U


def shown(factors, noise=0.01, n_seeds=5):
    """Blocks by seed: g times a factor of the setting, and of the seed, which pairing takes out."""
    rng = np.random.default_rng(2)
    return [
        {
            s: s.noise_scale * factors(s) * (1 + 0.3 * seed) * (1 + noise * rng.normal(size=10))
            for s in reading_steps.SMALL_STEPS
        }
        for seed in range(n_seeds)
    ]


@pytest.mark.parametrize(
    ("factors", "noise", "verdict"),
    [
        (lambda s: 1.0, 0.01, R),
        (lambda s: 1.0, 0.3, U),
        (lambda s: 0.93 if s.batch_size == 100 else 1.0, 0.01, R),  # just inside of a tenth
        (lambda s: 0.87 if s.batch_size == 100 else 1.0, 0.01, N),  # just outside
        (lambda s: 0.8 if s.kind == DOUBLED else 1.0, 0.01, R),  # 1.6 times as much
        (lambda s: 0.7 if s.kind == DOUBLED else 1.0, 0.01, N),  # 1.4 times
        (lambda s: 0.75 if s.kind == DOUBLED else 1.0, 0.05, U),
    ],
)
def test_equal_noise_scales_at_small_steps(factors, noise, verdict):
    data = reading_steps.Data(DECIDING, shown(factors, noise))
    (judged,) = reading_steps.judge(data).readings
    assert judged.verdict is verdict
    assert judged.uncertainty == {"pairs of equal g": 6, "pairs of twice g": 2}
    assert all(s.learning_rate / (1 - s.momentum) <= 0.0101 for s in reading_steps.SMALL_STEPS)


def test_settings_are_paired_within_a_seed():
    # Seeds differ by a factor of two: blocks of all seeds together hide what pairs show.
    seeds = shown(lambda s: 1.1 if s.batch_size == 100 else 1.0, noise=1e-3)
    by_seed = [{s: blocks for s, blocks in one.items() if s.small_step(1.0)} for one in seeds]
    equal, twice = paired_ratios(by_seed), paired_ratios(by_seed, DOUBLED)
    assert [inside(r.interval(0.99), 0.99, 1.01) for r in equal.values()].count(False) == 4
    assert len(equal) == 6
    assert all(above(ratio, 1.01, by=3) for ratio in twice.values())
    assert {s.kind for s in seeds[0]} == {MATCHED, DOUBLED}


class TestCurvature:
    def path(self, scale, power=0.5, low=-4, high=0):
        nll = np.logspace(high, low, 10)
        return Trajectory(np.arange(10.0), nll, scale * nll**power)

    def test_power_laws_are_compared_at_equal_loss(self):
        true, random = self.path(10.0), self.path(7.0, low=-2, high=0.3)
        assert matched_ratio(random, true) == pytest.approx(0.7)
        assert np.isnan(matched_ratio(self.path(1.0, low=1, high=2), true))

    @pytest.mark.parametrize(("ratio", "verdict"), [(1.5, R), (1.0, U), (0.7, N)])
    def test_random_labels_against_true_ones(self, ratio, verdict):
        rng = np.random.default_rng(0)
        trajectories = {
            (labels, B): [
                self.path((ratio if labels == "random" else 1.0) * np.exp(0.05 * rng.normal()))
                for _ in range(5)
            ]
            for labels in ("true", "random")
            for B in (30, 1000)
        }
        data = reading_curvature.Data(DECIDING, trajectories)
        judged = reading_curvature.judge(data).readings
        assert [(j.convention, j.primary) for j in judged] == [
            ("B = 1000", True),
            ("B = 30", False),
        ]
        assert judged[0].verdict is verdict
        assert len(reading_curvature.draw(data)) == 1


@pytest.mark.parametrize(
    ("error", "r_hat", "verdict"), [(0.08, 1.0, R), (0.12, 1.0, N), (0.08, 1.2, U)]
)
def test_samples_under_stronger_priors(error, r_hat, verdict):
    rng = np.random.default_rng(0)
    draws = [
        Draws(30.0, (0.1, 0.3), error + 1e-3 * rng.normal(size=(1, 20, 2)), (0.1, 0.3), r_hat)
        for _ in range(5)
    ]
    data = reading_posterior.Data(DECIDING, dict.fromkeys(reading_posterior.PRIORS, draws))
    judged = reading_posterior.judge(data).readings
    assert [j.verdict for j in judged] == [verdict] * 4
    assert judged[3].convention == "prior fan-in"
    unknown = [*draws[:4], replace(draws[4], r_hat=math.nan)]
    data = reading_posterior.Data(DECIDING, dict.fromkeys(reading_posterior.PRIORS, unknown))
    assert {j.verdict for j in reading_posterior.judge(data).readings} == {U}


def test_chains_that_have_not_converged_are_made_longer(monkeypatch):
    asked = []

    def kept(measure, *, prior, seed, longer):
        asked.append((prior, seed, longer))
        r_hat = 1.2 if (prior, seed) == ("100", 0) or (seed == 1 and longer == 1) else 1.0
        return Draws(30.0, (0.1, 0.3), np.zeros((1, 20, 2)), (0.1, 0.3), r_hat)

    context = SimpleNamespace(at=DECIDING, seeds=2, scale="full", kept=kept)
    draws = reading_posterior.measure(context).draws
    assert [key[1:] for key in asked if key[0] == "30"] == [(0, 1), (1, 1), (1, 2)]
    assert [key[1:] for key in asked if key[0] == "100"] == [(0, 1), (0, 2), (0, 4), (1, 1), (1, 2)]
    assert [one.r_hat for one in draws["100"]] == [1.2, 1.0]  # four times as long, and told so


def test_skewed_samples_with_one_mode_show_two():
    rng = np.random.default_rng(0)
    assert figure9.skewed_control(500, 3.0) > 0.9
    assert figure9.skewed_control(500, 0.01) < figure9.skewed_control(500, 3.0)
    share = mean_of(np.full(5, 0.95) + 0.01 * rng.normal(size=5))
    assert inside(share, 0.5) is True
