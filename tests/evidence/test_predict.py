import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

import noisescale as ns
from noisescale.evidence.averaging import average_probabilities
from noisescale.evidence.linear.regression import fit_map, linear_problem, logit_covariance
from noisescale.likelihood import LIKELIHOODS


def affine(params, x):
    return x @ params["w"] + params["b"]


def make(n_classes, n=30, d=5, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    x = rng.normal(size=(n, d)) + np.eye(n_classes, d)[y]
    problem = linear_problem(x, y)
    fit = fit_map(problem, prior_precision=0.4)
    if n_classes == 2:
        params = {"w": fit.coef[:, None], "b": np.array([fit.intercept])}
    else:
        params = {"w": fit.coef.T, "b": fit.intercept}
    return problem, fit, params, (x, y), rng.normal(size=(6, d))


@pytest.mark.parametrize("predictive", ["map", "probit", "monte_carlo"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("method", ["dense", "dual"])
@pytest.mark.parametrize(("n", "d"), [(30, 5), (6, 20)])
def test_any_model_predicts_as_the_linear_one(predictive, n_classes, method, n, d):
    """Two routes to one posterior: reduced coordinates, and Jacobians of a JAX function."""
    problem, fit, params, data, new = make(n_classes, n, d)
    linear = average_probabilities(
        fit.logits(new), lambda: logit_covariance(problem, fit, new), predictive=predictive
    )
    general = ns.posterior_predict(
        affine,
        params,
        data,
        new,
        prior_precision=0.4,
        method=method,
        predictive=predictive,
        likelihood="bernoulli" if n_classes == 2 else "categorical",
    )
    np.testing.assert_allclose(linear.sum(axis=1), 1)
    # The draws of a softmax depend on how its covariance was diagonalised.
    loose = predictive == "monte_carlo" and n_classes > 2
    np.testing.assert_allclose(general, linear, atol=0.06 if loose else 1e-8)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_monte_carlo_is_an_average_over_weights(n_classes):
    """Against weights drawn from the Gaussian posterior itself, a fixed number of them."""
    _, fit, params, (x, y), new = make(n_classes)
    wide = np.hstack([x, np.ones((len(x), 1))])
    p = wide.shape[1]
    if n_classes == 2:
        prob = expit(fit.logits(x))
        H = wide.T @ ((prob * (1 - prob))[:, None] * wide) + 0.4 * np.eye(p)
        mean = np.append(fit.coef, fit.intercept)
    else:
        prob = softmax(fit.logits(x), axis=1)
        H = 0.4 * np.eye(p * n_classes)
        for row, q in zip(wide, prob, strict=True):
            H += np.kron(np.diag(q) - np.outer(q, q), np.outer(row, row))
        mean = np.vstack([fit.coef.T, fit.intercept]).T.ravel()
    n_draws = 40_000
    draws = np.random.default_rng(0).multivariate_normal(mean, np.linalg.inv(H), n_draws)
    wide_new = np.hstack([new, np.ones((len(new), 1))])
    if n_classes == 2:
        each = expit(draws @ wide_new.T)
        expected = np.stack([1 - each.mean(axis=0), each.mean(axis=0)], axis=1)
    else:
        logits = np.einsum("skp,np->snk", draws.reshape(n_draws, n_classes, p), wide_new)
        each = softmax(logits, axis=2)
        expected = each.mean(axis=0)
    got = ns.posterior_predict(
        affine,
        params,
        (x, y),
        new,
        prior_precision=0.4,
        predictive="monte_carlo",
        n_samples=n_draws,
        likelihood="bernoulli" if n_classes == 2 else "categorical",
    )
    error = np.sqrt(2 * each.var(axis=0).max() / n_draws)
    assert np.abs(got - expected).max() < 5 * error
    probit = ns.posterior_predict(
        affine,
        params,
        (x, y),
        new,
        prior_precision=0.4,
        predictive="probit",
        likelihood="bernoulli" if n_classes == 2 else "categorical",
    )
    # An approximation: better than not averaging, that is all it promises.
    sure = ns.posterior_predict(
        affine,
        params,
        (x, y),
        new,
        prior_precision=0.4,
        predictive="map",
        likelihood="bernoulli" if n_classes == 2 else "categorical",
    )
    assert np.abs(probit - expected).max() < 0.7 * np.abs(sure - expected).max()


def test_averaging_makes_predictions_less_sure():
    _, _, params, data, new = make(2)
    kwargs = {"prior_precision": 0.4, "likelihood": "bernoulli"}
    sure = ns.posterior_predict(affine, params, data, 5 * new, predictive="map", **kwargs)
    unsure = ns.posterior_predict(affine, params, data, 5 * new, **kwargs)
    assert (unsure.max(axis=1) < sure.max(axis=1)).all()
    assert (unsure.argmax(axis=1) == sure.argmax(axis=1)).all()


def test_bad_input():
    _, _, params, data, new = make(3)
    with pytest.raises(ns.InputError, match="predictive must be one of map, probit, monte_carlo"):
        ns.posterior_predict(affine, params, data, new, prior_precision=1.0, predictive="mean")
    with pytest.raises(ns.InputError, match="n_samples must be at least 1"):
        ns.posterior_predict(affine, params, data, new, prior_precision=1.0, n_samples=0)
    with pytest.raises(ns.InputError, match="use a likelihood of classes"):
        ns.posterior_predict(
            lambda w, x: x @ w,
            jnp.zeros(5),
            (data[0], data[0][:, 0]),
            new,
            prior_precision=1.0,
            likelihood="gaussian",
        )


def test_a_likelihood_object_predicts_as_its_name():
    _, _, params, data, new = make(2)
    by_name, by_object = (
        ns.posterior_predict(affine, params, data, new, prior_precision=1.0, likelihood=likelihood)
        for likelihood in ("bernoulli", LIKELIHOODS["bernoulli"])
    )
    np.testing.assert_array_equal(by_name, by_object)


def test_new_inputs_must_fit():
    _, _, params, data, new = make(3)
    with pytest.raises(ns.InputError, match="apply_fn does not accept"):
        ns.posterior_predict(affine, params, data, new[:, :2], prior_precision=1.0)
    with pytest.raises(ns.InputError, match="x_new must have one row an input"):
        ns.posterior_predict(affine, params, data, new[0], prior_precision=1.0)


def test_sampling_two_classes_never_changes_sides():
    z = np.linspace(-3, 3, 400)
    p = average_probabilities(z, lambda: np.full(400, 1e4), predictive="monte_carlo")
    assert ((p[:, 1] > 0.5) == (z > 0)).all()


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize("prior", ["auto", "per_layer"])
def test_a_prior_is_chosen_as_for_the_evidence(prior):
    _, _, params, data, new = make(3)
    settings = {"method": "dense", "prior_precision": prior}
    chosen = ns.log_evidence(affine, params, data, at="point", **settings).prior_precision
    np.testing.assert_allclose(
        ns.posterior_predict(affine, params, data, new, **settings),
        ns.posterior_predict(affine, params, data, new, prior_precision=chosen, method="dense"),
    )


@pytest.mark.parametrize("function", [ns.map_estimate, ns.annealed_evidence])
def test_elsewhere_a_prior_is_given(function):
    _, _, params, data, _ = make(3)
    with pytest.raises(ns.InputError, match=r"prior_precision must be (given|fixed).*'auto'"):
        function(affine, params, data, prior_precision="auto")


def test_rows_are_counted_as_they_are(monkeypatch):
    """A softmax leaves one in C out: 450 rows of 50 examples and ten classes, not 500."""
    from noisescale.evidence import predict

    seen = []
    choose = predict._choose_method

    def spy(method, *, p, n):
        seen.append(n)
        return choose(method, p=p, n=n)

    monkeypatch.setattr(predict, "_choose_method", spy)
    x, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 10
    net = ns.softmax_regression(3, 10)
    ns.posterior_predict(net, net.init(0), (x, y), x[:2], prior_precision=1.0)
    assert seen == [450]
