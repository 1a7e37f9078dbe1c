from dataclasses import replace

import numpy as np
import pytest

from noisescale.paper import figure1, figure2, invariance, logistic
from noisescale.paper.claims import Verdict, judge_each
from noisescale.paper.section import Context
from paper.circumstances import DECIDING

P = np.logspace(-8, 6, 57)


def context(data, seeds=3, scale="full"):
    return Context(data, scale, seeds, store=None, engine=None)


def curves(*, seeds=3, **columns):
    """Curves that satisfy every claim of figures 1 and 2, but for what is changed."""
    s = np.log10(P)
    plain = {
        "train_accuracy": np.ones(57),
        "test_accuracy": np.full(57, 0.97),
        "train_cross_entropy": 0.69 / (1 + np.exp(-s)),
        "test_cross_entropy": 0.5 + 0.05 * np.abs(s - 1.0),
        "margin": 2 + 0.1 * s,
        "E": np.where(s < -4, 10 * (-4 - s) + 1, -100 * np.exp(-((s - 1) ** 2) / 4)),
    }
    made = {name: np.tile(columns.get(name, value), (seeds, 1)) for name, value in plain.items()}
    return logistic.Curves(P, **made)


def random_curves(**columns):
    s = np.log10(P)
    plain = {
        "test_accuracy": np.full(57, 0.5),
        "margin": (2 + 0.1 * s) / 1.5,
        "train_cross_entropy": 0.69 / (1 + np.exp(-2 * s)),
        "test_cross_entropy": np.log(2) + 100 * np.exp(-2 * (s + 8)),
        "E": 500 * np.exp(-(s + 8)),
    }
    return curves(**(plain | columns))


def verdicts(section, true, random, **changes):
    curves_by = {("raw pixels", "informative"): true, ("raw pixels", "random"): random}
    at = replace(DECIDING, **changes)
    judged = section.judge_one(at, curves_by, "raw pixels")
    return {judgement.id: judgement.verdict for judgement in judged}


def test_curves_as_in_the_paper_reproduce_every_claim():
    for section in (figure1, figure2):
        found = verdicts(section, curves(), random_curves())
        assert set(found.values()) == {Verdict.REPRODUCED}, found


@pytest.mark.parametrize(
    ("section", "claim", "true", "random"),
    [
        (figure1, "C01", {"test_accuracy": np.full(57, 0.94)}, {}),
        (figure1, "C02", {}, {"test_accuracy": np.full(57, 0.52)}),
        (figure1, "C02", {}, {"train_accuracy": np.full(57, 0.99)}),
        (figure1, "C03", {"test_accuracy": np.linspace(0.95, 0.97, 57)}, {}),
        (figure1, "C04", {"margin": 2 - np.log10(P)}, {}),
        (figure1, "C05", {"margin": 10 + np.log10(P)}, {}),
        (figure2, "C06", {}, {"test_cross_entropy": np.full(57, np.log(2))}),
        (figure2, "C07", {}, {"test_cross_entropy": np.full(57, 50.0)}),
        (figure2, "C08", {}, {"E": -500 * np.exp(-np.log10(P) - 8)}),
        (figure2, "C08", {}, {"E": np.linspace(1, 500, 57)}),
        (figure2, "C09", {"test_cross_entropy": np.linspace(0.1, 0.2, 57)}, {}),
        (figure2, "C10", {"E": np.linspace(-100.0, -90, 57)}, {}),
        (figure2, "C11", {"test_cross_entropy": 0.5 + 0.05 * np.abs(np.log10(P) - 3)}, {}),
    ],
)
def test_curves_that_break_a_claim_do_not_reproduce_it(section, claim, true, random):
    found = verdicts(section, curves(**true), random_curves(**random))
    assert found[claim] == Verdict.NOT_REPRODUCED


def test_too_small_a_run_decides_nothing():
    for changes in ({"seeds": 2}, {"scale": "smoke"}):
        found = verdicts(figure1, curves(), random_curves(), **changes)
        assert set(found.values()) == {Verdict.UNDECIDED}


def test_seeds_that_disagree_leave_a_claim_undecided():
    def verdict(holds, decidable=True):
        return judge_each("C01", holds, decidable=decidable, measured=1).verdict

    assert verdict([True, True]) == Verdict.REPRODUCED
    assert verdict([True, False]) == Verdict.UNDECIDED
    assert verdict([False, False]) == Verdict.NOT_REPRODUCED
    assert verdict([True, True], decidable=False) == Verdict.UNDECIDED
    assert verdict([]) == Verdict.UNDECIDED


def test_borderline_shapes():
    falls = figure2._falls_and_stays_positive
    assert falls(np.array([100, 50, 0.9, 0.2]))
    assert not falls(np.array([100, 50, 0.9, 40, 0.2]))
    assert not falls(np.array([0.4, 0.3, 0.2]))
    assert not figure2._above_then_below(np.array([0.1, 0.8, 0.5]))
    assert not figure2._three_regimes(np.array([-5, 3, -500, -1]))


def test_one_seed_that_does_not_memorise_leaves_c02_undecided():
    random = random_curves()
    random.train_accuracy[1, 0] = 0.99875
    assert verdicts(figure1, curves(), random)["C02"] == Verdict.UNDECIDED


def test_parabola_minimum():
    x = np.linspace(-8, 6, 57)
    assert figure2.parabola_minimum(x, (x - 1.1) ** 2) == pytest.approx(1.1)
    assert figure2.parabola_minimum(x, x) == -8


def test_whitening():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6)) + 3
    x[:, 2] = 7  # does not vary
    other = rng.normal(size=(4, 6))
    white, moved = logistic.whiten(x, other)
    assert white.shape == (50, 5)
    assert moved.shape == (4, 5)
    np.testing.assert_allclose(np.cov(white.T), np.eye(5), atol=1e-10)
    np.testing.assert_allclose(white.mean(axis=0), 0, atol=1e-12)


def test_both_invariance_claims_hold(mnist):
    found = invariance.judge_invariance(invariance.measure_invariance(context(mnist)))
    assert [j.id for j in found] == ["C12", "C12", "C35"]
    assert all(j.verdict == Verdict.REPRODUCED for j in found)


def test_random_labels_are_balanced_and_the_same_images(mnist):
    measured = logistic.measure_curves(context(mnist, seeds=1, scale="smoke"))
    assert set(measured) == {
        (p, label) for p in logistic.PREPROCESSINGS for label in logistic.LABELS
    }
    raw = measured["raw pixels", "informative"]
    assert raw.E.shape == (1, 15)
    # Facts of the exact MAP: E about -500 at the weakest prior, lowest near -530.
    assert -560 < raw.E.min() < raw.E[0, 0] < -480
    assert measured["raw pixels", "random"].E[0, 0] > 1000
    assert measured["raw pixels", "random"].train_accuracy[0, 0] == 1.0
