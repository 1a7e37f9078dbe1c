"""One reduction for every prior precision."""

import numpy as np
import pytest

from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam import band, dual
from noisescale.evidence.occam.term import Accuracy
from oracles.models import NETWORK, data, params_of


@pytest.mark.parametrize("rank", [3, 1_000])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 40, 61])
def test_determinants_of_the_band_are_those_of_the_matrix(n, rank, monkeypatch):
    monkeypatch.setattr(band, "WIDTH", 5)
    monkeypatch.setattr(band, "_STROKE", 16)
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, min(n, rank)))
    K = A @ A.T
    B = band.band_of(np.tril(K))
    assert B.shape == (min(n, 6), n)
    for scale in (1e-3, 1.0, 50.0):
        exact = np.linalg.slogdet(np.eye(n) + scale * K)[1]
        assert band.log_determinant(B, scale) == pytest.approx(exact, rel=1e-11, abs=1e-12)


def test_a_matrix_of_zeros_and_one_with_rows_that_are():
    assert band.log_determinant(band.band_of(np.zeros((300, 300))), 2.0) == 0
    K = np.zeros((300, 300))
    K[100, 100] = 3.0
    assert band.log_determinant(band.band_of(K), 2.0) == pytest.approx(np.log(7.0))


def test_the_curve_of_large_kernels_is_that_of_small_ones(monkeypatch):
    problem = jax_problem(NETWORK, params_of(NETWORK), data(), "categorical")
    ways = []
    for large, n_values in ((10_000, 20), (0, 20), (0, 3)):  # eigenvalues, band, factorisations
        monkeypatch.setattr(dual, "LARGE", large)
        monkeypatch.setattr(band, "WIDTH", 16)
        curve = dual.curve(problem, "ggn", Accuracy(), smallest=0.1, n_values=n_values)
        ways.append([curve(precision) for precision in (0.1, 1.0, 30.0)])
    np.testing.assert_allclose(ways[1], ways[0], rtol=1e-10)
    np.testing.assert_allclose(ways[2], ways[0], rtol=1e-10)
