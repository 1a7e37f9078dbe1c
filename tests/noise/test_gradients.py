import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import noisescale as ns
from noisescale.errors import InputError
from noisescale.evidence.curvature.gauss_newton import dense_ggn
from noisescale.evidence.curvature.hessian import dense_hessian
from noisescale.evidence.curvature.model import Model
from noisescale.likelihood import LIKELIHOODS
from noisescale.noise.gradients import summarise
from noisescale.training import BatchStream

NETWORK = ns.DenseNetwork((6, 5, 4, 3))


def problem(n=60, seed=0, network=NETWORK, classes=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, network.widths[0])).astype(np.float32)
    return network.init(seed), (x, x[:, :classes].argmax(axis=1).astype(np.int32))


@jax.jit
@jax.grad
def gradient(params, x, y):
    return -jax.nn.log_softmax(NETWORK(params, x[None]))[0, y]


def per_example(params, data):
    """The naive twin: one gradient after the other, in a matrix (N, p)."""
    rows = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient(params, x, y))])
        for x, y in zip(*data, strict=True)
    ]
    return np.array(rows, np.float64)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_against_one_gradient_after_the_other():
    params, data = problem()
    g = per_example(params, data)
    noise = ns.gradient_noise(NETWORK, params, data)
    S = np.cov(g.T)
    assert noise.trace == pytest.approx(np.trace(S), rel=1e-5)
    assert noise.gradient_sq_norm == pytest.approx(
        np.sum(g.mean(axis=0) ** 2) - np.trace(S) / 60, rel=1e-4, abs=1e-6
    )
    np.testing.assert_allclose(flat(noise.mean), g.mean(axis=0), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(flat(noise.variance), np.diag(S), rtol=1e-3, atol=1e-7)
    assert (noise.n_train, noise.n_params) == (60, g.shape[1])


def test_a_network_and_the_same_as_a_function_agree():
    params, data = problem()
    dense = ns.gradient_noise(NETWORK, params, data)
    general = ns.gradient_noise(lambda w, x: NETWORK(w, x), params, data)
    assert dense.trace == pytest.approx(general.trace, rel=1e-5)
    assert dense.critical_batch_size == pytest.approx(general.critical_batch_size, rel=1e-4)
    assert dense.low == pytest.approx(general.low, rel=1e-3)
    np.testing.assert_allclose(flat(dense.variance), flat(general.variance), rtol=1e-3, atol=1e-8)


def test_blocks_change_nothing(monkeypatch):
    params, data = problem()
    whole = ns.gradient_noise(NETWORK, params, data)
    monkeypatch.setattr("noisescale.training.per_example._BLOCK_BYTES", 4 * 54 * 7)  # seven rows
    parts = ns.gradient_noise(NETWORK, params, data)
    assert parts.trace == pytest.approx(whole.trace, rel=1e-6)
    assert parts.high == pytest.approx(whole.high, rel=1e-5)


def test_two_classes():
    model = ns.logistic_regression(4)
    params, (x, y) = problem(50, network=model, classes=2)
    p = 1 / (1 + np.exp(-np.asarray(model(params, x))[:, 0].astype(float)))
    g = (p - y)[:, None] * np.column_stack([x, np.ones(50)])
    noise = ns.gradient_noise(model, params, (x, y), likelihood="bernoulli")
    assert noise.trace == pytest.approx(np.trace(np.cov(g.T)), rel=1e-5)


def test_the_jackknife_is_the_jackknife():
    g = np.random.default_rng(1).normal(0.3, 1, (25, 4))

    def estimates(g):
        n = len(g)
        trace = np.trace(np.cov(g.T))
        return trace, np.sum(g.mean(axis=0) ** 2) - trace / n

    mean = g.mean(axis=0)
    made = summarise((g**2).sum(axis=1), g @ mean, float(mean @ mean), 4, None, None)
    left_out = np.array([estimates(np.delete(g, i, axis=0)) for i in range(25)])
    errors = np.sqrt(24 * left_out.var(axis=0))
    assert (made.trace_std, made.gradient_sq_norm_std) == pytest.approx(tuple(errors), rel=1e-9)


def synthetic(n, seed, offset=0.4, p=20):
    """Gradients with known tr S = p and |G|^2 = p offset^2."""
    g = np.random.default_rng(seed).normal(offset, 1, (n, p))
    mean = g.mean(axis=0)
    return summarise((g**2).sum(axis=1), g @ mean, float(mean @ mean), p, None, None)


def test_intervals_cover_the_truth():
    trials, truth = 300, 1 / 0.4**2
    made = [synthetic(200, seed) for seed in range(trials)]
    assert all(noise.undetermined is None for noise in made)
    covered = np.mean([noise.low <= truth <= noise.high for noise in made])
    assert covered > 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)
    bias = np.mean([noise.gradient_sq_norm for noise in made]) / (20 * 0.16) - 1
    spread = np.std([noise.gradient_sq_norm for noise in made]) / (20 * 0.16)
    assert abs(bias) < 3 * spread / math.sqrt(trials)


def test_a_gradient_lost_in_noise_is_undetermined():
    made = [synthetic(50, seed, offset=0.0) for seed in range(100)]
    lost = [noise for noise in made if noise.undetermined]
    assert len(lost) > 85
    assert all(noise.critical_batch_size is None for noise in lost)
    assert all(math.isinf(noise.high) and noise.low > 0 for noise in lost)
    assert "undetermined" in repr(lost[0])
    assert lost[0].to_dict()["high"] is None


@pytest.mark.parametrize("noise", [0.1, 1e-2, 1e-3, 1e-4, 1e-6])
def test_a_noise_down_to_a_millionth_of_the_gradient(noise):
    """g_i = 1000 x_i at w = 0, by definition in float64; the last entry is noisier."""
    x = 1 + noise * np.random.default_rng(0).normal(size=(500, 4)) * [1, 1, 1, 10]
    found = ns.gradient_noise(
        lambda w, x: x @ w, np.zeros(4), (x, np.full(500, -1000.0)), likelihood="gaussian",
        n_eigenvalues=2,
    )  # fmt: skip
    S, mean = np.cov(1000 * x.T), 1000 * x.mean(axis=0)
    trace = np.trace(S)
    assert found.trace == pytest.approx(trace, rel=1e-3)
    assert found.critical_batch_size == pytest.approx(trace / (mean @ mean - trace / 500), rel=1e-3)
    assert found.low < found.critical_batch_size < found.high < 2 * found.low
    np.testing.assert_allclose(found.variance, np.diag(S), rtol=1e-3)
    np.testing.assert_allclose(found.spectrum.eigenvalues, np.linalg.eigvalsh(S)[:-3:-1], rtol=1e-2)


ALONE, ALIKE = "one example alone has the noise", "alike: there is no noise beyond rounding"


@pytest.mark.parametrize(
    ("gradients", "reason"),
    [
        ([1, 1, 2], ALONE),
        ([1, 1 + 1e-9, 2], ALONE),
        ([0, 0, 0, 5], ALONE),
        ([*[1.0] * 40, 1 + 1e-5], ALONE),
        ([0.1] * 7, ALIKE),
        ([1 / 3] * 50, ALIKE),
        ([0.0] * 5, ALIKE),
        ([-1, 1, 2], "two standard errors above zero"),
        ([0.9, 1, 1.1, 1.3, 0.8, 1.05], None),
        ([1 - 1e-6, 1, 1 + 1e-6, 1 - 2e-6], None),
    ],
    ids=lambda given: str(given)[:24],
)
def test_what_is_not_determined_says_why(gradients, reason):
    """Not by an interval of NaN, nor by one that rounding makes."""
    g = np.array(gradients, float)[:, None]
    mean = g.mean(axis=0)
    made = [
        summarise((g**2).sum(axis=1), g @ mean, float(mean @ mean), 1, None, None),
        ns.gradient_noise(
            lambda w, x: x @ w, np.zeros(1), (np.ones((len(g), 1)), -g[:, 0]), likelihood="gaussian"
        ),
    ]
    for noise in made:
        if reason is None:
            assert noise.undetermined is None
            assert noise.low < noise.critical_batch_size < noise.high < 100 * noise.low
            assert noise.trace == pytest.approx(np.var(g, ddof=1), rel=1e-3)
        else:
            assert reason in noise.undetermined
            assert reason in repr(noise)
            assert noise.critical_batch_size is None
            assert 0 <= noise.low < noise.high == math.inf
        if reason == ALIKE:
            assert (noise.trace, noise.low) == (0.0, 0.0)
        if reason == ALONE:
            assert noise.low == 0.0


@pytest.mark.parametrize("sampler", ["without_replacement", "with_replacement", "shuffle"])
def test_the_variance_of_minibatches(sampler):
    params, data = problem()
    g = per_example(params, data)
    noise = ns.gradient_noise(NETWORK, params, data)
    for B in (1, 7, 20):  # shuffled batches of these sizes do not all straddle epochs evenly
        if sampler == "shuffle" and 60 % B:
            continue
        stream = BatchStream(sampler, n_train=60, batch_size=B, rng=np.random.default_rng(B))
        errors = g[stream.take(6000)].mean(axis=1) - g.mean(axis=0)
        squared = (errors**2).sum(axis=1)
        standard_error = squared.std() / math.sqrt(6000)
        assert abs(squared.mean() - noise.minibatch_variance(B, sampler)) < 4 * standard_error
    assert (noise.minibatch_variance(60, sampler) == 0) == (sampler != "with_replacement")


@given(st.integers(1, 100), st.integers(1, 100))
def test_predicted_variances_fall_with_the_batch(a, b):
    noise = synthetic(100, 0)
    small, large = sorted((a, b))
    for sampler in ("without_replacement", "with_replacement"):
        assert noise.minibatch_variance(large, sampler) <= noise.minibatch_variance(small, sampler)


def test_bad_input_gets_one_sentence():
    params, (x, y) = problem()

    def refuse(match, call):
        with pytest.raises(InputError, match=match):
            call()

    refuse("at least 3 examples, got 2", lambda: ns.gradient_noise(NETWORK, params, (x[:2], y[:2])))
    refuse("data x holds nan", lambda: ns.gradient_noise(NETWORK, params, (x * np.nan, y)))
    refuse(
        "likelihood must be one of",
        lambda: ns.gradient_noise(NETWORK, params, (x, y), likelihood="binomial"),
    )
    refuse(
        "gradients of some examples are not finite",
        lambda: ns.gradient_noise(lambda w, x: jnp.sqrt(NETWORK(w, x) * 0), params, (x, y)),
    )
    noise = ns.gradient_noise(NETWORK, params, (x, y))
    refuse("batch_size must be at most 60", lambda: noise.minibatch_variance(61))
    refuse("sampler must be one of", lambda: noise.minibatch_variance(1, "magic"))


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_leading_directions_against_dense_matrices(curvature):
    params, data = problem()
    noise = ns.gradient_noise(NETWORK, params, data, n_eigenvalues=4, curvature=curvature)
    values, U = np.linalg.eigh(np.cov(per_example(params, data).T))
    model = Model.at(NETWORK, params, *data, LIKELIHOODS["categorical"])
    H = dense_ggn(model)[0] if curvature == "ggn" else dense_hessian(model)
    curvatures, V = np.linalg.eigh(H)
    found = noise.spectrum
    np.testing.assert_allclose(found.eigenvalues, values[::-1][:4], rtol=1e-4)
    np.testing.assert_allclose(found.curvature_eigenvalues, curvatures[::-1][:4], rtol=1e-4)
    overlap = np.sum((U[:, -4:].T @ V[:, -4:]) ** 2) / 4
    assert found.overlap == pytest.approx(overlap, abs=1e-3)
    assert found.chance == 4 / noise.n_params
    assert "overlap" in repr(noise)
    assert noise.to_dict()["spectrum"]["curvature"] == curvature


def test_no_spectrum_unless_asked_for():
    params, data = problem()
    assert ns.gradient_noise(NETWORK, params, data).spectrum is None
    with pytest.raises(InputError, match="n_eigenvalues must be below"):
        ns.gradient_noise(NETWORK, params, data, n_eigenvalues=10_000)
    with pytest.raises(InputError, match="curvature must be one of"):
        ns.gradient_noise(NETWORK, params, data, n_eigenvalues=2, curvature="fisher")


@pytest.mark.parametrize("precision", [1.0, 4.0])
def test_a_gaussian_likelihood(precision):
    model = ns.logistic_regression(4)
    params, (x, _) = problem(50, network=model, classes=2)
    y = np.random.default_rng(1).normal(size=(50, 1))
    residuals = np.asarray(model(params, x)).astype(float) - y
    g = precision * residuals * np.column_stack([x, np.ones(50)])
    for likelihood in [ns.gaussian(precision)] + ["gaussian"] * (precision == 1):
        noise = ns.gradient_noise(model, params, (x, y), likelihood=likelihood)
        assert noise.trace == pytest.approx(np.trace(np.cov(g.T)), rel=1e-5)


def test_labels_as_two_class_losses_want_them():
    model = ns.logistic_regression(4)
    params, (x, y) = problem(50, network=model, classes=2)
    plain = ns.gradient_noise(model, params, (x, y), likelihood="bernoulli")
    for labels in (y.astype(np.float32), y[:, None], y[:, None].astype(float), y.astype(bool)):
        again = ns.gradient_noise(model, params, (x, labels), likelihood="bernoulli")
        assert again.trace == plain.trace
    with pytest.raises(InputError, match="labels must be 0 or 1 for two classes, got 0.5"):
        ns.gradient_noise(model, params, (x, y / 2), likelihood="bernoulli")
    with pytest.raises(InputError, match="must be whole numbers, got dtype float64"):
        ns.gradient_noise(NETWORK, NETWORK.init(0), (x[:, [0] * 6], y.astype(float)))


def test_the_first_line_says_what_is_counted():
    """Sequences, and whether the loss is the sum or the mean over their tokens."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4, 3)), rng.integers(2, size=(12, 4))
    weights = rng.normal(size=(3, 2))
    noises = [
        ns.gradient_noise(lambda w, x: x @ w, weights, (x, y), reduction=reduction)
        for reduction in ("sum", "mean")
    ]
    for noise, verb in zip(noises, ("summed", "averaged"), strict=True):
        line = repr(noise).splitlines()[0]
        assert f"sequences of 4 tokens, loss {verb} over tokens" in line
    assert noises[0].trace == pytest.approx(16 * noises[1].trace)
    np.testing.assert_allclose(noises[0].variance, 16 * noises[1].variance)
    np.testing.assert_allclose(noises[0].mean, 4 * noises[1].mean)
    assert noises[0].low == pytest.approx(noises[1].low)
