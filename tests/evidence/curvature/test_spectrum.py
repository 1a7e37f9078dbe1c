"""The spectrum against all eigenvalues of a small network."""

import numpy as np
import pytest
from scipy.sparse.linalg import aslinearoperator

import noisescale as ns
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.jax_problem import jax_problem
from oracles.models import NETWORK, data, params_of


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_against_all_eigenvalues(curvature):
    params, pair = params_of(NETWORK), data()
    H, _ = jax_problem(NETWORK, params, pair, "categorical").dense(curvature)
    h = np.linalg.eigvalsh(H)[::-1]
    found = ns.spectrum(NETWORK, params, pair, curvature=curvature, top_k=4, n_probes=16)
    np.testing.assert_allclose(found.top, h[:4], rtol=1e-5)
    assert abs(found.trace - h.sum()) < 4 * found.trace_std
    below = (h < -found.resolution).sum()
    # Lanczos blurs what lies within its resolution of the limit.
    near = (np.abs(h + found.resolution) < found.resolution).sum()
    assert abs(found.n_negative - below) < 4 * found.n_negative_std + near
    assert found.weights.sum() == pytest.approx(len(h), rel=1e-9)
    assert f"trace {found.trace:.4g} ± {found.trace_std:.2g}" in repr(found)


def test_leading_directions_of_what_arpack_gives_up_on():
    values, vectors = leading(aslinearoperator(np.zeros((5, 5))), 2)
    np.testing.assert_array_equal(values, 0)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(2), atol=1e-12)
    H = np.diag([3.0, 1.0, -2.0, 0.5, 0.0])
    values, vectors = leading(aslinearoperator(H), 2)
    np.testing.assert_allclose(values, [3, 1], rtol=1e-5)
    np.testing.assert_allclose(np.abs(vectors[:2]), np.eye(2), atol=1e-4)


def test_inputs_of_zeros_have_a_spectrum():
    """Only the last layer's bias is curved: its eigenvalues are the softmax's, N times."""
    params, (x, y) = params_of(NETWORK), data()
    zeros = {"w": np.zeros((8, 4)), "b": np.zeros(4)}
    found = ns.spectrum(ns.softmax_regression(8, 4), (zeros,), (0 * x, y), top_k=4)
    np.testing.assert_allclose(found.top, [10, 10, 10, 0], atol=1e-6)
    noise = ns.gradient_noise(NETWORK, params, (0 * x, 0 * y), n_eigenvalues=2)
    np.testing.assert_allclose(noise.spectrum.eigenvalues, 0, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 9, 11])
def test_few_parameters_have_a_spectrum_by_default(p):
    x = np.random.default_rng(0).normal(size=(20, p))
    found = ns.spectrum(lambda w, x: x @ w, np.ones(p), (x, x[:, 0]), likelihood="gaussian")
    h = np.linalg.eigvalsh(x.T @ x)[::-1]
    np.testing.assert_allclose(found.top, h[:10], rtol=1e-5)
    assert found.weights.sum() == pytest.approx(p)
    assert len(found.plot().lines) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 10_000}, "top_k must be at most 139, the number of parameters"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"curvature": "fisher"}, "curvature must be one of ggn, hessian"),
        ({"n_probes": 1}, "n_probes must be at least 2"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ns.InputError, match=message):
        ns.spectrum(NETWORK, params_of(NETWORK), data(), **options)
