import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisescale.training import SAMPLERS, BatchStream

Z_BOUND = 5.0


def stream(sampler, n_train, batch_size, seed=0):
    return BatchStream(
        sampler, n_train=n_train, batch_size=batch_size, rng=np.random.default_rng(seed)
    )


# B = 1; the rejection branch; the branch that shuffles everybody; nearly everybody; everybody.
SIZES = [(1, 50), (10, 1000), (30, 100), (99, 100), (100, 100)]


@pytest.mark.parametrize(("batch_size", "n_train"), SIZES)
def test_without_replacement_never_repeats(batch_size, n_train):
    batches = np.sort(stream("without_replacement", n_train, batch_size).take(3000), axis=1)
    assert (np.diff(batches, axis=1) > 0).all()
    assert batches.min() >= 0
    assert batches.max() < n_train


@pytest.mark.parametrize(("batch_size", "n_train"), SIZES[:-1])
@pytest.mark.parametrize("sampler", ["without_replacement", "with_replacement"])
def test_marginals_are_uniform(sampler, batch_size, n_train):
    steps = 20_000
    seen = np.bincount(stream(sampler, n_train, batch_size).take(steps).ravel(), minlength=n_train)
    share = batch_size / n_train
    # Per-step variance of an example's count; the counts of a step sum to B, hence (N - 1)/N.
    variance = (
        share * (1 - share) if sampler == "without_replacement" else share * (1 - 1 / n_train)
    )
    chi2 = ((seen - steps * share) ** 2).sum() / (steps * variance) * (n_train - 1) / n_train
    z = (chi2 - (n_train - 1)) / np.sqrt(2 * (n_train - 1))
    assert abs(z) < Z_BOUND


@pytest.mark.parametrize("n_train", [6, 17], ids=["shuffled", "rejection"])
def test_every_pair_is_equally_likely(n_train):
    steps = 100_000
    batches = np.sort(stream("without_replacement", n_train, 2).take(steps), axis=1)
    pairs = list(itertools.combinations(range(n_train), 2))
    codes = np.bincount(batches[:, 0] * n_train + batches[:, 1], minlength=n_train**2)
    counts = np.array([codes[a * n_train + b] for a, b in pairs])
    assert counts.sum() == steps
    expected = steps / len(pairs)
    chi2 = ((counts - expected) ** 2).sum() / expected
    assert abs(chi2 - (len(pairs) - 1)) / np.sqrt(2 * (len(pairs) - 1)) < Z_BOUND


def test_steps_are_independent_without_replacement():
    n_train, batch_size, steps = 200, 20, 20_000
    batches = stream("without_replacement", n_train, batch_size).take(steps)
    members = np.zeros((steps, n_train), bool)
    np.put_along_axis(members, batches, True, axis=1)
    overlap = (members[1:] & members[:-1]).sum(axis=1)
    # Hypergeometric mean and variance of the overlap of two independent batches.
    share = batch_size / n_train
    mean = batch_size * share
    variance = mean * (1 - share) * (n_train - batch_size) / (n_train - 1)
    assert abs(overlap.mean() - mean) / np.sqrt(variance / len(overlap)) < Z_BOUND


def test_with_replacement_repeats_as_often_as_it_should():
    n_train, batch_size, steps = 50, 10, 20_000
    batches = np.sort(stream("with_replacement", n_train, batch_size).take(steps), axis=1)
    distinct = (np.diff(batches, axis=1) > 0).all(axis=1).mean()
    expected = np.prod(1 - np.arange(batch_size) / n_train)
    assert abs(distinct - expected) / np.sqrt(expected * (1 - expected) / steps) < Z_BOUND


@pytest.mark.parametrize(("batch_size", "n_train"), [(7, 50), (50, 50), (1, 13), (30, 41)])
def test_shuffle_shows_each_example_once_an_epoch(batch_size, n_train):
    epochs = 60
    steps = -(-epochs * n_train // batch_size)
    order = stream("shuffle", n_train, batch_size).take(steps).ravel()[: epochs * n_train]
    each = np.sort(order.reshape(epochs, n_train), axis=1)
    assert (each == np.arange(n_train)).all()
    assert len({tuple(row) for row in order.reshape(epochs, n_train)}) == epochs


@given(
    sampler=st.sampled_from(list(SAMPLERS)),
    n_train=st.integers(1, 400),
    share=st.floats(0, 1),
    takes=st.lists(st.integers(0, 50), max_size=5),
)
def test_a_stream_does_not_depend_on_how_it_is_taken(sampler, n_train, share, takes):
    batch_size = max(1, round(share * n_train))
    whole = stream(sampler, n_train, batch_size).take(sum(takes))
    source = stream(sampler, n_train, batch_size)
    parts = [source.take(n) for n in takes]
    np.testing.assert_array_equal(
        whole, np.concatenate([*parts, np.empty((0, batch_size), np.int32)])
    )
    assert whole.dtype == np.int32
    assert whole.size == 0 or (whole.min() >= 0 and whole.max() < n_train)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("batch_size", [1, 30, 3000, 60_000])
def test_a_draw_takes_little_memory(sampler, batch_size):
    source = stream(sampler, 60_000, batch_size)
    tracemalloc.start()
    source.take(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 * 2**20
