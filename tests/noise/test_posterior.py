import json
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

import noisescale as ns
from noisescale.data import load_digits
from noisescale.errors import InputError
from noisescale.evidence.linear.regression import fit_map, linear_problem

LAM = 0.5


@pytest.fixture(scope="module")
def zeros_and_ones():
    """One feature of the digits that tells 3 from 8 somewhat, and its MAP."""
    data = load_digits()
    mask = np.isin(data.y_train, (3, 8))
    x = data.x_train[mask][:80, 26:27] * 4 - 2  # (80, 1)
    y = (data.y_train[mask][:80] == 8).astype(np.int32)
    model = ns.logistic_regression(1)
    fit = fit_map(linear_problem(x, y), prior_precision=LAM)
    params = (
        {
            "w": np.asarray(fit.coef, np.float32).reshape(1, 1),
            "b": np.asarray(fit.intercept, np.float32).reshape(1),
        },
    )
    return model, params, (x, y)


def posterior_grid(data, temperature=1.0):
    """Points (2, n) of (w, b) on a fine grid and their probabilities."""
    x, y = data
    w, b = np.meshgrid(np.linspace(-6, 10, 201), np.linspace(-8, 8, 201), indexing="ij")
    z = w[..., None] * x[:, 0] + b[..., None]
    cost = np.logaddexp(0, np.where(y == 1, -z, z)).sum(axis=-1) + LAM / 2 * (w**2 + b**2)
    p = np.exp(-(cost - cost.min()) / temperature)
    p /= p.sum()
    return np.stack([w.ravel(), b.ravel()]), p.ravel()


def quadrature(data, temperature=1.0):
    """Mean and covariance of (w, b): no approximation to speak of."""
    points, p = posterior_grid(data, temperature)
    mean = points @ p
    centred = points - mean[:, None]
    return mean, (centred * p) @ centred.T


def moments(samples):
    draws = np.stack([samples[0]["w"][..., 0, 0], samples[0]["b"][..., 0]], axis=-1)
    chains = draws.mean(axis=1)
    mean = chains.mean(axis=0)
    products = np.einsum("cni,cnj->cij", draws - mean, draws - mean) / draws.shape[1]
    n = len(draws)
    return (
        mean,
        chains.std(axis=0, ddof=1) / math.sqrt(n),
        products.mean(axis=0),
        products.std(axis=0, ddof=1) / math.sqrt(n),
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.8}, {"temperature": 0.25}, {"batch_size": 20}],
    ids=["overdamped", "momentum", "cold", "minibatches"],
)
def test_against_quadrature(zeros_and_ones, options):
    model, params, data = zeros_and_ones
    made = ns.langevin(
        model,
        params,
        data,
        prior_precision=LAM,
        likelihood="bernoulli",
        n_chains=40,
        burn_in=1_000,
        n_samples=200,
        thin=20,
        **options,
    )
    mean, covariance = quadrature(data, options.get("temperature", 1.0))
    got, got_error, spread, spread_error = moments(made.samples)
    assert np.abs((got - mean) / got_error).max() < 4
    # The step is finite: the variance may be too large by what the result says.
    slack = 4 * spread_error + 1.5 * made.discretisation * np.sqrt(
        np.outer(np.diag(covariance), np.diag(covariance))
    )
    assert (np.abs(spread - covariance) < slack).all()
    assert made.worst_r_hat < 1.05
    assert made.smallest_ess > 400
    assert made.n_diverged == 0


def test_prediction_averages_over_the_posterior(zeros_and_ones):
    model, params, data = zeros_and_ones
    made = ns.langevin(
        model, params, data, prior_precision=LAM, likelihood="bernoulli", n_chains=8, n_samples=300
    )
    x = np.array([[-2.0], [2.0], [6.0]])
    averaged = made.predict_proba(x)
    np.testing.assert_allclose(averaged.sum(axis=1), 1, rtol=1e-5)
    at_minimum = 1 / (1 + np.exp(-np.asarray(model(params, x), float)[:, 0]))
    # Averaging makes far predictions more careful.
    assert 0.5 < averaged[2, 1] < at_minimum[2]
    assert averaged[1, 1] == pytest.approx(at_minimum[1], abs=0.05)


def test_predictive_cross_entropy_against_quadrature_and_the_map(zeros_and_ones):
    """On images that the fit has not seen: the exact posterior average, and the MAP's."""
    model, _, (x, y) = zeros_and_ones
    few = (x[:3], y[:3])  # so few that averaging matters
    fit = fit_map(linear_problem(*few), prior_precision=LAM)
    start = ({"w": np.float32(fit.coef).reshape(1, 1), "b": np.float32([fit.intercept])},)
    made = ns.langevin(
        model,
        start,
        few,
        prior_precision=LAM,
        likelihood="bernoulli",
        n_chains=40,
        momentum=0.9,
        step_size=0.005,
        n_samples=100,
        thin=60,
    )
    x_new, y_new = x[3:], y[3:]
    points, p = posterior_grid(few)
    z = points[0][:, None] * x_new[:, 0] + points[1][:, None]  # (points, n)
    exact = -np.log(p @ (1 / (1 + np.exp(-np.where(y_new == 1, z, -z))))).mean()
    averaged = -np.log(made.predict_proba(x_new)[np.arange(len(y_new)), y_new]).mean()
    at_map = fit.scores(x_new, y_new)[1]
    assert averaged == pytest.approx(exact, abs=0.01)
    assert averaged < at_map - 0.02


def test_several_classes_and_a_form_that_arviz_reads():
    data = load_digits().subset(n_train=100, seed=0)
    model = ns.softmax_regression(64, 10)
    pair = (data.x_train, data.y_train)
    made = ns.langevin(
        model,
        model.init(0),
        pair,
        prior_precision=1.0,
        n_chains=3,
        burn_in=200,
        n_samples=20,
        thin=5,
    )
    posterior = made.to_arviz()["posterior"]
    assert {name: array.shape for name, array in posterior.items()} == {
        "0/b": (3, 20, 10),
        "0/w": (3, 20, 64, 10),
    }
    assert made.predict_proba(data.x_test).shape == (len(data.y_test), 10)
    assert "3 chains of 20 draws" in repr(made)
    numbers = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert (numbers["n_chains"], numbers["n_samples"], numbers["n_diverged"]) == (3, 20, 0)
    assert numbers["worst_r_hat"] == made.worst_r_hat
    unstable = replace(made, discretisation=math.inf)
    assert unstable.to_dict()["discretisation"] is None
    again = ns.langevin(
        model,
        model.init(0),
        pair,
        prior_precision=1.0,
        n_chains=3,
        burn_in=200,
        n_samples=20,
        thin=5,
    )
    for a, b in zip(jax.tree.leaves(made.samples), jax.tree.leaves(again.samples), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 10.0}, "step_size must be below .* makes the dynamics unstable, got 10"),
        ({"step_size": -1.0}, "step_size must be a finite number above 0"),
        ({"temperature": -1.0}, "temperature must be a finite number at least 0, got -1"),
        ({"prior_precision": 0.0}, "prior_precision must be a finite number above 0"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"batch_size": 999}, "batch_size must be at most 80"),
        ({"n_samples": 2}, "n_samples must be at least 4"),
        ({"n_chains": 0}, "n_chains must be at least 1"),
        ({"likelihood": "poisson"}, "likelihood must be one of"),
        ({"n_samples": 10**12}, "the samples would take"),
    ],
)
def test_bad_input(zeros_and_ones, options, message):
    model, params, data = zeros_and_ones
    arguments = {"prior_precision": LAM, "likelihood": "bernoulli"} | options
    with pytest.raises(InputError, match=message):
        ns.langevin(model, params, data, **arguments)
