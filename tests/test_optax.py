"""watch_noise in real optax chains: the readings by definition, jit, devices, checkpoints."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

optax = pytest.importorskip("optax", reason="optax is an extra: make torch adds it")
from noisescale.errors import InputError  # noqa: E402
from noisescale.noise.watch.ratio import RunningRatio  # noqa: E402
from noisescale.optax import read_noise, watch_noise  # noqa: E402

pytestmark = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def network(w, x):
    return jnp.tanh(x @ w["in"] + w["bias"]) @ w["out"]


def loss(w, x, y):
    return (network(w, x) - y) ** 2


def start(seed=0):
    rng = np.random.default_rng(seed)
    w = {"in": rng.normal(size=(4, 5)), "bias": rng.normal(size=5), "out": rng.normal(size=5)}
    x = rng.normal(size=(96, 4))
    return jax.tree.map(jnp.asarray, w), jnp.asarray(x), jnp.asarray(rng.normal(size=96))


example_gradients = jax.vmap(jax.grad(loss), (None, 0, 0))


def flat(tree, n):
    return np.concatenate([np.asarray(leaf).reshape(n, -1) for leaf in jax.tree.leaves(tree)], 1)


def trained(optimizer, w, x, y, size=16, jit=True):
    @(jax.jit if jit else lambda f: f)
    def step(w, state, x, y):
        each = example_gradients(w, x, y)
        mean = jax.tree.map(lambda g: g.mean(0), each)
        updates, state = optimizer.update(mean, state, w, example_gradients=each)
        return optax.apply_updates(w, updates), state, each

    state, seen = optimizer.init(w), []
    for k in range(0, len(x), size):
        w, state, each = step(w, state, x[k : k + size], y[k : k + size])
        seen.append(flat(each, size))
    return w, state, seen


def by_definition(seen, decay):
    """Sample covariances of single gradients, averaged as the record does."""
    ratio = RunningRatio(decay=decay)
    for g in seen:
        trace = g.var(axis=0, ddof=1).sum()
        ratio.take(float((g.mean(0) ** 2).sum() - trace / len(g)), float(trace))
    return ratio


@pytest.mark.parametrize("jit", [True, False])
def test_readings_are_the_sample_covariance(jit):
    w, x, y = start()
    chain = optax.chain(watch_noise(decay=0.9), optax.sgd(0.05, momentum=0.9))
    _, state, seen = trained(chain, w, x, y, jit=jit)
    truth = by_definition(seen, 0.9)
    record = read_noise(state)
    assert record.whole.state_dict() == pytest.approx(truth.state_dict(), rel=1e-9)
    for name in ("value", "low", "high"):
        got, want = getattr(record.interval(), name), getattr(truth.interval(), name)
        assert got == pytest.approx(want, rel=1e-8, nan_ok=True)
    ratio = float(optax.tree.get(state, "critical_batch_size"))
    assert ratio == pytest.approx(truth.noise / truth.signal, rel=1e-9)


def test_weights_are_the_same_to_the_bit():
    w, x, y = start()
    plain = optax.adam(0.01)
    watched, _, _ = trained(optax.chain(watch_noise(), plain), w, x, y)
    alone, _, _ = trained(optax.with_extra_args_support(plain), w, x, y)
    assert all(map(np.array_equal, jax.tree.leaves(watched), jax.tree.leaves(alone)))


def test_the_noise_scale_follows_a_schedule():
    w, x, y = start()
    schedule = optax.exponential_decay(0.1, 1, 0.5)
    watching = watch_noise(n_train=96, learning_rate=schedule, momentum=0.9)
    chain = optax.chain(watching, optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))
    _, state, seen = trained(chain, w, x, y)
    rate = 0.1 * 0.5 ** (len(seen) - 1)
    g = rate * (96 / 16 - 1) / (1 - 0.9)
    assert float(optax.tree.get(state, "noise_scale")) == pytest.approx(g, rel=1e-6)
    assert float(optax.tree.get(state, "learning_rate")) == pytest.approx(0.1)  # sgd's own
    record = read_noise(state)
    assert record.noise_scale == pytest.approx(g, rel=1e-6)
    assert record.advice().batch_size == 16
    json.dumps(record.advice().to_dict(), allow_nan=False)


def test_shares_of_the_batch_measure_the_same_thing():
    """Of 4 examples each: their variance is a quarter, and its fourfold is unbiased."""
    w, x, y = start()
    each = example_gradients(w, x, y)
    shares = jax.tree.map(lambda g: g.reshape(24, 4, *g.shape[1:]).mean(1), each)
    mean = jax.tree.map(lambda g: g.mean(0), each)
    watching = watch_noise(group_size=4)
    _, state = watching.update(mean, watching.init(w), example_gradients=shares)
    g = flat(shares, 24)
    trace = 4 * g.var(axis=0, ddof=1).sum()
    record = read_noise(state)
    assert record.trace.value == pytest.approx(trace, rel=1e-9)
    signal = (g.mean(0) ** 2).sum() - trace / 96
    assert record.gradient_sq_norm.value == pytest.approx(signal, rel=1e-9)


def test_devices_measure_as_shares_do():
    """An axis by name: vmap has the collectives of pmap."""
    w, x, y = start()
    each = example_gradients(w, x, y)
    shares = jax.tree.map(lambda g: g.reshape(8, 12, *g.shape[1:]).mean(1), each)
    mean = jax.tree.map(lambda g: g.mean(0), each)
    together, apart = watch_noise(group_size=12), watch_noise(group_size=12, axis_name="device")
    _, wanted = together.update(mean, together.init(w), example_gradients=shares)

    def on_device(own):
        average = jax.lax.pmean(own, "device")
        return apart.update(average, apart.init(w), example_gradients=own)[1]

    got = jax.vmap(on_device, axis_name="device")(shares)
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_allclose(np.asarray(other)[3], one, rtol=1e-9)


def test_updates_that_are_not_finite_or_not_measured_are_left_out():
    w, x, y = start()
    watching = watch_noise()
    each = example_gradients(w, x, y)
    mean = jax.tree.map(lambda g: g.mean(0), each)
    _, state = watching.update(mean, watching.init(w), example_gradients=each)
    bad = jax.tree.map(lambda g: g.at[0].set(jnp.inf), each)
    mean_bad = jax.tree.map(lambda g: g.mean(0), bad)
    passed, after = watching.update(mean_bad, state, example_gradients=bad)
    assert passed is mean_bad
    assert int(after.n_skipped) == 1
    np.testing.assert_array_equal(after.averages, state.averages)
    _, same = watching.update(mean, state)
    assert same is state


def test_a_state_that_was_saved_goes_on():
    w, x, y = start()
    chain = optax.chain(watch_noise(), optax.sgd(0.01))
    _, state, _ = trained(chain, w, x, y)
    again = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, state)))
    each = example_gradients(w, x, y)
    mean = jax.tree.map(lambda g: g.mean(0), each)
    ends = [chain.update(mean, s, w, example_gradients=each)[1] for s in (state, again)]
    one, other = (read_noise(end).whole.state_dict() for end in ends)
    assert one == other
    assert one["n_updates"] == 7


def test_bad_use_gets_a_sentence():
    w, x, y = start()
    watching = watch_noise()
    each = example_gradients(w, x, y)
    mean = jax.tree.map(lambda g: g.mean(0), each)
    with pytest.raises(InputError, match="leading axis"):
        watching.update(mean, watching.init(w), example_gradients=mean)
    one = jax.tree.map(lambda g: g[:1], each)
    with pytest.raises(InputError, match="2 examples or more"):
        watching.update(mean, watching.init(w), example_gradients=one)
    with pytest.raises(InputError, match="holds no watch_noise"):
        read_noise(optax.sgd(0.1).init(w))
    with pytest.raises(InputError, match="n_train"):
        watch_noise(n_train=0)
