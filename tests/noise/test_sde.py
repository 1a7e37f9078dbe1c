import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.sde import _spread
from noisescale.training.settings import Settings

MODEL = ns.softmax_regression(4, 3)
SGD = {"learning_rate": 0.2, "batch_size": 5, "momentum": 0.8, "prior_precision": 2.0}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=40)
    x = rng.normal(size=(40, 4)) + np.eye(3, 4)[y]
    return x.astype(np.float32), y.astype(np.int32)


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(float)


def per_example(params, data):
    def nll(params, x, y):
        return -jax.nn.log_softmax(MODEL(params, x[None]))[0, y]

    gradients = jax.vmap(jax.grad(nll), in_axes=(None, 0, 0))(params, *data)
    rows = [np.reshape(leaf, (40, -1)) for leaf in jax.tree.leaves(gradients)]
    return np.concatenate(rows, axis=1).astype(float)


def test_a_step_against_its_formula(data):
    """The same random numbers, the gradients one by one: the formula of the module's opening."""
    start = MODEL.init(1)
    run = ns.simulate_sgd_sde(MODEL, start, data, steps=1, seed=7, **SGD | {"momentum": 0.0})
    g = per_example(start, data)
    _, own = jax.random.split(jax.random.key(7))
    z = np.asarray(jax.random.normal(own, (40,)), float)
    alpha = np.sqrt(1 / 5 - 1 / 40) * z @ (g - g.mean(axis=0)) / np.sqrt(39)
    expected = flat(start) - 0.2 * (g.mean(axis=0) + 2.0 / 40 * flat(start) + alpha)
    np.testing.assert_allclose(flat(run.params), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("sampler", "variance"),
    [("without_replacement", 1 / 5 - 1 / 40), ("with_replacement", (1 - 1 / 40) / 5)],
)
def test_weights_have_the_samplers_variance(sampler, variance):
    settings = Settings(
        **SGD,
        n_train=40,
        steps=1,
        likelihood="categorical",
        cost_convention="per_example",
        sampler=sampler,
        seed=0,
    )
    assert _spread(settings) ** 2 * 39 / 40**2 == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("convention", ["per_example", "per_class"])
def test_without_noise_it_is_full_batch_training(data, momentum, convention):
    same = SGD | {"batch_size": 40, "momentum": momentum, "cost_convention": convention}
    sde = ns.simulate_sgd_sde(MODEL, MODEL.init(0), data, steps=50, **same)
    sgd = ns.train(MODEL, MODEL.init(0), data, steps=50, **same)
    np.testing.assert_allclose(flat(sde.params), flat(sgd.params), atol=2e-6)
    assert [row.step for row in sde.history] == [row.step for row in sgd.history]


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_many_substeps_integrate_the_equation(data, momentum):
    """Without noise it is an ordinary differential equation, which SciPy integrates."""
    epsilon, lam, N = 0.2, 2.0, 40
    x, y = data[0].astype(float), np.eye(3)[data[1]]

    def gradient(w):
        b, W = w[:3], w[3:].reshape(4, 3)
        z = x @ W + b
        p = np.exp(z - z.max(axis=1, keepdims=True))
        d = (p / p.sum(axis=1, keepdims=True) - y) / N
        return np.concatenate([d.sum(axis=0), (x.T @ d).ravel()]) + lam / N * w

    start = flat(MODEL.init(0))

    def flow(_, state):
        w, A = np.split(state, 2)
        if momentum == 0:
            return np.concatenate([-gradient(w), 0 * A])
        return np.concatenate([-A, (gradient(w) - (1 - momentum) * A) / epsilon])

    steps = 30
    exact = solve_ivp(
        flow, (0, steps * epsilon), np.concatenate([start, 0 * start]), rtol=1e-9, atol=1e-10
    ).y[: len(start), -1]
    errors = []
    for k in (4, 8, 16):
        run = ns.simulate_sgd_sde(
            MODEL,
            MODEL.init(0),
            data,
            steps=steps,
            substeps=k,
            **SGD | {"batch_size": 40, "momentum": momentum},
        )
        errors.append(np.abs(flat(run.params) - exact).max())
    # Euler's method is of first order: half the step, half the error.
    np.testing.assert_allclose(np.divide(errors[:-1], errors[1:]), 2, atol=0.25)


@pytest.mark.parametrize("n", [60, pytest.param(300, marks=pytest.mark.long)])
def test_late_fluctuations_are_those_of_sgd(data, n):
    """The spread of w about its mean, over n seeds of each: z-bound on every direction."""
    settings = SGD | {"momentum": 0.5, "learning_rate": 0.05, "evaluate_at": "final"}
    ends = [
        np.array(
            [
                flat(run(MODEL, MODEL.init(0), data, steps=400, seed=seed, **settings).params)
                for seed in range(n)
            ]
        )
        for run in (ns.train, ns.simulate_sgd_sde)
    ]
    sgd, sde = (end.var(axis=0, ddof=1) for end in ends)
    # Variances of n nearly Gaussian draws have a relative error of sqrt(2/(n - 1)).
    z = np.log(sgd / sde) / np.sqrt(2 * 2 / (n - 1))
    assert np.abs(z).max() < 4
    mean = (ends[0].mean(axis=0) - ends[1].mean(axis=0)) / np.sqrt((sgd + sde) / n)
    assert np.abs(mean).max() < 4


def test_divergence_and_repeats(data):
    wild = SGD | {"learning_rate": 1e30}
    run = ns.simulate_sgd_sde(MODEL, MODEL.init(0), data, steps=20, **wild)
    assert run.status == "diverged"
    again = [
        ns.simulate_sgd_sde(MODEL, MODEL.init(0), data, steps=5, seed=3, **SGD) for _ in range(2)
    ]
    np.testing.assert_array_equal(flat(again[0].params), flat(again[1].params))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sampler": "shuffle"}, "sampler must be one of"),
        ({"substeps": 0}, "substeps must be at least 1"),
        ({"batch_size": 41}, "batch_size must be at most 40"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
    ],
)
def test_bad_input(data, wrong, message):
    with pytest.raises(InputError, match=message):
        ns.simulate_sgd_sde(MODEL, MODEL.init(0), data, steps=1, **SGD | wrong)
