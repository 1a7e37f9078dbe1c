"""Stochastic Lanczos quadrature: its interval, its rounding, what it says."""

import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator

import noisescale as ns
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam.lanczos import operator_term
from noisescale.evidence.occam.term import Accuracy
from oracles.models import CASES, NETWORK, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


@pytest.mark.parametrize("trials", [10, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize("name", ["dense network", "convolutional"])
def test_lanczos_covers_the_exact_value(name, curvature, trials):
    """A 95 % interval must hold it in at least 90 of 100 seeds; the curvature is a network's."""
    apply_fn, params, pair = CASES[name]
    problem = jax_problem(apply_fn, params, pair, "categorical")
    H, _ = problem.dense(curvature)
    nll, gradient = problem.nll_and_gradient()
    settings = {
        "nll": nll,
        "penalty": 0.15 * problem.w @ problem.w,
        "prior_precision": 0.3,
        "n_train": len(pair[1]),
        "n_classes": 4,
        "gradient": gradient + 0.3 * problem.w,
    }
    exact = ns.log_evidence_from_operator(H, method="dense", **settings)
    held = 0
    for seed in range(trials):
        found = ns.log_evidence_from_operator(
            H, method="lanczos", seed=seed, max_probes=16, tolerance=0.5, **settings
        )
        held += abs(found.log_evidence - exact.log_evidence) <= 1.96 * found.log_evidence_std
    assert held >= 0.9 * trials
    assert found.newton_decrement == pytest.approx(exact.newton_decrement, rel=0.05)
    assert abs(found.n_negative - exact.n_negative) <= 15


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_lanczos_on_a_network_is_that_of_its_matrix(curvature):
    apply_fn, params, pair = CASES["dense network"]
    settings = {"prior_precision": 0.3, "curvature": curvature}
    exact = ns.log_evidence(apply_fn, params, pair, method="dense", **settings)
    found = ns.log_evidence(apply_fn, params, pair, method="lanczos", tolerance=0.5, **settings)
    assert abs(found.log_evidence - exact.log_evidence) < 3 * found.log_evidence_std
    if exact.log_evidence_full is None:
        assert found.log_evidence_full is None
    else:
        assert found.log_evidence_full == pytest.approx(exact.log_evidence_full, abs=3)


def test_lanczos_says_what_it_did():
    params, pair = params_of(NETWORK), data()
    told = []
    settings = {"prior_precision": 0.3, "method": "lanczos", "progress": told.append}
    loose = ns.log_evidence(NETWORK, params, pair, tolerance=50.0, **settings)
    assert loose.details["tolerance_reached"]
    assert loose.details["n_probes"] == 8
    assert "probe 1 of at most 64" in told  # beside what is said every second
    tight = ns.log_evidence(NETWORK, params, pair, tolerance=1e-3, max_probes=8, **settings)
    assert not tight.details["tolerance_reached"]
    assert "was not reached with 8 probes" in " ".join(tight.notes)
    again = ns.log_evidence(NETWORK, params, pair, tolerance=1e-3, max_probes=8, **settings)
    assert again.log_evidence == tight.log_evidence  # deterministic by seed


def test_lanczos_takes_float64_where_rounding_would_show():
    params, pair = params_of(NETWORK), data()
    weak = ns.log_evidence(NETWORK, params, pair, prior_precision=1e-6, method="lanczos")
    strong = ns.log_evidence(
        NETWORK, params, pair, prior_precision=10.0, method="lanczos", tolerance=0.5
    )
    assert weak.details["products"] == "float64"
    assert strong.details["products"] == "float32"
    assert weak.details["rounding_bound"] < weak.log_evidence_std


def test_an_operator_without_a_gradient():
    """Against the eigenvalues: with as many steps as parameters, probes of signs are exact here."""
    h = np.geomspace(1e-2, 1e2, 40)
    settings = {"nll": 3.0, "penalty": 1.0, "prior_precision": 0.5, "n_train": 9, "n_classes": 2}
    found = ns.log_evidence_from_operator(np.diag(h), method="lanczos", **settings)
    assert found.log_evidence == pytest.approx(-4 - 0.5 * np.log1p(h / 0.5).sum(), rel=1e-6)


def test_products_are_counted_and_the_decrement_is_exact():
    """Of two distinct curvatures, which two steps exhaust."""
    p = 300
    h = np.where(np.arange(p) < 100, 7.0, 0.5)
    slope = np.random.default_rng(0).normal(size=p)
    n_columns = 0

    def product(V):
        nonlocal n_columns
        n_columns += V.shape[1] if V.ndim == 2 else 1
        return (h * V.T).T

    H = LinearOperator((p, p), matvec=product, matmat=product, dtype=np.float64)
    L = np.full(p, 2.0)
    term = operator_term(lambda precision: H, L, slope, positive=True, accuracy=Accuracy())
    assert term.occam.newton_decrement == pytest.approx((slope**2 / (h + L)).sum(), rel=1e-9)
    assert term.details["n_products"] == n_columns


def test_the_decrement_of_many_curvatures_ends_when_it_has_settled():
    """A smooth decay: to a few parts in ten thousand, in fewer products than there are steps."""
    p = 2_000
    h = 50.0 * np.exp(-np.arange(p) / 40.0)
    slope = np.random.default_rng(1).normal(size=p)
    L = np.ones(p)
    H = LinearOperator((p, p), matvec=lambda v: h * np.ravel(v), dtype=np.float64)
    few = operator_term(
        lambda precision: H,
        L,
        slope,
        positive=True,
        accuracy=Accuracy(max_probes=2, n_steps=200),
    )
    assert few.occam.newton_decrement == pytest.approx((slope**2 / (h + L)).sum(), rel=1e-3)
    assert few.details["n_products"] < 200
