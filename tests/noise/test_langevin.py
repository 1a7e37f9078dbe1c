import math
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisescale.errors import InputError
from noisescale.noise import diagnostics
from noisescale.noise.diagnostics import effective_sample_size, split_r_hat
from noisescale.noise.langevin import (
    State,
    corrected_sgld,
    overdamped,
    run_chains,
)
from noisescale.noise.samples import LangevinSettings
from noisescale.noise.stability import check_step, largest_step

CURVATURES = jnp.array([0.5, 1.0, 4.0])
KEY = jax.random.key(0)


def momentum_langevin(gradient, **settings):
    """The form of appendix D, by exact gradients."""
    return corrected_sgld(lambda key, w: (gradient(w), None), **settings)


def quadratic(position):
    return {"w": CURVATURES * (position["w"] - 1.0)}


def sampled(dynamics, *, n_chains=400, n_samples=400, burn_in=400, thin=5):
    start = {"w": jnp.ones((n_chains, 3))}
    made = run_chains(dynamics, start, key=KEY, burn_in=burn_in, n_samples=n_samples, thin=thin)
    return np.asarray(made.draws["w"], float)  # (chains, draws, 3)


@pytest.mark.parametrize(
    ("momentum", "temperature"),
    [
        (0.0, 0.3),
        (0.8, 1.0),
        pytest.param(0.0, 1.0, marks=pytest.mark.long),
        pytest.param(0.8, 0.3, marks=pytest.mark.long),
    ],
)
def test_a_gaussian_with_its_discretisation_bias(momentum, temperature):
    d = 0.2
    dynamics = momentum_langevin(quadratic, step_size=d, momentum=momentum, temperature=temperature)
    draws = sampled(dynamics)
    L = np.asarray(CURVATURES, float)
    expected = temperature / (L * (1 - d * L / (2 * (1 + momentum))))
    # Chains are independent: their own variances give the standard error, whatever the mixing.
    variances = ((draws - 1) ** 2).mean(axis=1)  # (chains, 3)
    z = (variances.mean(axis=0) - expected) / (variances.std(axis=0, ddof=1) / math.sqrt(400))
    assert np.abs(z).max() < 4
    means = draws.mean(axis=1)
    assert np.abs((means.mean(axis=0) - 1) / (means.std(axis=0, ddof=1) / 20)).max() < 4
    # The bias is real: without it the stiffest direction would be far off.
    assert abs(expected[2] * L[2] / temperature - 1) > 0.15


def test_covariances_of_a_rotated_gaussian():
    H = jnp.array([[2.0, 1.2], [1.2, 1.0]])
    dynamics = overdamped(lambda w: H @ w, step_size=0.02)
    made = run_chains(dynamics, jnp.zeros((500, 2)), key=KEY, burn_in=600, n_samples=100, thin=20)
    draws = np.asarray(made.draws, float)
    products = np.einsum("cni,cnj->cij", draws, draws) / 100
    expected = np.linalg.inv(np.asarray(H) @ (np.eye(2) - 0.01 * np.asarray(H)))
    error = products.std(axis=0, ddof=1) / math.sqrt(500)
    assert np.abs((products.mean(axis=0) - expected) / error).max() < 4


def test_overdamped_is_the_momentum_form_without_momentum():
    one = overdamped(quadratic, step_size=0.1, temperature=0.7)
    other = momentum_langevin(quadratic, step_size=0.1, momentum=0.0, temperature=0.7)
    start = {"w": jnp.array([0.0, 2.0, 3.0])}
    a, b = (k.step(KEY, k.init(start)).position["w"] for k in (one, other))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_scales_exactly_with_the_root_of_the_temperature(momentum):
    def moved(temperature, d=0.1):
        dynamics = momentum_langevin(
            lambda w: jnp.zeros(5), step_size=d, momentum=momentum, temperature=temperature
        )
        return np.asarray(dynamics.step(KEY, dynamics.init(jnp.zeros(5))).position)

    np.testing.assert_allclose(moved(4.0), 2 * moved(1.0), rtol=1e-6)
    np.testing.assert_allclose(moved(1.0, d=0.4), 2 * moved(1.0, d=0.1), rtol=1e-6)
    assert (moved(0.0) == 0).all()


def test_without_temperature_it_is_gradient_descent_with_momentum():
    dynamics = momentum_langevin(quadratic, step_size=0.1, momentum=0.5, temperature=0.0)
    state = dynamics.init({"w": jnp.array([2.0, 3.0, 0.0])})
    w, A = np.array([2.0, 3.0, 0.0]), np.zeros(3)
    for k in range(20):
        state = dynamics.step(jax.random.key(k), state)
        A = 0.5 * A + np.asarray(CURVATURES) * (w - 1)
        w = w - 0.1 * A
    np.testing.assert_allclose(state.position["w"], w, rtol=1e-5)
    assert isinstance(state, State)


@pytest.mark.parametrize("corrected", [True, False])
def test_the_noise_of_minibatches_is_counted_in(corrected):
    spread = 3.0  # standard deviation of the gradient's own noise; 2/d = 20 is its ceiling

    def noisy(key, w):
        gradient = 1.5 * w + spread * jax.random.normal(key, w.shape)
        return gradient, jnp.full(w.shape, spread**2 if corrected else 0.0)

    dynamics = corrected_sgld(noisy, step_size=0.1)
    made = run_chains(dynamics, jnp.zeros((800, 1)), key=KEY, burn_in=200, n_samples=60, thin=10)
    variances = (np.asarray(made.draws, float)[..., 0] ** 2).mean(axis=1)
    exact = 1 / (1.5 * (1 - 0.1 * 1.5 / 2))
    expected = exact * (1 if corrected else 1 + 0.1 * spread**2 / 2)
    error = variances.std(ddof=1) / math.sqrt(800)
    assert abs(variances.mean() - expected) < 4 * error
    if not corrected:
        assert variances.mean() - exact > 10 * error


def test_steps_beyond_stability_are_refused():
    assert largest_step(4.0) == 0.5
    assert largest_step(4.0, 0.5) == 0.75
    assert check_step(0.4, 4.0, 0.0) == 0.4
    with pytest.raises(InputError, match="step_size must be below 0.5, .* got 0.6"):
        check_step(0.6, 4.0, 0.0)
    for bad in ({"step_size": 0}, {"temperature": -1}, {"momentum": 1}, {"step_size": math.nan}):
        with pytest.raises(InputError):
            momentum_langevin(quadratic, **({"step_size": 0.1, "momentum": 0.0} | bad))


def autoregressive(rho, n_chains=40, n=2000):
    rng = np.random.default_rng(0)
    x = np.empty((n_chains, n))
    x[:, 0] = rng.normal(size=n_chains)
    for t in range(1, n):
        x[:, t] = rho * x[:, t - 1] + math.sqrt(1 - rho**2) * rng.normal(size=n_chains)
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_effective_sample_size_of_a_known_process(rho):
    worth = effective_sample_size(autoregressive(rho))
    assert worth == pytest.approx(40 * 2000 * (1 - rho) / (1 + rho), rel=0.1)


@pytest.mark.parametrize("diagnostic", [split_r_hat, effective_sample_size])
def test_diagnostics_look_at_a_block_of_quantities_at_a_time(diagnostic, monkeypatch):
    draws = np.random.default_rng(0).normal(size=(3, 50, 7, 5)).cumsum(axis=1)
    whole, seen = diagnostic(draws), []
    monkeypatch.setattr(diagnostics, "BLOCK", 3 * 50 * 4)
    inner = diagnostics._in_blocks
    monkeypatch.setattr(
        diagnostics,
        "_in_blocks",
        lambda one, draws: inner(lambda block: seen.append(block.shape) or one(block), draws),
    )
    np.testing.assert_allclose(diagnostic(draws), whole, rtol=1e-12)
    assert seen == [(6, 25, 4)] * 8 + [(6, 25, 3)]


@pytest.mark.parametrize(("gigabytes", "fits"), [(8.1, False), (8.5, True)])
def test_the_memory_of_draws_is_counted_at_its_peak(gigabytes, fits, monkeypatch):
    """A billion numbers: as they are drawn, once more without chains that diverged, diagnosed."""
    monkeypatch.setattr("noisescale.checks.memory_limit", lambda: gigabytes * 1e9)
    settings = LangevinSettings(
        prior_precision=1.0,
        temperature=1.0,
        step_size=None,
        momentum=0.0,
        batch_size=None,
        n_chains=4,
        burn_in=0,
        n_samples=250,
        thin=1,
        seed=0,
    )
    with nullcontext() if fits else pytest.raises(InputError, match="the samples would take"):
        settings.check_sizes(100, 10**6)


def test_r_hat_sees_chains_that_disagree():
    x = autoregressive(0.5)
    assert abs(split_r_hat(x) - 1) < 0.01
    assert split_r_hat(x + 3 * (np.arange(40) % 2)[:, None]) > 1.5
    trend = x + np.linspace(0, 5, 2000)
    assert split_r_hat(trend) > 1.3
    both = np.stack([x, np.zeros_like(x)], axis=-1)
    assert np.isnan(split_r_hat(both)[1])
    assert np.isnan(effective_sample_size(both)[1])
    with pytest.raises(InputError, match="at least 4 draws"):
        split_r_hat(np.zeros((4, 3)))
