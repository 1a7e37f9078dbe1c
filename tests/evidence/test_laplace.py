"""The evidence against closed forms, quadrature, and a naive twin."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse.linalg import aslinearoperator
from scipy.stats import multivariate_normal

import noisescale as ns
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.linear.regression import fit_map, linear_problem
from oracles import evidence as oracle
from oracles.models import affine, linear, network, network_params, targets


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
class TestLinearGaussian:
    """The one model whose evidence is a density that SciPy knows."""

    @pytest.mark.parametrize(("n", "p"), [(6, 15), (40, 5), (8, 8)])
    @pytest.mark.parametrize("prior", ["scalar", "per parameter"])
    @pytest.mark.parametrize(
        ("method", "curvature"), [("dense", "ggn"), ("dual", "ggn"), ("dense", "hessian")]
    )
    def test_closed_form(self, n, p, prior, method, curvature):
        rng = np.random.default_rng(n + p)
        x, noise = rng.normal(size=(n, p)), 2.5
        L = np.full(p, 0.7) if prior == "scalar" else rng.uniform(0.1, 5, p)
        y = x @ rng.normal(size=p) + rng.normal(size=n)
        w = np.linalg.solve(noise * x.T @ x + np.diag(L), noise * x.T @ y)
        result = ns.log_evidence(
            linear,
            w,
            (x, y),
            prior_precision=0.7 if prior == "scalar" else L,
            likelihood=ns.gaussian(noise),
            method=method,
            curvature=curvature,
        )
        covariance = np.eye(n) / noise + x @ np.diag(1 / L) @ x.T
        exact = multivariate_normal(np.zeros(n), covariance).logpdf(y)
        assert result.log_evidence == pytest.approx(exact, rel=1e-9)
        assert result.log_evidence_full == pytest.approx(exact, rel=1e-9)
        assert result.newton_decrement < 1e-18
        # The null model is a constant of the mean prior variance, with the same noise.
        constant = np.eye(n) / noise + np.full((n, n), np.mean(1 / L))
        null = multivariate_normal(np.zeros(n), constant).logpdf(y)
        assert result.log_null == pytest.approx(null, rel=1e-9)
        assert result.notes == ()


def logistic_map(x, y, prior_precision):
    """The MAP by a general optimiser, y = +-1."""
    found = minimize(
        lambda w: np.logaddexp(0, -y * (x @ w)).sum() + 0.5 * prior_precision * w @ w,
        np.zeros(x.shape[1]),
        method="BFGS",
        options={"gtol": 1e-10},
    )
    return found.x


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_error_against_quadrature_is_laplaces_and_shrinks_as_one_over_n(dimension):
    errors, sizes = [], (320, 1280, 5120)
    rng = np.random.default_rng(0)
    base = rng.normal(size=(20, dimension))
    labels = np.where(rng.random(20) < 1 / (1 + np.exp(-base.sum(axis=1))), 1, -1)
    for n in sizes:
        x, y = np.tile(base, (n // 20, 1)), np.tile(labels, n // 20)
        w = logistic_map(x, y, 1.0)
        ours = ns.log_evidence(
            linear, w, (x, (y + 1) // 2), prior_precision=1.0, likelihood="bernoulli"
        )
        exact = oracle.logistic_log_evidence(base, labels, n // 20, 1.0, w)
        errors.append(abs(ours.log_evidence - exact))
    # Each fourfold N divides the error by four, up to the next order in 1/N.
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.03)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), log_scale=st.floats(0, 3))
def test_the_evidence_does_not_depend_on_the_scale_of_parameters(seed, log_scale):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 4)), rng.integers(2, size=12)
    fit = fit_map(
        linear_problem(np.vstack([x, x]), np.append(y, 1 - y), fit_intercept=False),
        prior_precision=0.3,
    )
    factors = np.exp(log_scale * rng.normal(size=4))
    data = np.vstack([x, x]), np.append(y, 1 - y)
    before = ns.log_evidence(linear, fit.coef, data, prior_precision=0.3, likelihood="bernoulli")
    after = ns.log_evidence(
        linear,
        fit.coef * factors,
        (data[0] / factors, data[1]),
        prior_precision=0.3 / factors**2,
        likelihood="bernoulli",
    )
    assert after.log_evidence == pytest.approx(before.log_evidence, rel=1e-8)
    assert after.newton_decrement == pytest.approx(before.newton_decrement, rel=1e-6, abs=1e-12)


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
class TestNetworks:
    """Away from minima, where Hessian and Gauss-Newton differ and curvatures are negative."""

    @pytest.mark.parametrize(
        ("likelihood", "n_out"), [("categorical", 3), ("bernoulli", 1), ("gaussian", 2)]
    )
    def test_against_the_naive_twin(self, likelihood, n_out):
        params, x = network_params(n_out), np.random.default_rng(2).normal(size=(7, 3))
        y = targets(likelihood, 7, n_out)
        rng = np.random.default_rng(3)
        # An array for one leaf, one number for another.
        prior = {"a": rng.uniform(0.5, 2, (3, 4)), "b": 0.8, "c": rng.uniform(0.5, 2, (4, n_out))}
        L = np.concatenate([prior["a"].ravel(), np.full(4, 0.8), prior["c"].ravel()])
        flat = np.concatenate([params[k].ravel() for k in ("a", "b", "c")])

        def outputs(w, x):
            a, b, c = w[:12].reshape(3, 4), w[12:16], w[16:].reshape(4, n_out)
            return np.tanh(x @ a + b) @ c

        def nll(f, y):
            if likelihood == "categorical":
                return np.log(np.exp(f - f.max()).sum()) + f.max() - f[y]
            if likelihood == "bernoulli":
                return np.logaddexp(0, -f[0] if y else f[0])
            return 0.5 * ((f - y) ** 2).sum() + 0.5 * n_out * np.log(2 * np.pi)

        def total(w):
            return sum(nll(outputs(w, xi), yi) for xi, yi in zip(x, y, strict=True))

        G = oracle.gauss_newton(outputs, nll, flat, x, y)
        H = oracle.numeric_hessian(total, flat)
        slope = oracle.numeric_gradient(total, flat) + L * flat
        penalty = 0.5 * (L * flat**2).sum()
        for method, curvature, matrix in (
            ("dense", "ggn", G),
            ("dual", "ggn", G),
            ("dense", "hessian", H),
        ):
            result = ns.log_evidence(
                network,
                params,
                (x, y),
                prior_precision=prior,
                likelihood=likelihood,
                method=method,
                curvature=curvature,
            )
            assert result.nll == pytest.approx(total(flat), rel=1e-10)
            assert result.penalty == pytest.approx(penalty, rel=1e-12)
            assert result.log_occam_factor == pytest.approx(oracle.log_occam(matrix, L), rel=1e-5)
            assert result.gradient_norm == pytest.approx(np.linalg.norm(slope), rel=1e-5)
            if curvature == "ggn":
                expected = slope @ np.linalg.solve(G + np.diag(L), slope)
                assert result.newton_decrement == pytest.approx(expected, rel=1e-5)
                assert result.n_negative == 0
        assert result.log_occam_factor <= 0

    @pytest.mark.parametrize(
        ("likelihood", "n_out"),
        [("categorical", 3), ("bernoulli", 1), ("gaussian", 2), ("poisson", 2)],
    )
    @pytest.mark.parametrize("n", [2, 40])
    def test_dual_equals_dense(self, likelihood, n_out, n):
        params, x = network_params(n_out), np.random.default_rng(2).normal(size=(n, 3))
        y = targets(likelihood, n, n_out)
        if likelihood == "poisson":  # a user's own, convex
            y = np.abs(y).round()

            def likelihood(f, y):
                return jnp.sum(jnp.exp(f) - y * f, axis=1)

        dense, dual = (
            ns.log_evidence(
                network, params, (x, y), prior_precision=0.3, likelihood=likelihood, method=method
            )
            for method in ("dense", "dual")
        )
        assert dual.log_evidence == pytest.approx(dense.log_evidence, rel=1e-8)
        assert dual.newton_decrement == pytest.approx(dense.newton_decrement, rel=1e-6)
        automatic = ns.log_evidence(
            network, params, (x, y), prior_precision=0.3, likelihood=likelihood
        )
        assert automatic.method == ("dual" if n * n_out < 16 + 4 * n_out else "dense")

    def test_negative_curvature_is_counted_and_left_out(self):
        # nll = w1^2/2 - w2^2 at the origin, which is a saddle.
        result = ns.log_evidence(
            lambda w, x: w[None, :] * x,
            np.zeros(2),
            (np.ones((1, 2)), np.zeros(1)),
            prior_precision=0.5,
            curvature="hessian",
            likelihood=lambda f, y: 0.5 * f[:, 0] ** 2 - f[:, 1] ** 2,
        )
        assert result.log_occam_factor == pytest.approx(-0.5 * np.log(1 + 1 / 0.5))
        assert (result.n_negative, result.negative_weight) == (1, pytest.approx(2 / 0.5))
        assert result.log_evidence_full is None
        assert "1 of 2 curvatures are negative" in repr(result)

    def test_a_weak_negative_curvature_still_has_a_determinant(self):
        result = ns.log_evidence(
            lambda w, x: w[None, :] * x,
            np.zeros(2),
            (np.ones((1, 2)), np.zeros(1)),
            prior_precision=5.0,
            curvature="hessian",
            likelihood=lambda f, y: 0.5 * f[:, 0] ** 2 - f[:, 1] ** 2,
        )
        assert result.log_occam_factor == pytest.approx(-0.5 * np.log(1.2))
        assert result.log_occam_factor_full == pytest.approx(-0.5 * np.log(1.2 * (1 - 2 / 5)))
        assert result.is_minimum
        assert "log_evidence_full is the Laplace value" in result.notes[0]

    def test_dual_refuses_a_nll_that_is_not_convex(self):
        with pytest.raises(ns.InputError, match="not convex in the outputs.*method='dense'"):
            ns.log_evidence(
                lambda w, x: w[None, :] * x,
                np.zeros(2),
                (np.ones((1, 2)), np.zeros(1)),
                prior_precision=5.0,
                method="dual",
                likelihood=lambda f, y: 0.5 * f[:, 0] ** 2 - f[:, 1] ** 2,
            )


def test_agrees_with_the_linear_solver(fitted):
    params, data, fit = fitted
    result = ns.log_evidence(affine, params, data, prior_precision=0.5)
    assert result.log_evidence == pytest.approx(fit.log_evidence, rel=1e-12)
    assert pytest.approx(fit.E, rel=1e-12) == result.E
    assert result.log_null == pytest.approx(-60 * np.log(3))
    assert result.notes == ()


def test_degeneracy_of_hidden_units():
    assert ns.permutation_degeneracy([3, 4]) == pytest.approx(np.log(6 * 24))
    assert ns.permutation_degeneracy([]) == 0


def test_from_operator(fitted):
    params, (x, y), fit = fitted
    full = ns.log_evidence(affine, params, (x, y), prior_precision=0.5, curvature="hessian")
    H, _ = jax_problem(affine, params, (x, y), "categorical").dense("hessian")
    for matrix in (H, aslinearoperator(H)):
        for prior in (0.5, np.full(len(H), 0.5)):
            result = ns.log_evidence_from_operator(
                matrix,
                nll=fit.nll,
                penalty=fit.penalty,
                prior_precision=prior,
                n_train=60,
                n_classes=3,
            )
            assert result.log_evidence == pytest.approx(full.log_evidence, rel=1e-9)
            assert pytest.approx(full.E, rel=1e-9) == result.E
            assert result.newton_decrement is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "method must be one of auto, dense, dual"),
        ({"curvature": "flat"}, "curvature must be one of ggn, hessian"),
        ({"method": "dual", "curvature": "hessian"}, "method='dual' needs curvature='ggn': the"),
        ({"likelihood": "binomial"}, "likelihood must be one of categorical, bernoulli, gaussian"),
        ({"likelihood": "bernoulli"}, "one logit an example"),
        ({"likelihood": "gaussian"}, r"outputs of shape \(60, 3\) do not fit targets of shape"),
    ],
)
def test_bad_settings(fitted, changes, message):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(affine, params, data, prior_precision=1.0, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curvature": np.ones((2, 3))}, "curvature must be square"),
        ({"curvature": np.array([[1.0, 2.0], [0.0, 1.0]])}, "curvature must be symmetric"),
        ({"curvature": np.full((2, 2), np.nan)}, "curvature holds NaN"),
        ({"prior_precision": [1.0, 2.0, 3.0]}, "one number or 2"),
        ({"penalty": -1.0}, "penalty must be a finite number >= 0"),
        ({"n_train": 0}, "n_train must be at least 1"),
        ({"n_classes": 1}, "n_classes must be at least 2"),
        ({"gradient": [1.0]}, "gradient must have 2 finite entries"),
    ],
)
def test_bad_operators(changes, message):
    settings = {
        "curvature": np.eye(2),
        "nll": 1.0,
        "penalty": 0.1,
        "prior_precision": 1.0,
        "n_train": 5,
    } | changes
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence_from_operator(settings.pop("curvature"), **settings)


@pytest.mark.parametrize("name", ["log_null", "log_degeneracy"])
def test_numbers_that_are_added_are_checked_before_anything_is_computed(name, monkeypatch):
    computed = lambda *given, **options: pytest.fail("computed first")  # noqa: E731
    monkeypatch.setattr("noisescale.evidence.laplace.preflight", computed)
    (x, y), settings = (np.ones((4, 3)), np.arange(4) % 3), {name: np.nan}
    params = {"w": np.ones((3, 3)), "b": np.ones(3)}
    with pytest.raises(ns.InputError, match=f"{name} must be a finite number"):
        ns.log_evidence(affine, params, (x, y), prior_precision=1.0, **settings)


def test_a_null_evidence_is_checked(fitted):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match="log_null must be a finite number"):
        ns.log_evidence(affine, params, data, prior_precision=1.0, log_null=float("nan"))
    with pytest.raises(ns.InputError, match="one of n_classes, class_counts and log_null"):
        ns.log_evidence_from_operator(
            np.eye(2),
            nll=1.0,
            penalty=0.0,
            prior_precision=1.0,
            n_train=3,
            n_classes=2,
            log_null=-1.0,
        )
