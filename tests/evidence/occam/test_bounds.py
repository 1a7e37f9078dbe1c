"""Bounds of the log evidence: they hold, they are as near as was asked, and they are honest."""

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam import bounds
from noisescale.evidence.occam import kernel as kernels
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.preflight import preflight
from oracles.models import CASES, NETWORK, as_function, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


@pytest.fixture
def pivots_alone(monkeypatch):
    """Small kernels would be factorised whole; here they are not."""
    monkeypatch.setattr(bounds, "_EXACT_FROM", 2.0)


class GivenKernel:
    """A kernel that is known whole, as the reduction sees it."""

    def __init__(self, K, at_once=7):
        self.K, self.columns_at_once = K, at_once

    def columns(self, chosen):
        for part in kernels.parts_of(len(self.K), 11):
            yield part, self.K[part][:, chosen].copy()

    def among(self, chosen):
        return self.K[np.ix_(chosen, chosen)]


def random_kernel(rng):
    """Spectra that fall quickly or not at all, of full rank or low, with rows that repeat."""
    n = int(rng.integers(2, 60))
    rank = int(rng.integers(1, n + 10))
    A = rng.normal(size=(n, rank)) * np.geomspace(1, 10.0 ** -rng.uniform(0, 6), rank)
    if rng.random() < 0.3:
        A[n // 2 :] = A[: n - n // 2]
    A *= 10.0 ** rng.uniform(-2, 4) * 10.0 ** rng.uniform(-3, 0, (n, 1))
    return A @ A.T


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_exact_value_lies_within_the_bounds_of_200_random_kernels_at_every_step(precision):
    rng = np.random.default_rng(0)
    narrowest = []
    for _ in range(200):
        K = random_kernel(rng)
        exact = np.linalg.slogdet(np.eye(len(K)) + K)[1]
        cut = float(rng.uniform(0.05, 3))
        matters = bounds.rows_that_matter(np.diag(K), cut)
        kept = np.ix_(matters, matters)
        found = bounds.Reduction(
            GivenKernel(K[kept]),
            np.arange(matters.sum()),
            np.diag(K)[matters],
            np.diag(K)[~matters],
            precision,
        )
        while True:
            inner = found.inner() if found.blocks else np.zeros((0, 0))
            known = np.linalg.slogdet(np.eye(len(inner)) + inner)[1]
            assert known - found.rounding <= exact
            assert exact <= known + found.gap + found.rounding
            if not (found.residual > 1e-4 * found.trace / len(K)).any():
                break
            found.extend(found.builder.columns_at_once)
        assert found.left_out <= 0.5 * cut
        narrowest.append(found.gap - found.left_out)
    # Not by being wide: at the end nothing is left between them.
    assert np.median(narrowest) < 0.01


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_bounds_hold_and_the_tolerance_is_honoured(name, whole, monkeypatch):
    apply_fn, params, pair = CASES[name]
    monkeypatch.setattr(bounds, "_EXACT_FROM", 0.0 if whole else 2.0)
    for prior, tolerances in ((0.03, [1.0]), (2.0, [3.0, 0.1])):
        exact = ns.log_evidence(apply_fn, params, pair, prior_precision=prior, method="dual")
        for tolerance in tolerances:
            found = ns.log_evidence(
                apply_fn,
                params,
                pair,
                prior_precision=prior,
                method="dual",
                tolerance=tolerance,
            )
            lower, upper = found.log_evidence_bounds
            assert lower <= exact.log_evidence <= upper
            assert upper - lower <= tolerance
            assert found.details["tolerance_reached"]
            assert found.log_evidence == pytest.approx((lower + upper) / 2, rel=1e-12)
            assert f"{lower:.6g} and {upper:.6g}" in " ".join(found.notes)
        # Under the finer of the two tolerances the decrement is that of nearly all curvature.
        assert found.newton_decrement == pytest.approx(exact.newton_decrement, rel=0.2)


@pytest.mark.parametrize("apply_fn", [NETWORK, as_function])
def test_every_way_to_make_columns_gives_those_of_the_matrix(apply_fn, monkeypatch):
    """Layers, rows that are held, and rows that do not fit into memory."""
    problem = jax_problem(apply_fn, params_of(NETWORK), data(), "categorical")
    every = kernels.output_rows(problem)[3:]
    L = np.full(len(problem.w), 0.3)
    monkeypatch.setattr(kernels, "_PART", 37)
    chosen = np.array([0, 5, 6, 50, 51, 90])
    exact = kernels.HeldRows(problem, L, every)
    K = exact.A @ exact.A.T
    builders = [kernels.kernel_builder(problem, L, every), kernels.StreamedRows(problem, L, every)]
    for builder in builders:
        made = np.concatenate([block for _, block in builder.columns(chosen)])
        np.testing.assert_allclose(made, K[:, chosen], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(builder.among(chosen), K[np.ix_(chosen, chosen)], rtol=1e-10)
    np.testing.assert_allclose(problem.squared_norms(L, every), np.diag(K), rtol=1e-10)
    if apply_fn is NETWORK:
        rough = kernels.kernel_builder(problem, L, every, "float32")
        assert rough.among(chosen).dtype == np.float32
        made = np.concatenate([block for _, block in rough.columns(chosen)])
        np.testing.assert_allclose(made, K[:, chosen], rtol=1e-4, atol=1e-4)


def test_no_tolerance_and_zero_are_exact():
    params, pair = params_of(NETWORK), data()
    settings = {"prior_precision": 0.3, "method": "dual"}
    exact = ns.log_evidence(NETWORK, params, pair, **settings)
    zero = ns.log_evidence(NETWORK, params, pair, tolerance=0, **settings)
    assert zero.log_evidence == exact.log_evidence
    assert zero.log_evidence_bounds is None
    chosen = ns.log_evidence(NETWORK, params, pair, prior_precision=0.3, tolerance=1.0)
    assert chosen.log_evidence_bounds is None  # "auto" took an exact method


def test_memory_that_is_full_is_said_and_the_bounds_still_hold(monkeypatch):
    params, pair = params_of(NETWORK), data()
    settings = {"prior_precision": 0.03, "method": "dual"}
    exact = ns.log_evidence(NETWORK, params, pair, **settings)
    monkeypatch.setattr(bounds, "memory_limit", lambda: 2 * 8 * 120 * 20.0)  # twenty columns
    found = ns.log_evidence(NETWORK, params, pair, tolerance=1e-3, **settings)
    lower, upper = found.log_evidence_bounds
    assert lower < exact.log_evidence < upper
    assert found.details["kernel_rows"] <= 20
    assert "all that memory holds: the tolerance was not reached" in " ".join(found.notes)


def test_bounds_by_rows_shrink_and_certain_examples_are_not_looked_at(pivots_alone):
    params, pair = params_of(NETWORK, scale=20.0), data()
    found = ns.log_evidence(
        NETWORK, params, pair, prior_precision=1.0, method="dual", tolerance=0.5
    )
    assert found.details["rows"] == 120
    matter = found.details["rows_that_matter"]
    assert matter < 100
    # The preflight knows it from the diagonal alone.
    problem = jax_problem(NETWORK, params, pair, "categorical")
    prior = np.ones(len(problem.w))
    plan = preflight(problem.facts(), "dual", "ggn", problem, Accuracy(0.5), prior, count_rows=True)
    assert plan.reason == found.preflight.reason == f"as asked, {matter} of 120 rows matter"
    rows, gaps = np.array(found.details["bounds_by_rows"]).T
    assert rows[0] == 0
    assert (np.diff(rows) > 0).all()
    assert (np.diff(gaps) < 0).all()


def test_under_a_chosen_prior_and_at_the_map(pivots_alone):
    apply_fn, params, pair = CASES["softmax regression"]
    settings = {"method": "dual", "prior_precision": "auto", "at": "point"}
    exact = ns.log_evidence(apply_fn, params, pair, **settings)
    found = ns.log_evidence(apply_fn, params, pair, tolerance=0.01, **settings)
    assert found.prior_precision == pytest.approx(exact.prior_precision, rel=0.01)
    lower, upper = found.log_evidence_bounds
    assert upper - lower <= 0.01
    assert lower - 0.01 < exact.log_evidence < upper + 0.01  # the priors differ a little
    assert 0 < ns.compare({"a": found, "b": found}).log_evidence_stds[0] <= 0.005
    settings = {"method": "dual", "prior_precision": 1.0, "at": "map", "conditional_on": 30}
    given = ns.log_evidence(apply_fn, params, pair, tolerance=0.01, **settings)
    lower, upper = given.log_evidence_bounds
    assert lower <= given.log_evidence <= upper <= lower + 0.02


def test_a_curve_from_one_reduction_against_the_exact_one(pivots_alone):
    problem = jax_problem(NETWORK, params_of(NETWORK), data(), "categorical")
    precisions = np.array([0.1, 1.0, 30.0])
    curves = [
        module.curve(problem, "ggn", Accuracy(tolerance), smallest=0.1, n_values=3)
        for module, tolerance in ((bounds.dual, None), (bounds, 0.5))
    ]
    exact, found = ([curve(value) for value in precisions] for curve in curves)
    np.testing.assert_allclose(found, exact, atol=0.25)
    assert np.abs(np.subtract(found, exact)).max() > 0  # it is not the exact one again
