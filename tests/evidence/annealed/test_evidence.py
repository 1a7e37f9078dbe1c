"""Annealed sampling against closed forms and quadrature, and what it must survive."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import logsumexp

import noisescale as ns
from noisescale.errors import InputError
from noisescale.evidence.annealed import AnnealedEvidence
from noisescale.evidence.annealed.chains import started
from noisescale.evidence.annealed.evidence import target_of
from noisescale.evidence.jax_problem import jax_problem
from oracles.annealing import cooled_back, reverse_weights, upper_bound

RNG = np.random.default_rng(0)
FEW = {"n_chains": 8, "n_temperatures": 40, "n_leapfrog": 3}


def linear(params, x):
    return x @ params


def linear_log_evidence(x, y, precision, noise_precision):
    covariance = x @ x.T / precision + np.eye(len(y)) / noise_precision
    return scipy.stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


def test_the_closed_form_of_fifty_parameters():
    x = RNG.normal(size=(40, 50))
    y = x @ RNG.normal(size=50) / 2 + RNG.normal(size=40)
    found = ns.annealed_evidence(
        linear,
        np.zeros(50),
        (x, y),
        prior_precision=4.0,
        likelihood="gaussian",
        n_chains=64,
        n_temperatures=400,
    )
    exact = linear_log_evidence(x, y, 4.0, 1.0)
    assert found.effective_sample_size > 8
    assert found.log_evidence_std < 0.4
    # Chains are chaotic, so other machines draw others: four standard errors, and Markov's bound.
    assert abs(found.log_evidence - exact) < 4 * found.log_evidence_std
    assert found.log_evidence - exact < math.log(1e4)
    assert 0.6 < found.acceptance.mean() < 0.99
    assert found.n_params == 50
    # The null model of a regression is the best constant under the same prior and noise.
    constant = linear_log_evidence(np.ones((40, 1)), y, 4.0, 1.0)
    assert found.log_null == pytest.approx(constant, rel=1e-9)
    assert found.odds is None or "against the best constant" in found.odds
    assert found.betas[0] == 0
    assert found.betas[-1] == 1
    assert (np.diff(found.betas) > 0).all()


@pytest.fixture(scope="module")
def logistic():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(25, 1))
    return x, (x[:, 0] + 0.5 * rng.normal(size=25) > 0.3).astype(int)


def test_quadrature_in_two_dimensions(logistic):
    x, y = logistic
    model = ns.logistic_regression(1)
    found = ns.annealed_evidence(
        model,
        model.init(0),
        logistic,
        prior_precision={"0/w": 0.25, "0/b": 1.0},
        likelihood="bernoulli",
        n_chains=64,
        n_temperatures=60,
        n_leapfrog=5,
    )
    w, b = np.meshgrid(np.linspace(-14, 22, 721), np.linspace(-8, 8, 321), indexing="ij")
    logits = w[..., None] * x[:, 0] + b[..., None]
    log_p = -np.logaddexp(0, np.where(y == 1, -logits, logits)).sum(axis=-1)
    log_p += scipy.stats.norm(0, 2).logpdf(w) + scipy.stats.norm(0, 1).logpdf(b)
    exact = logsumexp(log_p) + 2 * math.log(0.05)
    assert found.log_evidence_std < 0.2
    assert abs(found.log_evidence - exact) < 4 * found.log_evidence_std
    assert pytest.approx(-25 * math.log(2) - found.log_evidence) == found.E
    assert "odds of" in repr(found)
    assert found.to_dict()["E"] == found.E


def test_null_models(logistic):
    model = ns.logistic_regression(1)
    options = {"prior_precision": 1.0, "likelihood": "bernoulli", **FEW}

    def null_of(**chosen):
        found = ns.annealed_evidence(model, model.init(0), logistic, **options, **chosen)
        return found.log_null, found.null_model

    ones = int(logistic[1].sum())
    frequencies = math.log(1 / 26 / math.comb(25, ones))
    assert null_of(null="frequencies") == (pytest.approx(frequencies), "the class frequencies")
    assert null_of(log_null=-3.0) == (-3.0, "the given null model")
    with pytest.raises(InputError, match="null must be one of uniform, frequencies, got 'best'"):
        null_of(null="best")


def test_an_estimated_noise_is_that_of_the_best_fit_whatever_the_start():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    y = x @ [2.0, -1.0] + 0.3 * rng.normal(size=30)
    noise = 30 / ((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2).sum()
    settings = {"prior_precision": 1.0, "n_chains": 4, "n_temperatures": 40, "n_leapfrog": 2}
    known, zeros, far = (
        ns.annealed_evidence(linear, start, (x, y), likelihood=likelihood, **settings)
        for start, likelihood in (
            (np.zeros(2), ns.gaussian(noise)),
            (np.zeros(2), ns.gaussian("estimate")),
            (np.full(2, 9.0), ns.gaussian("estimate")),
        )
    )
    for found in (zeros, far):
        assert found.log_evidence == pytest.approx(known.log_evidence, abs=1e-2)


def posterior_draws(x, y, n, rng):
    """Exact draws of conjugate regression with prior and noise precision one."""
    A = x.T @ x + np.eye(x.shape[1])
    mean = np.linalg.solve(A, x.T @ y)
    root = np.linalg.cholesky(np.linalg.inv(A))
    return mean + rng.normal(size=(n, len(mean))) @ root.T


def test_the_mean_weight_is_unbiased_forwards_and_backwards():
    """With so few temperatures that single weights are far off: a z-bound of 4 on both means."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    exact = linear_log_evidence(x, y, 1.0, 1.0)
    found = ns.annealed_evidence(
        linear,
        np.zeros(2),
        (x, y),
        prior_precision=1.0,
        likelihood="gaussian",
        n_chains=4_000,
        n_temperatures=6,
        n_leapfrog=2,
    )
    assert np.std(found.log_weights) > 0.3
    shares = np.exp(found.log_weights - exact)
    assert abs(shares.mean() - 1) < 4 * shares.std() / math.sqrt(4_000)
    problem = jax_problem(linear, np.zeros(2), (x, y), "gaussian")
    draws = posterior_draws(x, y, 4_000, rng)
    back = reverse_weights(problem, np.ones(2), draws, n_temperatures=6, n_leapfrog=2)
    inverse = np.exp(exact - back)
    assert abs(inverse.mean() - 1) < 4 * inverse.std() / math.sqrt(4_000)


def test_transitions_leave_the_posterior_as_it_is():
    """Exact draws, moved at temperature one: mean and covariance stay, within z-bounds of 4.5."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=12)
    problem = jax_problem(linear, np.zeros(2), (x, y), "gaussian")
    architecture, n = problem.model.architecture, 4_000
    draws = posterior_draws(x, y, n, rng)
    with jax.enable_x64(True):
        target = target_of(problem, np.ones(2))
        betas, steps = jnp.asarray([0.0, 1.0]), jnp.asarray([0.3])
        chains = started(architecture, target, jnp.asarray(draws, jnp.float32), 1)
        for k in range(5):
            key = jax.random.key(k)
            chains = cooled_back(architecture, target, chains, key, betas, steps, 2)
        moved = np.asarray(chains.z, float)
    assert np.abs(moved - draws).mean() > 0.05
    A = x.T @ x + np.eye(2)
    mean, covariance = np.linalg.solve(A, x.T @ y), np.linalg.inv(A)
    spread = np.sqrt(np.diag(covariance))
    assert (np.abs(moved.mean(axis=0) - mean) < 4.5 * spread / math.sqrt(n)).all()
    assert (np.abs(moved.var(axis=0) / spread**2 - 1) < 4.5 * math.sqrt(2 / n)).all()


def test_bounds_from_both_sides_meet():
    """Labels that a draw from the prior gave make that draw one of the posterior."""
    rng = np.random.default_rng(4)
    x, model = rng.normal(size=(30, 2)), ns.softmax_regression(2, 3)
    w = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape) / math.sqrt(0.1), model.init(0, "zeros")
    )
    y = (np.asarray(model(w, x)) + rng.gumbel(size=(30, 3))).argmax(axis=1)
    size = {"n_temperatures": 200, "n_leapfrog": 5}
    lower = ns.annealed_evidence(model, w, (x, y), prior_precision=0.1, **size)
    upper = upper_bound(model, w, (x, y), 0.1, **size)
    assert abs(upper - lower.log_evidence) < 0.6
    assert lower.log_evidence < 0
    assert np.std(lower.log_weights) > 0


class Remembering(ns.Progress):
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def test_a_run_says_how_far_it_is_and_its_answer_is_that_of_its_seed(logistic):
    model, told = ns.logistic_regression(1), Remembering()
    options = {"prior_precision": 1.0, "likelihood": "bernoulli", **FEW}
    silent = ns.annealed_evidence(model, model.init(0), logistic, **options)
    found = ns.annealed_evidence(model, model.init(0), logistic, **options, progress=told)
    assert "pilot" in told.lines[0]
    assert told.lines[-1].startswith("annealing: temperature 40 of 40")
    np.testing.assert_array_equal(found.log_weights, silent.log_weights)
    np.testing.assert_array_equal(found.acceptance, silent.acceptance)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prior_precision": "auto"}, "prior_precision must be given for annealed sampling"),
        ({"prior_precision": 0.0}, "finite and above 0"),
        ({"n_chains": 1}, "n_chains must be at least 2"),
        ({"n_temperatures": 1}, "n_temperatures must be at least 2"),
        ({"n_leapfrog": 0}, "n_leapfrog must be at least 1"),
        ({"prior_precision": 1e-40}, "between 1e-30 and 1e\\+30 for chains in float32"),
    ],
)
def test_bad_input_gets_one_sentence(logistic, options, sentence):
    model = ns.logistic_regression(1)
    given = {"prior_precision": 1.0, "likelihood": "bernoulli", **FEW} | options
    with pytest.raises(InputError, match=sentence):
        ns.annealed_evidence(model, model.init(0), logistic, **given)


def explosive(params, x):
    return jnp.exp(1e3 * x @ params) - jnp.exp(-1e3 * x @ params)


def test_a_likelihood_that_overflows():
    with pytest.raises(InputError, match="not finite at draws from the prior"):
        ns.annealed_evidence(
            explosive,
            np.zeros(1),
            (np.ones((4, 1)), np.zeros(4)),
            prior_precision=1.0,
            likelihood="gaussian",
            **FEW,
        )


def test_few_effective_chains_and_refused_proposals_are_told():
    found = AnnealedEvidence(
        log_weights=np.array([0.0, -30.0, -40.0, -50.0]),
        log_null=-10.0,
        betas=np.array([0.0, 0.5, 1.0]),
        step_sizes=np.array([0.1, 0.1]),
        acceptance=np.array([0.3, 0.1]),
        n_leapfrog=3,
        n_train=10,
        n_params=2,
        prior_precision=1.0,
        seed=0,
    )
    assert found.log_evidence == pytest.approx(-math.log(4))
    assert found.effective_sample_size == pytest.approx(1)
    assert "1 of 4 chains carry the weight" in repr(found)
    assert "only 20% of proposals were accepted" in repr(found)
    sure = 10 - math.log(4) - math.log(20)
    assert f"odds of {math.exp(sure):.3g} to 1 for the model" in found.odds
    assert "not beaten" in replace(found, log_null=0.0).verdict
