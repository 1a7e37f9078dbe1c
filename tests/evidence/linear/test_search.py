import math

import numpy as np
import pytest

import noisescale as ns
from noisescale.data import load_digits
from noisescale.evidence.linear import packed as packing
from noisescale.evidence.linear.chord import approach
from noisescale.evidence.linear.families import Softmax
from noisescale.evidence.linear.newton import Cost
from noisescale.evidence.linear.packed import PackedSoftmax, packed
from noisescale.evidence.linear.path import lambda_path, maximise_evidence
from noisescale.evidence.linear.regression import fit_map, linear_problem
from noisescale.evidence.linear.search import evidence_peak, highest


def make(n_classes, n, d, seed=0, separation=1.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return rng.normal(size=(n, d)) + separation * np.eye(n_classes, d)[y], y


def looked_at(f):
    """The function, and a list that fills with where it is called."""
    places = []

    def heard(t):
        places.append(t)
        return f(t)

    return heard, places


class TestHighest:
    """Of functions whose tops are known."""

    @pytest.mark.parametrize(
        ("f", "top", "second"),
        [
            (lambda t: -8 * (t - 0.3) ** 2, 0.3, -16.0),
            (lambda t: -20 * (t - 1) ** 2, 1.0, -40.0),  # on the grid
            (lambda t: math.log(1 / math.cosh(3 * (t + 1.27))), -1.27, -9.0),
            (lambda t: 50 * (t - 0.6) - math.exp(4 * (t - 0.6)) * 12.5, 0.6, -200.0),
        ],
    )
    def test_smooth(self, f, top, second):
        heard, places = looked_at(f)
        peak = highest(heard, [-4.0, -3, -2, -1, 0, 1, 2, 3, 4], 0.01)
        assert abs(peak.place - top) < 0.01
        assert peak.second == pytest.approx(second, rel=0.05)
        assert peak.edge is None
        assert len(places) <= 9 + 6

    @pytest.mark.parametrize(
        "f",
        [
            lambda t: -abs(t - 0.37),  # no second derivative there
            lambda t: -100 * abs(t - 0.37) ** 0.5,
            lambda t: -100 * max(t - 0.37, 0) - max(0.37 - t, 0),
            lambda t: math.exp(-((t - 0.05) ** 2) / 2e-4) if t < 0.5 else -1e6 * t,  # a cliff
        ],
    )
    def test_where_polynomials_are_no_good(self, f):
        """Something like the bracket of a golden section remains."""
        heard, places = looked_at(f)
        peak = highest(heard, [-2.0, -1, 0, 1, 2], 0.01)
        assert f(peak.place) >= max(f(t) for t in [-2, -1, 0, 1, 2])
        assert len(places) == len(set(places)) <= 5 + 40

    def test_ends(self):
        assert highest(lambda t: t, [0.0, 1, 2], 0.01).edge == "highest"
        assert highest(lambda t: -t, [0.0, 1, 2], 0.01).edge == "lowest"
        # Equal everywhere: nothing is gained by a weaker prior.
        assert highest(lambda t: 0.0, [0.0, 1, 2], 0.01).edge == "highest"


DATA = {
    "digits": lambda: (load_digits().x_train[:400], load_digits().y_train[:400]),
    "four classes": lambda: make(4, 60, 6),
    "more features than examples": lambda: make(3, 15, 80, separation=3),
    "two classes": lambda: make(2, 60, 6),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("small", [True, False])
def test_the_peak_is_that_of_brackets(name, small, monkeypatch):
    if not small:
        monkeypatch.setattr(packing, "_LARGEST", 0)
    problem = linear_problem(*DATA[name]())
    reference = maximise_evidence(problem, bounds=(1e-4, 1e4), per_decade=1, tolerance=1e-4)
    found = evidence_peak(problem, bounds=(1e-4, 1e4), tolerance=0.01)
    assert found.edge is reference.edge is None
    assert abs(math.log10(found.fit.prior_precision / reference.fit.prior_precision)) < 0.011
    # By second differences with a step of 0.1 decades there, which a fourth derivative shifts.
    assert found.log10_std == pytest.approx(reference.log10_std, rel=0.01)
    assert found.fit in found.path
    assert len(found.path) <= 9 + 6
    precisions = [fit.prior_precision for fit in found.path]
    assert precisions == sorted(precisions)


@pytest.mark.parametrize("name", DATA)
def test_every_fit_on_the_way_is_the_map(name):
    problem = linear_problem(*DATA[name]())
    found = evidence_peak(problem, bounds=(1e-6, 1e4), intercept_precision=0.02)
    for fit in found.path:
        cold = fit_map(problem, prior_precision=fit.prior_precision, intercept_precision=0.02)
        # The determinant feels the root of the decrement, 1e-8 in units of the cost.
        assert fit.log_evidence == pytest.approx(cold.log_evidence, rel=1e-8, abs=1e-7)
        np.testing.assert_allclose(fit.coef, cold.coef, atol=1e-6 * np.abs(cold.coef).max())
        assert fit.newton_decrement <= 1e-10


def test_counts_are_repeats():
    x, y = make(3, 30, 4)
    counts = 1.0 + np.arange(30) % 3
    by_count = evidence_peak(linear_problem(x, y, counts=counts))
    rows = np.repeat(np.arange(30), counts.astype(int))
    repeated = evidence_peak(linear_problem(x[rows], y[rows]))
    assert by_count.fit.log_evidence == pytest.approx(repeated.fit.log_evidence, rel=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bounds": (1.0, 0.1)}, "low < high"),
        ({"bounds": (0.0, 1.0)}, "bounds must be a finite number above 0"),
        ({"tolerance": 0.0}, "tolerance must be a finite number above 0"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ns.InputError, match=message):
        evidence_peak(linear_problem(*make(2, 20, 3)), **settings)


class TestPacked:
    @pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
    def test_the_hessian_is_the_softmaxs(self, scale):
        """Element by element from its definition, and by the other route."""
        rng = np.random.default_rng(0)
        F, labels = rng.normal(size=(23, 5)), np.arange(23) % 4
        counts, outputs = rng.uniform(0.5, 2, 23), scale * rng.normal(size=(23, 3))
        family = PackedSoftmax(4, F, counts)
        ours = np.tril(family.hessian(F, counts, outputs, labels))
        theirs = np.tril(Softmax(4).hessian(F, counts, outputs, labels))
        np.testing.assert_allclose(ours, theirs, atol=1e-14 * np.abs(theirs).max())
        logits = outputs @ family.contrasts.T
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        slow = np.zeros((15, 15))
        for f, probabilities, count in zip(F, p, counts, strict=True):
            A = np.diag(probabilities) - np.outer(probabilities, probabilities)
            Q = family.contrasts
            slow += count * np.kron(Q.T @ A @ Q, np.outer(f, f))
        np.testing.assert_allclose(ours, np.tril(slow), atol=1e-13 * np.abs(slow).max() + 1e-14)

    def test_the_first_guess_is_the_hessian_at_zero(self):
        F, counts = np.random.default_rng(0).normal(size=(23, 5)), np.linspace(1, 2, 23)
        family = PackedSoftmax(4, F, counts)
        guess = np.tril(family.unpacked(family.last))
        there = family.hessian(F, counts, np.zeros((23, 3)), np.arange(23) % 4)
        np.testing.assert_allclose(guess, np.tril(there), atol=1e-13)

    def test_knows_its_own_features_only(self):
        F = np.ones((3, 2))
        with pytest.raises(ValueError, match="made with"):
            PackedSoftmax(3, F, np.ones(3)).hessian(
                F.copy(), np.ones(3), np.zeros((3, 2)), np.arange(3)
            )

    def test_large_problems_and_two_classes_stay_as_they_are(self, monkeypatch):
        two = linear_problem(*make(2, 20, 3))
        assert packed(two) is two
        monkeypatch.setattr(packing, "_LARGEST", 10)
        four = linear_problem(*make(4, 20, 3))
        assert packed(four) is four


def test_a_hessian_of_another_prior_leads_to_the_map():
    problem = linear_problem(*make(4, 60, 6))
    other, wanted = lambda_path(problem, [1.0, 0.01])
    precisions = problem.design.precisions(0.01, 0.01)
    cost = Cost(problem.family, problem.design.features, problem.labels, problem.counts, precisions)
    V = approach(cost, other.optimum.coefficients, other.optimum.factor, enough=1e-18)
    # |V - V*|^2 <= decrement times the norm of M over that of the prior.
    np.testing.assert_allclose(V, wanted.optimum.coefficients, atol=1e-6)
    hopeless = 1e-8 * np.eye(len(other.optimum.factor))  # steps that are far too long
    start = other.optimum.coefficients
    assert np.isfinite(approach(cost, start, np.asfortranarray(hopeless), enough=1e-18)).all()
