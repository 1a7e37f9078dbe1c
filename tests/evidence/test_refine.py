"""Importance sampling from the Laplace Gaussian, against closed forms and quadrature."""

import math
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import logsumexp

import noisescale as ns
from noisescale.errors import InputError

pytest.importorskip("arviz_stats", reason="arviz-stats is an extra")


def linear(params, x):
    return x @ params


@pytest.fixture(scope="module")
def few():
    """Nothing speaks against a large weight: the posterior is skewed."""
    return np.array([[1.0], [2.0]]), np.array([1, 1])


@pytest.fixture(scope="module")
def laplace(few):
    return ns.log_evidence(
        linear, np.ones(1), few, prior_precision=2.0, likelihood="bernoulli", at="map"
    )


def quadrature(data, precision):
    x, y = data
    w = np.linspace(-60, 120, 360_001)
    logits = w[:, None] * x[:, 0]
    log_p = -np.logaddexp(0, np.where(y == 1, -logits, logits)).sum(axis=1)
    log_p += scipy.stats.norm(0, 1 / math.sqrt(precision)).logpdf(w)
    return logsumexp(log_p) + math.log(w[1] - w[0])


def test_it_is_the_evidence_where_laplace_is_not(few, laplace):
    exact = quadrature(few, 2.0)
    assert abs(laplace.log_evidence - exact) > 0.01
    found = laplace.refine(4_000)
    assert abs(found.log_evidence - exact) < 4 * found.log_evidence_std
    assert 4 * found.log_evidence_std < abs(laplace.log_evidence - exact)
    assert found.laplace == laplace.log_evidence
    assert found.kind is ns.Kind.REFINED
    assert pytest.approx(-2 * math.log(2) - found.log_evidence) == found.E
    assert found.trusted == (found.k_hat < 0.7)


def test_a_gaussian_posterior_needs_no_correction():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    found = ns.log_evidence(
        linear, np.zeros(3), (x, y), prior_precision=2.0, likelihood="gaussian", at="map"
    ).refine(100)
    exact = scipy.stats.multivariate_normal(np.zeros(20), x @ x.T / 2 + np.eye(20)).logpdf(y)
    # The MAP may be off by the tenth of a nat that a descent allows; its ratios are exact anyway.
    assert abs(found.log_evidence - exact) < max(1e-8, 4 * found.log_evidence_std)
    assert found.trusted
    assert found.odds.endswith("for the model against the best constant")
    assert found.effective_sample_size > 90


def test_the_last_layer_alone():
    """With the first layer fixed the model is linear in the other, however deep it is."""
    x = np.random.default_rng(1).normal(size=(40, 3))
    y = (x.sum(axis=1) > 0).astype(int)
    network = ns.DenseNetwork((3, 4, 2))
    found = ns.log_evidence(
        network,
        network.init(0),
        (x, y),
        prior_precision=1.0,
        at="map",
        select=lambda path: path.startswith("1/"),
    )
    refined = found.refine(2_000)
    assert refined.trusted
    assert abs(refined.log_evidence - found.log_evidence) < 1
    sampled = ns.annealed_evidence(
        network,
        network.init(0),
        (x, y),
        prior_precision=1.0,
        n_chains=32,
        n_temperatures=60,
        n_leapfrog=4,
        select=lambda path: path.startswith("1/"),
    )
    error = math.hypot(refined.log_evidence_std, sampled.log_evidence_std)
    assert abs(refined.log_evidence - sampled.log_evidence) < 4 * error


def test_thick_tails_are_not_trusted():
    """A likelihood with tails far thicker than those of the Gaussian at its peak."""

    def cauchy(outputs, y):
        return 0.8 * jnp.log1p((100.0 * (outputs.ravel() - y)) ** 2)

    found = ns.log_evidence(
        linear,
        np.zeros(20),
        (np.eye(20), np.zeros(20)),
        prior_precision=1e-4,
        likelihood=cauchy,
        curvature="hessian",
        at="point",
        log_null=-10.0,
    )
    refined = found.refine(1_000)
    assert refined.k_hat > 0.7
    assert refined.odds is None
    assert "not to be trusted" in repr(refined)
    assert refined.to_dict()["trusted"] is False
    with pytest.raises(InputError, match="is not to be compared"):
        ns.compare({"this": refined, "that": refined})


def test_what_goes_with_a_result_stays_in_memory(laplace):
    assert "_posterior" not in laplace.to_dict()
    restored = pickle.loads(pickle.dumps(laplace))
    assert restored == laplace
    with pytest.raises(InputError, match="cannot be refined"):
        restored.refine()
    with pytest.raises(InputError, match="n must be at least 100"):
        laplace.refine(10)


def test_too_many_parameters():
    x = np.zeros((2, 11_000))
    x[:, 0] = 1.0
    found = ns.log_evidence(
        linear,
        np.zeros(11_000),
        (x, np.array([0, 1])),
        prior_precision=1.0,
        likelihood="bernoulli",
        at="point",
    )
    with pytest.raises(InputError, match="10,000 parameters at the most, not 11,000"):
        found.refine()
