"""kfac and diagonal against their definitions."""

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence import jax_problem as jax_problems
from noisescale.evidence.curvature.gauss_newton import dense_ggn
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam import kfac
from noisescale.evidence.occam.kernel import output_rows
from noisescale.evidence.occam.semidefinite import (
    Spectral,
    Tridiagonal,
    semidefinite_eigh,
    solved_when_shifted,
)
from noisescale.evidence.occam.term import Accuracy
from oracles.models import NETWORK, as_function, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


def test_diagonal_and_kfac_against_their_definitions():
    params, pair = params_of(NETWORK), data()
    model = jax_problem(NETWORK, params, pair, "categorical").model
    H = dense_ggn(model)[0]
    diagonal = ns.log_evidence(NETWORK, params, pair, prior_precision=0.3, method="diagonal")
    assert diagonal.log_occam_factor == pytest.approx(
        -0.5 * np.log1p(np.diag(H) / 0.3).sum(), rel=1e-10
    )
    general = ns.log_evidence(as_function, params, pair, prior_precision=0.3, method="diagonal")
    assert general.log_occam_factor == pytest.approx(diagonal.log_occam_factor, rel=1e-10)
    assert "approximation" in " ".join(diagonal.notes)


def test_kfac_is_exact_where_it_should_be():
    """One example: the factors of every layer are the block itself, exactly."""
    network = ns.softmax_regression(8, 4)
    params, (x, y) = params_of(network), data(1)
    model = jax_problem(network, params, (x, y), "categorical").model
    H = dense_ggn(model)[0]
    found = ns.log_evidence(network, params, (x, y), prior_precision=0.3, method="kfac")
    blocks = [H[:4, :4], H[4:, 4:]]  # bias and weights, which KFAC takes as unrelated
    exact = -0.5 * sum(np.linalg.slogdet(np.eye(len(b)) + b / 0.3)[1] for b in blocks)
    assert found.log_occam_factor == pytest.approx(exact, rel=1e-10)
    with pytest.raises(
        ns.InputError, match="needs layers that multiply: a noisescale.DenseNetwork"
    ):
        ns.log_evidence(as_function, params_of(NETWORK), data(), prior_precision=1.0, method="kfac")


@pytest.mark.parametrize("method", ["kfac", "diagonal"])
def test_blocks_of_examples_make_no_difference(method, monkeypatch):
    """Examples are streamed: all of them at once, or two."""
    params, pair = params_of(NETWORK), data()
    settings = {"prior_precision": 0.3, "method": method}
    whole = ns.log_evidence(NETWORK, params, pair, **settings)
    monkeypatch.setattr(jax_problems, "_LAYER_BYTES", 2_000)
    parts = ns.log_evidence(NETWORK, params, pair, **settings)
    for field in ("log_evidence", "newton_decrement"):
        assert getattr(parts, field) == pytest.approx(getattr(whole, field), rel=1e-12)


@pytest.mark.parametrize("rank", [0, 5, 69, 100])
def test_eigenvectors_of_a_matrix_of_any_rank(rank):
    """Against LAPACK's own, and as what they are: an orthonormal basis of the matrix's range."""
    x = np.random.default_rng(rank).normal(size=(rank, 100)) * np.geomspace(1, 1e-3, 100)
    values, vectors = semidefinite_eigh(x.T @ x)
    assert len(values) == rank
    assert vectors.shape == (100, rank)
    exact = np.linalg.eigvalsh(x.T @ x)
    np.testing.assert_allclose(values, exact[100 - rank :], atol=1e-13 * exact.max(), rtol=1e-8)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=1e-8)
    scale = np.abs(x.T @ x).max(initial=1.0)
    np.testing.assert_allclose(vectors * values @ vectors.T, x.T @ x, atol=1e-13 * 100 * scale)


def test_kfac_with_fewer_examples_than_inputs_against_the_whole_matrix():
    """Where the curvature is zero, the gradient still counts in the decrement."""
    network, rng = ns.softmax_regression(80, 3), np.random.default_rng(0)
    pair = rng.normal(size=(7, 80)), rng.integers(3, size=7)
    problem = jax_problem(network, params_of(network), pair, "categorical")
    L, slope = np.full(len(problem.w), 0.3), rng.normal(size=len(problem.w))
    found = kfac.term(problem, L, slope, "ggn", Accuracy()).occam
    (block,) = problem.kronecker(output_rows(problem)).blocks
    log_occam = decrement = 0.0
    for H, s in (
        (np.kron(block.outputs, block.inputs), slope[block.weight].ravel()),
        (block.outputs, slope[block.bias]),
    ):
        curved = H + 0.3 * np.eye(len(H))
        log_occam -= 0.5 * np.linalg.slogdet(curved / 0.3)[1]
        decrement += s @ np.linalg.solve(curved, s)
    assert found.full == pytest.approx(log_occam, rel=1e-10)
    assert found.newton_decrement == pytest.approx(decrement, rel=1e-10)


@pytest.mark.parametrize(
    ("n", "rank", "kind"), [(90, 90, Tridiagonal), (90, 40, Spectral), (7, 7, Spectral)]
)
@pytest.mark.parametrize("precision", [1e-6, 1.0, 1e4])
def test_shifted_solutions_are_those_of_the_matrix(n, rank, kind, precision):
    rng = np.random.default_rng(n + rank)
    F = rng.normal(size=(n, rank)) * np.exp(-np.arange(rank) / 10)
    M, W, scales = F @ F.T, rng.normal(size=(n, 5)), np.array([0.0, 1e-3, 1.0, 2.0, 50.0])
    made = solved_when_shifted(M)
    assert isinstance(made, kind)
    values = np.linalg.eigvalsh(M)
    np.testing.assert_allclose(
        np.sort(made.values)[::-1],
        np.maximum(values[::-1][: len(made.values)], 0),
        rtol=1e-9,
        atol=1e-12 * values[-1],
    )
    expected = [
        w @ np.linalg.solve(s * M + precision * np.eye(n), w)
        for w, s in zip(W.T, scales, strict=True)
    ]
    np.testing.assert_allclose(made.inverse(W, scales, precision), expected, rtol=1e-6)


@pytest.mark.parametrize("n_zero", [0, 1, 30, 99, 100])
def test_rows_that_are_zero_are_left_out_and_count_with_the_precision_alone(n_zero):
    """As of pixels that are never on: against the whole matrix, zeros and all."""
    rng = np.random.default_rng(n_zero)
    x = rng.normal(size=(400, 100))
    x[:, rng.permutation(100)[:n_zero]] = 0.0
    M, W, scales = x.T @ x, rng.normal(size=(100, 3)), np.array([0.0, 0.1, 5.0])
    values, vectors = semidefinite_eigh(M)
    assert vectors.shape == (100, 100 - n_zero)
    np.testing.assert_allclose(vectors * values @ vectors.T, M, atol=1e-10 * 400)
    made = solved_when_shifted(M)
    held = np.sort(made.values)[::-1][: 100 - n_zero]
    np.testing.assert_allclose(held, np.linalg.eigvalsh(M)[::-1][: 100 - n_zero], rtol=1e-9)
    expected = [
        w @ np.linalg.solve(s * M + 0.3 * np.eye(100), w) for w, s in zip(W.T, scales, strict=True)
    ]
    np.testing.assert_allclose(made.inverse(W, scales, 0.3), expected, rtol=1e-9)


def test_a_singular_tridiagonal_form_that_rounds_below_zero_is_solved_all_the_same():
    """A precision far below the rounding of the largest eigenvalue."""
    rng = np.random.default_rng(0)
    F = rng.normal(size=(80, 79)) * np.exp(-np.arange(79) / 2)
    made = solved_when_shifted(F @ F.T + 1e-13 * np.eye(80))
    assert np.isfinite(made.inverse(rng.normal(size=(80, 3)), np.ones(3), 1e-18)).all()


def test_a_shifted_matrix_solves_for_no_column_too():
    """Where the other factor is zero: units before a layer that are all dead."""
    x = np.random.default_rng(0).normal(size=(200, 90))
    made = solved_when_shifted(x.T @ x)
    assert isinstance(made, Tridiagonal)
    assert made.inverse(np.zeros((90, 0)), np.zeros(0), 0.3).shape == (0,)
