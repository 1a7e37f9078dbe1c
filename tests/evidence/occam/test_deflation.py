"""What probes learn from one another: nothing that biases, less spread, honest error bars."""

from itertools import product

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

from noisescale.evidence.occam.deflation import leading
from noisescale.evidence.occam.krylov import lanczos_together
from noisescale.evidence.occam.quadrature import probe_signs, trace_of_function

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


def naive(M, runs, signs):
    """nu, w and (u' z)^2 - 1 by an orthonormal basis of all vectors, and the Ritz vectors."""
    W = np.concatenate([run.Q[: run.steps] for run in runs]).T
    columns, sizes, _ = np.linalg.svd(W, full_matrices=False)
    V = columns[:, sizes**2 > 1e-3]
    theta, S = np.linalg.eigh(V.T @ M @ V)
    u = (V @ S)[:, theta > 0]
    theta = theta[theta > 0]
    rho = np.square(M @ u - theta * u).sum(axis=0)
    w = theta**2 / (theta**2 + rho)
    kept = w >= 0.5
    return (theta + rho / theta)[kept], w[kept], (signs @ u[:, kept]) ** 2 - 1, u[:, kept]


@pytest.mark.parametrize("steps", [1, 6, 40])
@pytest.mark.parametrize("name", SPECTRA)
def test_ritz_vectors_without_a_product_are_those_of_a_basis(name, steps):
    """And the bound of the docstring: no vector that is kept makes the spread larger."""
    M, F = matrix(SPECTRA[name](40))
    starts = np.stack([probe_signs(0, k, 40) for k in range(3)]).astype(float)
    signs = np.stack([probe_signs(0, k, 40) for k in range(3, 8)])
    runs = lanczos_together(aslinearoperator(M), starts, steps)
    found = leading(runs, range(3, 8), signs)
    nodes, weights, excess, u = naive(M, runs, signs)
    assert found.probes == (3, 4, 5, 6, 7)
    np.testing.assert_allclose(found.nodes, nodes, rtol=1e-5)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-5)
    # Vectors of eigenvalues that coincide to rounding may turn among themselves.
    g = weights * np.log1p(nodes)
    ours = [found.correction(np.log1p, at) for at in range(5)]
    np.testing.assert_allclose(ours, excess @ g, rtol=1e-5, atol=1e-6)
    left = np.linalg.norm(F - (u * g) @ u.T) ** 2
    assert left <= np.linalg.norm(F) ** 2 - (g**2).sum() + 1e-9
    if steps == 40:
        assert left < 1e-6 * np.linalg.norm(F) ** 2  # the whole space


def test_a_probe_is_unbiased_whatever_it_learnt():
    """Over all 2^9 sign vectors: the mean is the trace, and the spread is smaller."""
    M, F = matrix(1e2 / np.arange(1, 10.0) ** 2)
    every = np.array(list(product([-1, 1], repeat=9)), np.int8)
    runs = lanczos_together(aslinearoperator(M), probe_signs(0, 0, 9)[None].astype(float), 4)
    found = leading(runs, range(len(every)), every)
    plain = np.einsum("zi,ij,zj->z", every, F, every)
    corrections = np.array([found.correction(np.log1p, at) for at in range(len(every))])
    assert corrections.mean() == pytest.approx(0.0, abs=1e-10)
    assert (plain - corrections).mean() == pytest.approx(np.trace(F), rel=1e-10)
    assert 0 < (plain - corrections).std() < 0.7 * plain.std()


@pytest.mark.parametrize("name", SPECTRA)
def test_error_bars_cover_and_a_spectrum_that_falls_has_less_spread(name):
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
    # The variance of signs without deflation is known.
    F = matrix(mu)[1]
    plain = np.sqrt(2 * (np.linalg.norm(F) ** 2 - np.square(np.diag(F)).sum()) / 8)
    share = errors.std() / plain
    limits = {"falls quickly": 0.25, "falls slowly": 0.7, "flat": 1.2, "of low rank": 1e-6}
    assert share < limits[name]
    left = np.mean([estimate.spread_left for estimate in found])
    assert left == pytest.approx(share, abs=0.2)


def test_more_probes_and_other_functions_from_the_same_quadratures():
    mu = SPECTRA["falls slowly"](120)
    M, _ = matrix(mu)
    settings = {"tolerance": 1e-9, "n_steps": 24}
    few, more, most = (
        trace_of_function(aslinearoperator(M), np.log1p, max_probes=n, **settings)
        for n in (2, 8, 32)
    )
    assert few.spread_left == 1  # two probes cannot learn in a ring
    assert most.n_probes == 32
    assert most.std < 0.7 * more.std
    assert most.blocks[0].probes[0].alpha.tolist() == more.blocks[0].probes[0].alpha.tolist()
    for estimate in (few, more, most):
        nodes, weights = estimate.nodes()
        for f in (np.log1p, np.sqrt):
            assert weights @ f(nodes.clip(0)) == pytest.approx(
                estimate.trace(lambda t, f=f: f(t.clip(0))), rel=1e-12
            )
    assert abs(most.trace(lambda t: t) - mu.sum()) < 0.2 * mu.sum()
