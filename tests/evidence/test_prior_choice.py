"""The evidence against the prior precision, and where it is largest."""

import numpy as np
import pytest

import noisescale as ns
from oracles.models import NETWORK, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos"])
def test_the_curve_is_the_evidence_at_each_precision(method, no_small_roots):
    params, pair = params_of(NETWORK), data()
    grid = np.geomspace(1e-3, 1e3, 25)
    curve = ns.evidence_curve(NETWORK, params, pair, prior_precisions=grid, method=method)
    exact = [
        ns.log_evidence(NETWORK, params, pair, prior_precision=lam).log_evidence
        for lam in grid[::6]
    ]
    np.testing.assert_allclose(
        curve.log_evidence[::6], exact, rtol=1e-9 if method != "lanczos" else 0.02
    )
    np.testing.assert_allclose(curve.E, -40 * np.log(4) - curve.log_evidence)
    assert curve.edge is None
    assert curve.best_log_evidence >= curve.log_evidence.max()
    assert "largest log evidence" in repr(curve)


def test_few_precisions_are_factorised_one_by_one(no_small_roots, monkeypatch):
    params, pair = params_of(NETWORK), data(600)
    few = ns.evidence_curve(NETWORK, params, pair, prior_precisions=[0.1, 1, 10], method="dual")
    monkeypatch.setattr("scipy.linalg.eigvalsh", None)  # would fail if it were called
    monkeypatch.setattr("noisescale.evidence.prior_choice._EVALUATIONS", 0)
    one_by_one = ns.evidence_curve(
        NETWORK, params, pair, prior_precisions=[0.1, 1, 10], method="dual"
    )
    np.testing.assert_allclose(one_by_one.log_evidence, few.log_evidence, rtol=1e-10)


@pytest.mark.parametrize("method", ["dense", "dual"])
def test_chosen_priors_are_stationary_points_of_the_evidence(method, no_small_roots):
    params, pair = params_of(NETWORK), data()
    chosen = ns.log_evidence(NETWORK, params, pair, prior_precision="auto", method=method)
    layers = ns.log_evidence(NETWORK, params, pair, prior_precision="per_layer", method=method)
    assert layers.log_evidence > chosen.log_evidence
    assert "maximises the evidence" in " ".join(chosen.notes)
    precisions = layers.prior_precision
    assert list(precisions) == ["0", "1", "2"]

    def at(values):
        prior = tuple({"b": v, "w": v} for v in values)
        return ns.log_evidence(NETWORK, params, pair, prior_precision=prior).log_evidence

    best = np.array(list(precisions.values()))
    for k in range(3):
        for factor in (1.1, 1 / 1.1):
            moved = best * np.where(np.arange(3) == k, factor, 1)
            assert at(moved) < layers.log_evidence
    for factor in (1.05, 1 / 1.05):
        scalar = chosen.prior_precision * factor
        moved = ns.log_evidence(NETWORK, params, pair, prior_precision=scalar)
        assert moved.log_evidence < chosen.log_evidence
