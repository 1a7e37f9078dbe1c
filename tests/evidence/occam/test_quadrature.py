"""Stochastic Lanczos quadrature: no bias, honest error bars, other functions from the same runs."""

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

from noisescale.evidence.occam.quadrature import trace_of_function

SPECTRA = {
    "falls quickly": lambda p: 1e3 * np.exp(-np.arange(p) / 3),
    "falls slowly": lambda p: 1e3 / np.arange(1, p + 1) ** 1.5,
    "flat": lambda p: np.linspace(1, 3, p),
    "of low rank": lambda p: np.r_[np.geomspace(1e3, 1, 12), np.zeros(p - 12)],
}


def matrix(mu, seed=0):
    """A symmetric matrix of these eigenvalues, and ln(I + M)."""
    U = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(mu), len(mu))))[0]
    return (U * mu) @ U.T, (U * np.log1p(mu)) @ U.T


@pytest.mark.parametrize("name", SPECTRA)
def test_error_bars_cover_and_the_spread_is_that_of_signs(name):
    """95 % intervals in at least 270 of 300 seeds (four standard deviations), with no bias."""
    mu = SPECTRA[name](120)
    M, _ = matrix(mu)
    exact = np.log1p(mu).sum()
    found = [
        trace_of_function(
            aslinearoperator(M), np.log1p, tolerance=1e-9, max_probes=8, n_steps=24, seed=seed
        )
        for seed in range(300)
    ]
    errors = np.array([estimate.value for estimate in found]) - exact
    stds = np.array([estimate.std for estimate in found])
    quadrature = np.mean([estimate.quadrature_error for estimate in found])
    assert (np.abs(errors) <= 1.96 * stds + 1e-9 * exact).sum() >= 270
    assert abs(errors.mean()) <= 4 * errors.std() / np.sqrt(300) + quadrature + 1e-9 * exact
    # The variance of signs is known.
    F = matrix(mu)[1]
    plain = np.sqrt(2 * (np.linalg.norm(F) ** 2 - np.square(np.diag(F)).sum()) / 8)
    assert errors.std() == pytest.approx(plain, rel=0.25)


def test_more_probes_and_other_functions_from_the_same_quadratures():
    mu = SPECTRA["falls slowly"](120)
    M, _ = matrix(mu)
    settings = {"tolerance": 1e-9, "n_steps": 24}
    few, more, most = (
        trace_of_function(aslinearoperator(M), np.log1p, max_probes=n, **settings)
        for n in (2, 8, 32)
    )
    assert [estimate.n_probes for estimate in (few, more, most)] == [2, 8, 32]
    assert most.std < 0.7 * more.std
    assert most.probes[0].alpha.tolist() == more.probes[0].alpha.tolist()
    for estimate in (few, more, most):
        nodes, weights = estimate.nodes()
        for f in (np.log1p, np.sqrt):
            assert weights @ f(nodes.clip(0)) == pytest.approx(
                estimate.trace(lambda t, f=f: f(t.clip(0))), rel=1e-12
            )
    spread = np.sqrt(2 * (np.square(mu).sum() - np.square(np.diag(M)).sum()) / 32)
    assert abs(most.trace(lambda t: t) - mu.sum()) < 4 * spread
