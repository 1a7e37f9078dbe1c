"""The dual kernel: exact, blocks, rows left out."""

import jax
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.occam import kernel as kernels
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
