"""Posterior samples by PyTorch, against quadrature."""

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from pytorch.zoo import animal  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
]
CHAINS = 300


def problem():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 1))
    y = (x[:, 0] + 0.7 * rng.normal(size=12) > 0).astype(int)
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, 1.0)
    return module, x, y


def moments(x, y, temperature=1.0):
    """Mean and variance of exp(-C/T), and the averaged predictions, on a fine grid."""
    w = np.linspace(-15, 20, 40_001)
    sign = 2 * y - 1
    cost = np.logaddexp(0, -sign[:, None] * x * w).sum(axis=0) + 0.5 * w**2
    p = np.exp(-(cost - cost.min()) / temperature)
    p /= p.sum()
    mean = p @ w
    return mean, p @ (w - mean) ** 2, (1 / (1 + np.exp(-x * w))) @ p


@pytest.mark.parametrize(
    ("momentum", "batch_size", "temperature"), [(0.0, None, 1.0), (0.8, None, 0.5), (0.0, 6, 1.0)]
)
def test_moments_and_predictions(momentum, batch_size, temperature):
    module, x, y = problem()
    made = nst.langevin(
        module,
        (x, y),
        prior_precision=1.0,
        likelihood="bernoulli",
        temperature=temperature,
        momentum=momentum,
        batch_size=batch_size,
        n_chains=CHAINS,
        burn_in=60,
        n_samples=4,
        thin=2,
    )
    mean, variance, predicted = moments(x, y, temperature)
    last = made.samples["weight"][:, -1].ravel()  # one draw of each chain: independent
    assert abs(last.mean() - mean) < 4 * np.sqrt(variance / CHAINS)
    # The step makes the variance up to ``discretisation`` too large; 4 standard errors beside, with
    # a kurtosis of 4 (a minibatch's noise is not Gaussian).
    slack = 4 * np.sqrt(3 / CHAINS)
    assert -slack < last.var() / variance - 1 < made.discretisation + slack
    assert made.n_diverged == 0
    p = made.predict_proba(x)
    assert p.shape == (12, 2)
    np.testing.assert_allclose(p[:, 1], predicted, atol=5 * np.sqrt(0.25 / CHAINS))
    assert made.to_arviz()["posterior"]["weight"].shape == (CHAINS, 4, 1, 1)
    assert f"{CHAINS} chains of 4 draws" in repr(made)


def test_without_noise_it_ends_at_the_minimum_that_jax_finds():
    module, x, y = problem()
    settings = {
        "prior_precision": 1.0,
        "likelihood": "bernoulli",
        "temperature": 0.0,
        "n_samples": 4,
        "burn_in": 300,
        "thin": 1,
        "n_chains": 2,
    }
    theirs = nst.langevin(module, (x, y), **settings)
    ours = ns.langevin(lambda w, x: x @ w, np.ones(1), (x, y), **settings)
    assert theirs.largest_curvature == pytest.approx(ours.largest_curvature, rel=1e-4)
    assert theirs.step_size == pytest.approx(ours.step_size, rel=1e-4)
    np.testing.assert_allclose(theirs.samples["weight"][0, -1, 0], ours.samples[0, -1], rtol=1e-4)


def test_sequences_selected_parameters_and_other_likelihoods():
    short = {"prior_precision": 1.0, "burn_in": 5, "n_samples": 4, "thin": 1, "n_chains": 2}
    a = animal("gpt")
    made = nst.langevin(a.module, a.data, select="out", **short)
    assert set(made.samples) == {"out.weight", "out.bias"}
    p = made.predict_proba(a.x)
    assert p.shape == (4, 5, 4)
    np.testing.assert_allclose(p.sum(axis=2), 1, rtol=1e-9)
    b = animal("regression")
    made = nst.langevin(b.module, b.data, likelihood="gaussian", **short)
    with pytest.raises(ns.InputError, match="use a likelihood of classes"):
        made.predict_proba(b.x)


def test_a_seed_may_be_numpys():
    module, x, y = problem()
    settings = {"prior_precision": 1.0, "likelihood": "bernoulli", "burn_in": 1, "n_samples": 4}
    a, b = (nst.langevin(module, (x, y), seed=seed, **settings) for seed in (3, np.int64(3)))
    for name in a.samples:
        np.testing.assert_array_equal(a.samples[name], b.samples[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 1}, "batch_size must be at least 2, so that a batch shows its noise"),
        ({"step_size": 1e3}, "step_size must be below"),
        ({"prior_precision": 0}, "prior_precision must be a finite number above 0"),
        ({"n_samples": 1}, "n_samples must be at least 4"),
    ],
)
def test_bad_input(change, message):
    module, x, y = problem()
    settings = {"prior_precision": 1.0, "likelihood": "bernoulli"} | change
    with pytest.raises(ns.InputError, match=message):
        nst.langevin(module, (x, y), **settings)
