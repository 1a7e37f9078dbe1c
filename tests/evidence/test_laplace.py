import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.sparse.linalg import aslinearoperator
from scipy.stats import multivariate_normal

import noisescale as ns
from noisescale.evidence import laplace
from noisescale.evidence.curvature.model import dense_hessian
from noisescale.evidence.linear.regression import fit_map, linear_problem
from oracles import evidence as oracle


def linear(w, x):
    return x @ w


def network(params, x):
    return jnp.tanh(x @ params["a"] + params["b"]) @ params["c"]


def network_params(n_out, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(size=(3, 4)),
        "b": rng.normal(size=4),
        "c": rng.normal(size=(4, n_out)),
    }


def targets(likelihood, n, n_out, seed=1):
    rng = np.random.default_rng(seed)
    if likelihood == "categorical":
        return rng.integers(n_out, size=n)
    if likelihood == "bernoulli":
        return rng.integers(2, size=n)
    return rng.normal(size=(n, n_out))


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
        assert result.log_null is None
        assert result.E is None
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


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(3, size=60)
    x += 1.2 * np.eye(3, 4)[y]
    fit = fit_map(linear_problem(x, y), prior_precision=0.5)
    return {"w": fit.coef.T, "b": fit.intercept}, (x, y), fit


def affine(params, x):
    return x @ params["w"] + params["b"]


def test_agrees_with_the_linear_solver(fitted):
    params, data, fit = fitted
    result = ns.log_evidence(affine, params, data, prior_precision=0.5)
    assert result.log_evidence == pytest.approx(fit.log_evidence, rel=1e-12)
    assert pytest.approx(fit.E, rel=1e-12) == result.E
    assert result.log_null == pytest.approx(-60 * np.log(3))
    assert result.notes == ()


def test_the_parts_add_up(fitted):
    params, data, _ = fitted
    r = ns.log_evidence(affine, params, data, prior_precision=0.5, log_degeneracy=1.5)
    assert r.log_evidence == pytest.approx(-(r.nll + r.penalty) + r.log_occam_factor + 1.5)
    assert r.log_bayes_factor == pytest.approx(r.log_evidence - r.log_null) == -r.E
    assert r.to_dict()["E"] == r.E
    for word in ("log Occam factor", "E (the paper's)", "log degeneracy", "odds of"):
        assert word in repr(r)


def test_degeneracy_of_hidden_units():
    assert ns.permutation_degeneracy([3, 4]) == pytest.approx(np.log(6 * 24))
    assert ns.permutation_degeneracy([]) == 0


def test_a_point_that_is_no_minimum_says_what_that_means(fitted):
    params, data, fit = fitted
    moved = {"w": params["w"] + 0.5, "b": params["b"]}
    with pytest.warns(ns.NotAMinimumWarning, match="could still fall by .* nats") as caught:
        result = ns.log_evidence(affine, moved, data, prior_precision=0.5)
    assert len(caught) == 1
    # For this nearly quadratic cost the decrement foretells the fall.
    fall = result.nll + result.penalty - fit.nll - fit.penalty
    assert result.newton_decrement / 2 == pytest.approx(fall, rel=0.15)


def test_the_global_precision_is_left_alone(fitted):
    params, data, _ = fitted
    ns.log_evidence(affine, params, data, prior_precision=0.5)
    assert jnp.ones(1).dtype == jnp.float32


def test_from_operator(fitted):
    params, (x, y), fit = fitted
    full = ns.log_evidence(affine, params, (x, y), prior_precision=0.5, curvature="hessian")
    model, *_ = laplace.build_model(affine, params, (x, y), "categorical")
    H = dense_hessian(model)
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


def test_verdicts_in_words():
    from noisescale.evidence.result import odds_in_words

    assert odds_in_words(0.0, "A", "B") == "even odds between A and B"
    assert odds_in_words(np.log(20), "A", "B") == "odds of 20 to 1 for A against B"
    assert odds_in_words(-230.26, "A", "B") == "odds of 10^100.0 to 1 for B against A"


class TestCompare:
    def test_probabilities(self):
        result = ns.compare({"a": -10.0, "b": -10.0 - np.log(3)})
        np.testing.assert_allclose(result.probabilities, [0.75, 0.25])
        assert result.best == "a"
        np.testing.assert_allclose(result.log_odds, [0, -np.log(3)])

    def test_prior_odds(self):
        result = ns.compare({"a": -10.0, "b": -10.0}, prior_odds={"a": 1, "b": 9})
        np.testing.assert_allclose(result.probabilities, [0.1, 0.9])

    def test_huge_differences_do_not_overflow(self):
        assert ns.compare({"a": -1e6, "b": -3e6}).probabilities == (1.0, 0.0)

    def test_takes_evidences_and_shows_a_table(self, fitted):
        params, data, _ = fitted
        weak = ns.log_evidence(affine, params, data, prior_precision=0.5)
        result = ns.compare({"model": weak, "null": weak.log_null})
        assert result.best == "model"
        assert "probability" in repr(result)

    @pytest.mark.parametrize(
        ("arguments", "prior", "message"),
        [
            ({}, None, "at least one model"),
            ({"a": float("nan")}, None, "must be finite"),
            ({"a": 0.0}, {"b": 1}, "must name the same models"),
            ({"a": 0.0}, {"a": -1}, "prior_odds must be finite and above 0"),
        ],
    )
    def test_bad_input(self, arguments, prior, message):
        with pytest.raises(ns.InputError, match=message):
            ns.compare(arguments, prior_odds=prior)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_the_prior_must_be_proper(fitted, value):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match="finite and above 0 .* improper prior has no evidence"):
        ns.log_evidence(affine, params, data, prior_precision=value)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"w": 1.0, "b": None}, "an unpenalised parameter has no evidence"),
        (None, "an unpenalised parameter has no evidence"),
        ({"w": 1.0}, "must be a number, 'auto', 'per_layer', or have"),
        (
            {"w": np.ones(7), "b": 1.0},
            r"\(shape \(7,\)\) does not fit parameters of shape \(4, 3\)",
        ),
    ],
)
def test_bad_priors(fitted, prior, message):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(affine, params, data, prior_precision=prior)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "method must be one of auto, dense, dual"),
        ({"curvature": "flat"}, "curvature must be one of ggn, hessian"),
        ({"method": "dual", "curvature": "hessian"}, "method='dual' needs curvature='ggn': the"),
        ({"likelihood": "poisson"}, "likelihood must be one of categorical, bernoulli, gaussian"),
        ({"likelihood": "bernoulli"}, "one logit an example"),
        ({"likelihood": "gaussian"}, r"outputs of shape \(60, 3\) do not fit targets of shape"),
    ],
)
def test_bad_settings(fitted, changes, message):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(affine, params, data, prior_precision=1.0, **changes)


def test_bad_data(fitted):
    params, (x, y), _ = fitted

    def refuse(data, message, params=params):
        with pytest.raises(ns.InputError, match=message):
            ns.log_evidence(affine, params, data, prior_precision=1.0)

    holed = x.copy()
    holed[3, 1] = np.nan
    refuse((holed, y), r"data x holds nan at \[3, 1\]")
    refuse((x, y + 1), "data labels must lie in 0..2")
    refuse((x, y[1:]), "60 examples in x but 59 labels in y")
    refuse((x[:, :2], y), "apply_fn does not accept these params")
    refuse((x, y), "params holds values that are not finite", {**params, "b": np.full(3, np.nan)})
    refuse(
        (x * 1e300, y), "outputs or gradients are not finite", {**params, "w": params["w"] * 1e30}
    )


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


class TestUsersOwnLikelihood:
    """A shape that broadcasts would give a wrong number without a word."""

    data = np.ones((5, 2)), np.arange(5.0)

    def refuse(self, message, nll, width=()):
        for curvature in ("ggn", "hessian"):
            with pytest.raises(ns.InputError, match=message):
                ns.log_evidence(
                    linear,
                    np.ones((2, *width)),
                    self.data,
                    prior_precision=1.0,
                    likelihood=nll,
                    curvature=curvature,
                )

    def test_broadcasts_are_refused(self):
        self.refuse("must return one number an example", lambda f, y: 0.5 * (f - y) ** 2, (1,))

    def test_means_are_refused(self):
        self.refuse("must return one number an example", lambda f, y: jnp.mean(f[:, 0] - y) ** 2)

    def test_what_does_not_fit_is_refused(self):
        self.refuse("likelihood does not accept outputs", lambda f, y: f @ y, (3,))

    @pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
    @pytest.mark.parametrize("prior", [0.1, 100.0])
    def test_a_nll_that_is_not_convex_is_counted_right(self, prior):
        def cauchy(f, y):
            return jnp.log1p((f[:, 0] - y) ** 2)

        # For a linear model Gauss-Newton is the Hessian.
        a, b = (
            ns.log_evidence(
                linear,
                np.array([3.0, 3.0]),
                self.data,
                prior_precision=prior,
                likelihood=cauchy,
                curvature=curvature,
                method="dense",
            )
            for curvature in ("ggn", "hessian")
        )
        assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-9)
        assert a.n_negative == b.n_negative > 0


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize("prior", [1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize(
    ("method", "curvature"), [("dense", "ggn"), ("dual", "ggn"), ("dense", "hessian")]
)
def test_rounding_of_a_singular_curvature_is_not_counted(prior, method, curvature):
    rng = np.random.default_rng(0)
    x = 10 * rng.normal(size=(90, 10)) @ rng.normal(size=(10, 70))  # rank 10 of 70
    result = ns.log_evidence(
        linear,
        np.zeros(70),
        (x, np.arange(90) % 2),
        prior_precision=prior,
        likelihood="bernoulli",
        method=method,
        curvature=curvature,
    )
    s = np.linalg.svd(x, compute_uv=False)[:10]
    exact = -0.5 * np.log1p(s**2 / 4 / prior).sum()
    assert result.log_occam_factor == pytest.approx(exact, rel=1e-7)
    assert result.n_negative == 0


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
def test_scalar_arrays_and_outputs_without_an_axis_are_taken(fitted):
    params, data, _ = fitted
    plain = ns.log_evidence(affine, params, data, prior_precision=0.5)
    for scalar in (jnp.array(0.5), np.array(0.5), np.float32(0.5)):
        again = ns.log_evidence(affine, params, data, prior_precision=scalar)
        assert again.log_evidence == plain.log_evidence
    x, y = data[0], data[1] % 2
    a, b = (
        ns.log_evidence(f, np.full(4, 1e-3), (x, y), prior_precision=1e4, likelihood="bernoulli")
        for f in (linear, lambda w, x: (x @ w[:, None]).squeeze())
    )
    assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-12)


def test_a_null_evidence_is_checked(fitted):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match="log_null must be a finite number"):
        ns.log_evidence(affine, params, data, prior_precision=1.0, log_null=float("nan"))
    with pytest.raises(ns.InputError, match="n_classes or log_null, not both"):
        ns.log_evidence_from_operator(
            np.eye(2),
            nll=1.0,
            penalty=0.0,
            prior_precision=1.0,
            n_train=3,
            n_classes=2,
            log_null=-1.0,
        )
