import numpy as np
import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.distribution import (
    batch_means,
    count_modes,
    describe_shape,
    entry_gradients,
)
from noisescale.noise.gradients import gradient_noise
from noisescale.paper.appendix_c import _gram


@pytest.fixture
def rng():
    """Random numbers that do not depend on which tests came before."""
    return np.random.default_rng(0)


def test_a_gaussian_sample_looks_gaussian(rng):
    shape = describe_shape(rng.normal(3, 2, 20_000))
    assert shape.ks_distance < 0.01
    assert abs(shape.skewness) < 0.06
    assert abs(shape.excess_kurtosis) < 0.12
    assert shape.at_zero == 0


def test_noise_in_the_tails_is_no_mode(rng):
    counts = [count_modes(rng.normal(size=1000), prominence=0.05) for _ in range(100)]
    assert np.mean(np.array(counts) == 1) > 0.9


def test_two_peaks_and_an_atom(rng):
    values = np.concatenate([rng.normal(-3, 1, 500), rng.normal(3, 1, 500), np.zeros(1000)])
    shape = describe_shape(values)
    assert count_modes(values[values != 0], prominence=0.05) == 2
    assert shape.n_modes >= 2
    assert shape.at_zero == 0.5
    assert shape.ks_distance > 0.2
    assert shape.to_dict()["n"] == 2000


@pytest.mark.parametrize("index", [1.5, 3.0])
def test_the_tail_index_of_a_power_law(index, rng):
    values = rng.pareto(index, 50_000) + 1
    assert describe_shape(values * rng.choice([-1, 1], 50_000)).tail_index == pytest.approx(
        index, rel=0.15
    )


def test_entries_are_entries_of_the_gradient(rng):
    network = ns.DenseNetwork((4, 3, 2))
    params = network.init(0)
    x = rng.normal(size=(30, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    everything = entry_gradients(network, params, (x, y), range(23))
    noise = gradient_noise(network, params, (x, y))
    flat = np.concatenate([np.ravel(noise.mean[k][name]) for k in (0, 1) for name in ("b", "w")])
    np.testing.assert_allclose(everything.mean(axis=0), flat, rtol=1e-4, atol=1e-7)
    assert everything.var(axis=0, ddof=1).sum() == pytest.approx(noise.trace, rel=1e-5)
    # The Gram matrix of the variance law, against the gradients themselves.
    centred = everything - everything.mean(axis=0)
    np.testing.assert_allclose(_gram(params, x, y), centred @ centred.T, rtol=1e-3, atol=1e-5)


def test_batch_means_come_closer_to_a_gaussian(rng):
    values = rng.exponential(size=(1000, 1))
    far, near = (
        describe_shape(batch_means(values, B, n_batches=4000)).ks_distance for B in (2, 50)
    )
    assert near < far / 2
    means = batch_means(values, 50, n_batches=4000)
    assert means.std() == pytest.approx(values.std(ddof=1) * np.sqrt(1 / 50 - 1 / 1000), rel=0.05)


def test_bad_input():
    with pytest.raises(InputError, match="at least 8 finite values, got 3"):
        describe_shape([1, 2, 3])
    with pytest.raises(InputError, match="all values are the same"):
        describe_shape(np.ones(20))
    network = ns.DenseNetwork((4, 2))
    data = (np.zeros((5, 4)), np.zeros(5, int))
    with pytest.raises(InputError, match="entries must be indices below 10"):
        entry_gradients(network, network.init(0), data, [10])
    assert count_modes([1.0]) == 1
