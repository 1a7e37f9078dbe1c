"""Determinants mostly in float32: what they are off by is what is stated, and no more."""

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.occam import mixed
from oracles.models import NETWORK, as_function, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


def small_rows(rng, n=400):
    """A kernel with some large rows, the largest first."""
    sizes = np.sort(10.0 ** rng.uniform(-4, 1, n))[::-1]
    A = rng.normal(size=(n, n // 2)) * np.geomspace(1, 0.01, n // 2)
    A *= np.sqrt(sizes)[:, None] / np.linalg.norm(A, axis=1, keepdims=True)
    return A @ A.T


@pytest.mark.parametrize("panel", [17, 64, 1_000])
def test_off_by_less_than_the_stated_rounding(panel, monkeypatch):
    """Fifty kernels; float32 alone would be off by far more than float64 and this are."""
    monkeypatch.setattr(mixed, "_PANEL", panel)
    monkeypatch.setattr(mixed, "_STROKE", 37)
    rng = np.random.default_rng(0)
    for _ in range(50):
        K = small_rows(rng)
        d, a = np.diag(K).copy(), rng.normal(size=len(K))
        h = int((d > 0.5).sum())
        M = np.eye(len(K)) + K
        exact = np.linalg.slogdet(M)[1]
        found, decrease, rounding = mixed.factorised(
            K[:h, :h], K[h:, :h], np.tril(K[h:, h:], -1).astype(np.float32), d[h:], a[:h], a[h:]
        )
        assert abs(found - exact) <= rounding + 1e-12 * abs(exact)
        assert rounding < 1e-4
        assert decrease == pytest.approx(a @ np.linalg.solve(M, a), rel=1e-5)


@pytest.fixture
def at_every_size(monkeypatch, no_small_roots):
    monkeypatch.setattr(mixed, "FEWEST", 0)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_network_whose_rows_matter_little(scale, at_every_size, monkeypatch):
    params, pair = params_of(NETWORK, scale=scale), data()
    settings = {"prior_precision": 200.0, "method": "dual", "at": "point"}
    found = ns.log_evidence(NETWORK, params, pair, **settings)
    assert 0 < found.details["rounding_bound"] < 1e-4
    monkeypatch.setattr(mixed, "FEWEST", 1_000)
    exact = ns.log_evidence(NETWORK, params, pair, **settings)
    assert "rounding_bound" not in exact.details
    assert found.details["kernel_rows"] == exact.details["kernel_rows"]
    off = abs(found.log_evidence - exact.log_evidence)
    assert off <= found.details["rounding_bound"] + 1e-12 * abs(exact.log_evidence)
    assert found.newton_decrement == pytest.approx(exact.newton_decrement, rel=1e-5)


def test_float64_where_rows_are_large_or_layers_not_known(at_every_size, monkeypatch):
    params, pair = params_of(NETWORK), data()
    settings = {"method": "dual", "at": "point"}
    many_large = ns.log_evidence(NETWORK, params, pair, prior_precision=0.03, **settings)
    assert "rounding_bound" not in many_large.details
    unknown = ns.log_evidence(as_function, params, pair, prior_precision=200.0, **settings)
    assert "rounding_bound" not in unknown.details
    monkeypatch.setattr(mixed, "_ROUNDING", 0.0)
    strict = ns.log_evidence(NETWORK, params, pair, prior_precision=200.0, **settings)
    assert strict.log_evidence == pytest.approx(unknown.log_evidence, rel=1e-12)
