"""The dual kernel: exact, blocks, rows left out."""

import jax
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam import dual
from noisescale.evidence.occam import kernel as kernels
from noisescale.evidence.occam.term import Accuracy
from oracles.models import (
    CASES,
    NETWORK,
    as_function,
    data,
    params_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("prior", [0.03, 2.0])
def test_dual_equals_dense(name, prior, no_small_roots):
    apply_fn, params, pair = CASES[name]
    found = {
        method: ns.log_evidence(apply_fn, params, pair, prior_precision=prior, method=method)
        for method in ("dense", "dual")
    }
    for field in ("log_evidence", "log_occam_factor", "newton_decrement"):
        assert getattr(found["dual"], field) == pytest.approx(
            getattr(found["dense"], field), rel=1e-9, abs=1e-9
        )
    assert found["dual"].details["kernel_rows"] <= 40 * 3


def test_the_fast_path_equals_the_generic_one(no_small_roots):
    params, pair = params_of(NETWORK), data()
    prior = jax.tree.map(lambda leaf: 0.1 * leaf.ndim, params)  # weights' and biases' differ
    fast = ns.log_evidence(NETWORK, params, pair, prior_precision=prior, method="dual")
    generic = ns.log_evidence(as_function, params, pair, prior_precision=prior, method="dual")
    assert fast.log_evidence == pytest.approx(generic.log_evidence, rel=1e-11)


def test_a_prior_within_a_layer_takes_the_generic_path(no_small_roots):
    params, pair = params_of(NETWORK), data()
    rng = np.random.default_rng(0)
    prior = jax.tree.map(lambda leaf: rng.uniform(0.1, 2, leaf.shape), params)
    found = {
        method: ns.log_evidence(NETWORK, params, pair, prior_precision=prior, method=method)
        for method in ("dense", "dual")
    }
    assert found["dual"].log_evidence == pytest.approx(found["dense"].log_evidence, rel=1e-10)


@pytest.mark.parametrize("apply_fn", [NETWORK, as_function])
def test_blocks_make_no_difference(apply_fn, no_small_roots, monkeypatch):
    params, pair = params_of(NETWORK), data()
    settings = {"prior_precision": 0.3, "method": "dual"}
    whole = ns.log_evidence(apply_fn, params, pair, **settings)
    monkeypatch.setattr(kernels, "BLOCK_BYTES", 20_000)
    parts = ns.log_evidence(apply_fn, params, pair, **settings)
    assert parts.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)


def test_rows_of_examples_learnt_for_certain_are_left_out(no_small_roots):
    """Their kernel entries are denormal numbers, which would slow the factorisation tenfold."""
    params, pair = params_of(NETWORK, scale=60.0), data()
    dense = ns.log_evidence(NETWORK, params, pair, prior_precision=0.1, method="dense")
    dual = ns.log_evidence(NETWORK, params, pair, prior_precision=0.1, method="dual")
    assert dual.details["kernel_rows"] < 90
    assert dual.log_occam_factor == pytest.approx(dense.log_occam_factor, abs=1e-8)


@pytest.mark.parametrize("apply_fn", [NETWORK, as_function])
def test_every_builder_gives_the_products_of_the_rows(apply_fn):
    """Layers, rows that are held, and rows that do not fit into memory."""
    problem = jax_problem(apply_fn, params_of(NETWORK), data(), "categorical")
    every = kernels.output_rows(problem)[3:]
    L, direction = np.full(len(problem.w), 0.3), np.cos(np.arange(len(problem.w)))
    exact = kernels.HeldRows(problem, L, every)
    K = exact.A @ exact.A.T
    kept = np.arange(len(every)) % 5 > 0
    builders = [kernels.kernel_builder(problem, L, every), kernels.StreamedRows(problem, L, every)]
    for builder in builders:
        np.testing.assert_allclose(builder.diagonal(), np.diag(K), rtol=1e-10)
        made = np.tril(builder.matrix(kept))
        np.testing.assert_allclose(made, np.tril(K[np.ix_(kept, kept)]), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            builder.along(direction), exact.along(direction), rtol=1e-10, atol=1e-12
        )


def test_the_curve_of_many_precisions_is_that_of_few():
    problem = jax_problem(NETWORK, params_of(NETWORK), data(), "categorical")
    many, few = (  # eigenvalues, and factorisations
        dual.curve(problem, "ggn", Accuracy(), smallest=0.1, n_values=n) for n in (20, 3)
    )
    for precision in (0.1, 1.0, 30.0):
        assert many(precision) == pytest.approx(few(precision), rel=1e-10)


def test_an_exact_method_is_within_every_tolerance():
    params, pair = params_of(NETWORK), data()
    settings = {"prior_precision": 0.3, "method": "dual"}
    exact, asked = (
        ns.log_evidence(NETWORK, params, pair, tolerance=tolerance, **settings)
        for tolerance in (None, 1.0)
    )
    assert asked.log_evidence == exact.log_evidence
    assert asked.log_evidence_std == 0
