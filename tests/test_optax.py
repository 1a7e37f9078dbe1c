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
    return jax.tree.map(jnp.asarray, w), x, rng.normal(size=96)


# Compiled once for each shape: operation by operation takes ten times as long.
example_gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))
mean_of = jax.jit(lambda each: jax.tree.map(lambda g: g.mean(0), each))


def updating(optimizer):
    """Its update, compiled."""
    return jax.jit(optimizer.update)


WATCHING = watch_noise()
WATCHED = updating(WATCHING)


def flat(tree, n):
    return np.concatenate([np.asarray(leaf).reshape(n, -1) for leaf in jax.tree.leaves(tree)], 1)


def trained(optimizer, w, x, y, size=16, jit=True):
    @(jax.jit if jit else lambda f: f)
    def step(w, state, x, y):
        each = example_gradients(w, x, y)
        updates, state = optimizer.update(mean_of(each), state, w, example_gradients=each)
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
    got, want = record.whole.state_dict(), truth.state_dict()
    for name in want:
        assert np.asarray(got[name], float) == pytest.approx(
            np.asarray(want[name], float), rel=1e-9, nan_ok=True
        )
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


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda chain: chain,
        lambda chain: optax.inject_hyperparams(lambda weight: chain)(weight=1.0),
        lambda chain: optax.apply_if_finite(chain, 3),
        lambda chain: optax.MultiSteps(chain, 1),
    ],
    ids=["chain", "inject_hyperparams", "apply_if_finite", "MultiSteps"],
)
def test_a_schedule_is_asked_at_the_updates_that_were_made(wrapped):
    """As sgd asks it, which is what the weights show, though every third alone is measured."""
    w, x, y = start()
    schedule = optax.linear_schedule(0.1, 0.0, 20)
    watching = watch_noise(n_train=96, learning_rate=schedule)
    chain = wrapped(optax.chain(watching, optax.sgd(schedule)))
    state = chain.init(w)
    update, each = updating(chain), example_gradients(w, x[:16], y[:16])
    mean = mean_of(each)
    broken = jax.tree.map(lambda g: np.nan * np.asarray(g), mean)
    for k in range(12):
        if k == 5 and isinstance(state, optax.ApplyIfFiniteState):
            state = update(broken, state, w)[1]  # which sgd does not make
        measured = {"example_gradients": each} if k % 3 == 0 else {}
        updates, state = update(mean, state, w, **measured)
        if measured:
            rate = -float(updates["bias"][0] / mean["bias"][0])
            row = read_noise(state).rows[-1]
            assert (row.update, row.learning_rate) == (k, pytest.approx(rate))
            assert row.noise_scale == pytest.approx(rate * (96 / 16 - 1))


@pytest.mark.parametrize("n_train", [15, 16, 50_000_001, 2**40 + 1, 2**62])
def test_a_batch_is_at_most_the_training_set(n_train):
    watching = watch_noise(n_train=n_train, learning_rate=0.5)
    with jax.enable_x64(False):
        w, x, y = jax.tree.map(np.float32, start())
        each = example_gradients(w, x[:16], y[:16])
        state = updating(watching)(mean_of(each), watching.init(w), example_gradients=each)[1]
    record, g = read_noise(state), float(optax.tree.get(state, "noise_scale"))
    assert record.n_train == n_train
    if n_train < 16:
        assert record.noise_scale is None
        assert np.isnan(g)
        assert "more than n_train = 15" in record.notes[0]
    else:
        assert record.noise_scale == pytest.approx(0.5 * (n_train / 16 - 1))
        assert g == pytest.approx(record.noise_scale, rel=1e-6)


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6, 0.0])
def test_a_small_noise_does_not_cancel_in_float32(noise):
    rng = np.random.default_rng(0)
    with jax.enable_x64(False):
        each = {"w": np.float32(1 + noise * rng.normal(size=(32, 400)))}
        mean = mean_of(each)
        g = np.asarray(each["w"], float)
        state = WATCHING.init(mean)
        for _ in range(2):
            state = WATCHED(mean, state, example_gradients=each)[1]
    record, ratio = read_noise(state), float(state.critical_batch_size)
    truth = g.var(axis=0, ddof=1).sum()
    assert record.trace.value == pytest.approx(truth, rel=1e-2, abs=0)
    if noise == 0:
        assert np.isnan(ratio)
        assert record.critical_batch_size is None
        assert "alike within rounding" in record.notes[0]
    else:
        assert ratio == pytest.approx(truth / 400, rel=1e-2)


def test_gradients_of_other_examples_than_the_updates_are_left_out():
    """Accumulated over micro-batches, the updates are not the mean of the last one's gradients."""
    w, x, y = start()
    chain = optax.MultiSteps(optax.chain(watch_noise(), optax.sgd(0.1)), 2)
    _, state, _ = trained(chain, w, x, y)
    record = read_noise(state)
    assert (record.whole.n_updates, record.whole.n_skipped) == (0, 3)
    assert "not the mean of the example_gradients" in record.notes[0]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_a_mean_that_is_rounded_is_the_mean(kind):
    w, x, y = start()
    each = jax.tree.map(lambda g: g.astype(kind), example_gradients(w, x, y))
    mean = jax.tree.map(lambda g: g.sum(0) / len(x), each)
    _, state = WATCHED(mean, WATCHING.init(w), example_gradients=each)
    assert int(state.averages.n_taken) == 1


def shared(each, n):
    """Mean gradients of n equal parts of the batch."""
    return jax.tree.map(lambda g: np.asarray(g).reshape(n, len(g) // n, *g.shape[1:]).mean(1), each)


def test_shares_of_the_batch_measure_the_same_thing():
    """Of 4 examples each: their variance is a quarter, and its fourfold is unbiased."""
    w, x, y = start()
    each = example_gradients(w, x, y)
    shares = shared(each, 24)
    watching = watch_noise(group_size=4)
    _, state = updating(watching)(mean_of(each), watching.init(w), example_gradients=shares)
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
    shares = shared(each, 8)
    together, apart = watch_noise(group_size=12), watch_noise(group_size=12, axis_name="device")
    wanted = updating(together)(mean_of(each), together.init(w), example_gradients=shares)[1]

    def on_device(own):
        average = jax.lax.pmean(own, "device")
        return apart.update(average, apart.init(w), example_gradients=own)[1]

    got = jax.jit(jax.vmap(on_device, axis_name="device"))(shares)
    for one, other in zip(jax.tree.leaves(wanted), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(np.asarray(other)[3], one, rtol=1e-9)


def test_updates_that_are_not_finite_or_not_measured_are_left_out():
    w, x, y = start()
    each = example_gradients(w, x, y)
    mean = mean_of(each)
    _, state = WATCHED(mean, WATCHING.init(w), example_gradients=each)
    bad = jax.tree.map(np.array, each)
    for g in jax.tree.leaves(bad):
        g[0] = np.inf
    passed, after = WATCHED(mean_of(bad), state, example_gradients=bad)
    assert all(map(np.array_equal, *map(jax.tree.leaves, (passed, mean_of(bad)))))
    assert int(after.averages.n_skipped) == 1
    np.testing.assert_array_equal(after.averages.blocks, state.averages.blocks)
    passed, counted = WATCHING.update(mean, state)  # op by op, as it may be called too
    assert passed is mean
    assert int(counted.n_updates) == int(state.n_updates) + 1
    assert all(one is other for one, other in zip(counted[1:], state[1:], strict=True))


def test_a_state_that_was_saved_goes_on():
    w, x, y = start()
    chain = optax.chain(watch_noise(), optax.sgd(0.01))
    _, state, _ = trained(chain, w, x, y)
    again = pickle.loads(pickle.dumps(jax.tree.map(np.asarray, state)))
    each = example_gradients(w, x, y)
    update = updating(chain)
    ends = [update(mean_of(each), s, w, example_gradients=each)[1] for s in (state, again)]
    one, other = (read_noise(end).whole.state_dict() for end in ends)
    assert one == other
    assert one["n_taken"] == 7


def test_bad_use_gets_a_sentence():
    w, x, y = start()
    watching = watch_noise()
    each = example_gradients(w, x, y)
    mean = mean_of(each)
    with pytest.raises(InputError, match="leading axis"):
        watching.update(mean, watching.init(w), example_gradients=mean)
    one = jax.tree.map(lambda g: g[:1], each)
    with pytest.raises(InputError, match="2 examples or more"):
        watching.update(mean, watching.init(w), example_gradients=one)
    with pytest.raises(InputError, match="holds no watch_noise"):
        read_noise(optax.sgd(0.1).init(w))
    with pytest.raises(InputError, match="n_train"):
        watch_noise(n_train=0)
