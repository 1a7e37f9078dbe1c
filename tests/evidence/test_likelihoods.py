"""Likelihoods beyond classes of whole examples: sequences, counts, estimated noise, users' own."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp

import noisescale as ns
from noisescale.evidence.curvature.roots import sequence_root
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.null import log_null_of
from noisescale.evidence.occam.kernel import output_rows
from noisescale.evidence.rows import Rows

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")

N, T, C = 5, 3, 4


def tokens(params, x):
    """Logits (N, T, C) of each token from it and the one before."""
    h = jnp.tanh(x @ params["a"])
    before = jnp.pad(h, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return (h + before) @ params["b"]


@cache
def make_sequences():
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(2, 3)), "b": rng.normal(size=(3, C))}
    x, y = rng.normal(size=(N, T, 2)), rng.integers(C, size=(N, T))
    y[0, 2] = y[3, 1] = -100
    return params, (x, y)


@pytest.fixture
def sequences():
    return make_sequences()


@cache
def brute_force():
    """nll, Gauss-Newton matrix, Hessian: whole derivatives of a naive sum over tokens."""
    (params, data), nll = make_sequences(), token_nll
    with jax.enable_x64(True):
        w, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params))

        @jax.jit
        def derivatives(w):
            J = jax.jacobian(lambda w: tokens(unravel(w), data[0]).reshape(-1))(w)
            f = tokens(unravel(w), data[0])
            Lambda = jax.hessian(lambda z: nll(z.reshape(f.shape), data[1]))(f.reshape(-1))
            H = jax.hessian(lambda w: nll(tokens(unravel(w), data[0]), data[1]))(w)
            return nll(f, data[1]), J.T @ Lambda @ J, H

        value, G, H = map(np.asarray, derivatives(w))
        return float(value), G, H, np.asarray(w)


def token_nll(f, y):
    return -jnp.sum(chosen_of(y) * log_p(f))


def chosen_of(y):
    """Ones where a class was seen; zeros alone where a token does not count."""
    return np.eye(C)[np.where(y == -100, 0, y)] * (y != -100)[..., None]


def log_p(f):
    return jnp.log(jnp.exp(f) / jnp.exp(f).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize(
    ("method", "curvature"),
    [("dense", "ggn"), ("dual", "ggn"), ("dense", "hessian"), ("diagonal", "ggn")],
)
def test_sequences(sequences, method, curvature):
    params, data = sequences
    nll, G, H, w = brute_force()
    found = ns.log_evidence(
        tokens, params, data, prior_precision=0.5, method=method, curvature=curvature
    )
    matrix = {"ggn": G, "hessian": H}[curvature]
    mu = np.diag(G) if method == "diagonal" else np.linalg.eigvalsh(matrix)
    occam = -0.5 * np.log1p(mu[mu > 0] / 0.5).sum()
    assert found.nll == pytest.approx(nll, rel=1e-10)
    assert found.log_evidence == pytest.approx(-nll - 0.25 * w @ w + occam, rel=1e-9)
    assert found.log_null == pytest.approx(-13 * np.log(4), rel=1e-12)
    assert found.n_train == N


def test_the_kernel_of_sequences_has_rows_for_every_token(sequences):
    problem = jax_problem(tokens, *sequences, "categorical")
    assert problem.facts().rows == N * T * (C - 1)
    rows = output_rows(problem)
    assert rows.coefficients.shape == (N * T * (C - 1), T * C)
    assert rows.values.shape == (N * T * (C - 1), C)  # a row touches its own token's outputs


def test_the_root_of_a_sequence():
    rng = np.random.default_rng(0)
    logits, counts = rng.normal(size=(2, 3, 4)), np.array([[1, 0, 1], [1, 1, 0]], bool)
    rows = Rows.of(sequence_root(logits, counts))
    for i in range(2):
        R = rows[rows.examples == i].coefficients
        expected = np.zeros((12, 12))
        for t in range(3):
            p = np.exp(logits[i, t]) / np.exp(logits[i, t]).sum()
            part = slice(4 * t, 4 * t + 4)
            expected[part, part] = counts[i, t] * (np.diag(p) - np.outer(p, p))
        np.testing.assert_allclose(R.T @ R, expected, atol=1e-14)


def test_gradient_noise_and_predictions_of_sequences(sequences):
    params, (x, y) = sequences
    noise = ns.gradient_noise(tokens, params, (x, y))
    each, gradient = [], jax.grad(lambda p, x, chosen: -jnp.sum(chosen * log_p(tokens(p, x))))
    for i in range(N):
        one = jax.jit(gradient)(params, x[i : i + 1], chosen_of(y[i : i + 1]))
        each.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)]))
    each = np.array(each)
    trace = ((each - each.mean(0)) ** 2).sum() / (N - 1)
    assert noise.trace == pytest.approx(trace, rel=1e-4)
    settings = {"prior_precision": 0.5}
    a, b = (
        ns.posterior_predict(tokens, params, (x, y), x[:2], method=method, **settings)
        for method in ("dense", "dual")
    )
    assert a.shape == (2, T, C)
    np.testing.assert_allclose(a, b, rtol=1e-8)
    np.testing.assert_allclose(a.sum(axis=2), 1, rtol=1e-12)


def linear(w, x):
    return x @ w


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 3))
    return rng.normal(size=(3, 2)), (
        x,
        x @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(30, 2)),
    )


def test_an_estimated_noise_is_that_of_the_residuals(regression):
    w, (x, y) = regression
    beta = y.size / ((x @ w - y) ** 2).sum()
    found = ns.log_evidence(
        linear, w, (x, y), prior_precision=0.5, likelihood=ns.gaussian("estimate")
    )
    known = ns.log_evidence(linear, w, (x, y), prior_precision=0.5, likelihood=ns.gaussian(beta))
    assert found.log_evidence == pytest.approx(known.log_evidence, rel=1e-9)
    assert any(
        f"noise precision {beta:.4g} is that of largest likelihood" in n for n in found.notes
    )
    # The null model's noise is from its own residuals.
    null_beta = y.size / ((y - y.mean(0)) ** 2).sum()
    covariance = np.eye(30) / null_beta + np.full((30, 30), 1 / 0.5)
    null = sum(stats.multivariate_normal(np.zeros(30), covariance).logpdf(c) for c in y.T)
    assert found.log_null == pytest.approx(null, rel=1e-9)
    with pytest.raises(ns.InputError, match="residuals are all zero"):
        ns.log_evidence(
            linear, w, (x, x @ w), prior_precision=0.5, likelihood=ns.gaussian("estimate")
        )


def test_counts(regression):
    w, (x, _) = regression
    y = np.random.default_rng(2).poisson(2.0, size=(30, 2))
    found = ns.log_evidence(linear, w, (x, y), prior_precision=0.5, likelihood="poisson")
    rates = np.exp(x @ w)
    nll = -stats.poisson(rates).logpmf(y).sum()
    H = [x.T @ (rates[:, [c]] * x) for c in range(2)]
    occam = -0.5 * sum(np.linalg.slogdet(np.eye(3) + h / 0.5)[1] for h in H)
    assert found.nll == pytest.approx(nll, rel=1e-12)
    assert found.log_evidence == pytest.approx(-nll - 0.25 * (w**2).sum() + occam, rel=1e-10)
    null = 0.0
    for column in y.T:
        area, _ = integrate.quad(
            lambda b, column=column: np.exp(
                stats.poisson(np.exp(b)).logpmf(column).sum() + 60 + stats.norm(0, 2**0.5).logpdf(b)
            ),
            -3,
            4,
            epsrel=1e-11,
        )
        null += np.log(area) - 60
    assert found.log_null == pytest.approx(null, rel=1e-9)
    for wrong in (-1, 0.5):
        with pytest.raises(ns.InputError, match="y must be 0, 1, 2, ..., got"):
            ns.log_evidence(
                linear, w, (x, y + wrong * (y == 0)), prior_precision=0.5, likelihood="poisson"
            )


@pytest.mark.parametrize("lam", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rate", [0.0, 300.0])
def test_the_null_model_of_counts_at_any_scale(lam, rate):
    y = np.random.default_rng(0).poisson(rate, size=20)
    x = np.ones((20, 1))
    found = log_null_of(jax_problem(linear, np.zeros((1, 1)), (x, y), "poisson"), lam)
    # A regular grid over all that counts: 9 prior standard deviations below, and up to where the
    # counts end it; its error falls faster than any power of the spacing.
    low = -9 / np.sqrt(lam) - 1
    b = np.linspace(low, min(-low, 12), 1_000_001)
    logs = stats.norm(0, lam**-0.5).logpdf(b) + y.sum() * b - 20 * np.exp(b)
    expected = logsumexp(logs) + np.log(b[1] - b[0]) - gammaln(y + 1).sum()
    assert found == pytest.approx(expected, rel=1e-8)


def test_users_own_likelihood_sees_outputs_as_the_model_gives_them(sequences):
    params, (x, y) = sequences

    def squared(f, y):
        assert f.shape[1:] == (T, C)
        return jnp.sum((f.mean(axis=2) - y) ** 2, axis=1)

    found = ns.log_evidence(tokens, params, (x, 1.0 * y), prior_precision=1.0, likelihood=squared)
    expected = ((np.asarray(tokens(params, x)).mean(axis=2) - y) ** 2).sum()
    assert found.nll == pytest.approx(expected, rel=1e-5)
    assert found.log_null is None
    ns.gradient_noise(tokens, params, (x, 1.0 * y), likelihood=squared)


def test_select_by_name_and_pattern(sequences):
    params, data = sequences
    by_function = ns.log_evidence(
        tokens, params, data, prior_precision=1.0, select=lambda path: path == "b"
    )
    for select in ("b", ["b"], "[b-z]"):
        found = ns.log_evidence(tokens, params, data, prior_precision=1.0, select=select)
        assert found.log_evidence == by_function.log_evidence
    settings = {"select": "b"}
    assert ns.gradient_noise(tokens, params, data, **settings).n_params == 3 * C
    assert ns.spectrum(tokens, params, data, top_k=1, n_steps=4, **settings).n_params == 3 * C
    curve = ns.evidence_curve(tokens, params, data, prior_precisions=[0.5, 1, 2], **settings)
    assert curve.log_evidence[1] == pytest.approx(by_function.log_evidence, rel=1e-9)
    predicted = ns.posterior_predict(tokens, params, data, data[0], prior_precision=1.0, **settings)
    assert predicted.shape == (N, T, C)


def test_what_likelihoods_refuse():
    for wrong, message in (
        ("guess", "noise_precision must be one of estimate, got 'guess'"),
        (0.0, "noise_precision must be a finite number above 0"),
    ):
        with pytest.raises(ns.InputError, match=message):
            ns.gaussian(wrong)
    with pytest.raises(ns.InputError, match="ignore_index must be a finite number"):
        ns.categorical(ignore_index=0.5)
    assert repr(ns.gaussian("estimate")) == "Likelihood('gaussian', noise_precision='estimate')"
