import jax
import numpy as np
import pytest

import noisescale as ns
from noisescale.training import INITIALISATIONS
from noisescale.training.features import decay_factor, live_features, without_dead_features
from noisescale.training.settings import Rates


def test_the_papers_network_has_the_papers_size():
    params = ns.paper_network().init(0)
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 636_010


def test_the_forward_pass_is_relu_between_affine_maps():
    model = ns.DenseNetwork((4, 5, 3, 2))
    params = model.init(1)
    x = np.random.default_rng(0).normal(size=(6, 4))
    expected = x
    for k, layer in enumerate(params):
        expected = expected @ np.asarray(layer["w"], float) + np.asarray(layer["b"], float)
        expected = np.maximum(expected, 0) if k < 2 else expected
    np.testing.assert_allclose(model(params, x.astype(np.float32)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("glorot_uniform", 2 / (300 + 200)),
        ("glorot_normal", 2 / (300 + 200)),
        ("he_uniform", 2 / 300),
        ("he_normal", 2 / 300),
        ("lecun_uniform", 1 / 300),
        ("lecun_normal", 1 / 300),
        ("zeros", 0.0),
    ],
)
def test_initialisations_have_their_variance(name, variance):
    (layer,) = ns.DenseNetwork((300, 200)).init(0, name)
    w = np.asarray(layer["w"], float)
    # 60,000 draws: the sample variance is within 3 % with certainty for all practical purposes.
    assert w.var() == pytest.approx(variance, rel=0.03, abs=1e-12)
    assert abs(w.mean()) <= 5 * np.sqrt(variance / w.size)
    assert (layer["b"] == 0).all()


def test_every_initialisation_is_covered_above():
    assert len(INITIALISATIONS) == 7


def test_seeds_decide_the_initialisation():
    model = ns.softmax_regression(5, 3)
    a, b, c = (np.asarray(model.init(seed)[0]["w"]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()


def test_linear_models_have_one_layer():
    assert ns.logistic_regression(7).init(0)[0]["w"].shape == (7, 1)
    assert ns.softmax_regression(7, 4).init(0)[0]["w"].shape == (7, 4)


def test_equal_models_are_equal_so_that_programs_are_shared():
    assert ns.DenseNetwork((3, 2)) == ns.softmax_regression(3, 2)
    assert hash(ns.DenseNetwork((3, 2))) == hash(ns.softmax_regression(3, 2))


def test_widths_may_be_a_list():
    assert ns.DenseNetwork([3, 2]) == ns.DenseNetwork((3, 2))


def test_bad_models_get_one_sentence():
    with pytest.raises(ns.InputError, match="widths must be two or more positive numbers"):
        ns.DenseNetwork((5,))
    with pytest.raises(ns.InputError, match="a layer's width must be at least 1, got 0"):
        ns.DenseNetwork((5, 0))
    with pytest.raises(ns.InputError, match="initialisation must be one of .* got 'magic'"):
        ns.paper_network().init(0, "magic")


def test_live_features_are_the_used_ones_and_a_few_more():
    x = np.zeros((10, 100), np.float32)
    used = [3, 50, 97, *range(60, 80)]
    x[2, used] = 1
    live = live_features(x)
    assert set(used) <= set(live.tolist())
    assert len(live) == 32  # 23 rounded up to a multiple of 16
    assert (np.diff(live) > 0).all()
    assert len(live_features(np.zeros((3, 5)))) == 5
    assert len(live_features(np.ones((3, 5)))) == 5


def test_decay_factor_is_the_recurrence():
    rates = Rates(learning_rate=0.3, momentum=0.9, decay=0.07)
    w, a = 1.0, 0.0
    for step in range(60):
        assert decay_factor(step, rates) == pytest.approx(w, rel=2**-23)
        a = rates.momentum * a + rates.decay * w
        w -= rates.learning_rate * a


def test_dead_features_come_back():
    model = ns.DenseNetwork((40, 3))
    params = model.init(0)
    x = np.zeros((5, 40), np.float32)
    x[:, 20:30] = 1
    small, part, restore = without_dead_features(model, x, params)
    assert small.shape == (5, 16)
    assert part[0]["w"].shape == (16, 3)
    # Ten terms below 1, each product and each sum rounded to 2^-24.
    np.testing.assert_allclose(small @ part[0]["w"], x @ params[0]["w"], rtol=0, atol=20 * 2**-24)
    whole = restore(part, 0.5)
    live = live_features(x)
    dead = np.setdiff1d(np.arange(40), live)
    np.testing.assert_array_equal(whole[0]["w"][live], params[0]["w"][live])
    np.testing.assert_array_equal(whole[0]["w"][dead], 0.5 * params[0]["w"][dead])
