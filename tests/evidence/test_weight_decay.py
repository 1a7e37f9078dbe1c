"""Weight decay as a prior, and back: the formulas against optimisers written out by hand."""

import numpy as np
import pytest

import noisescale as ns


def test_round_trips():
    v = {"a": np.array([0.04, 0.25]), "b": 1e-6}
    for settings in (
        {"optimizer": "sgd"},
        {"optimizer": "adam"},
        {"optimizer": "adamw", "second_moment": 0.3, "eps": 1e-3},
    ):
        precision = ns.prior_precision_of(0.02, n_train=300, **settings)
        assert ns.weight_decay_of(precision, n_train=300, **settings) == pytest.approx(0.02)
    found = ns.prior_precision_of(0.02, n_train=300, optimizer="adamw", second_moment=v)
    np.testing.assert_allclose(found["a"], [1.2, 3.0], rtol=1e-6)
    assert found["b"] == pytest.approx(6e-3, rel=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_they_stand_still_at_the_minimum_of_the_cost(optimizer):
    """Where sum of (w - x_i)^2/2 + N d/2 w^2 is least: at mean(x)/(1 + d)."""
    x, d = np.array([1.0, 2.0, 6.0]), 0.1
    lam = ns.prior_precision_of(d, n_train=3, optimizer=optimizer)
    best = x.sum() / (3 + lam)
    w, m, v = 0.0, 0.0, 0.0
    for t in range(1, 20_001):
        g = np.mean(w - x) + d * w
        if optimizer == "sgd":
            w -= 0.01 * g
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            w -= 0.1 / t**0.5 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    assert w == pytest.approx(best, rel=1e-4)


def test_adamw_with_noise_settles_where_the_formula_says():
    """Many chains at once on mean nll (w - 1)^2/2 with gradient noise of variance s^2.

    v is then (w - 1)^2 + s^2 + the chain's own spread, nearly s^2; the tolerance is the z-bound of
    the chains' mean and a share (1/s)^2 by which v differs from it.
    """
    rng, chains, s, d, lr = np.random.default_rng(0), 4_000, 6.0, 0.05, 0.01
    w, m, v = np.zeros(chains), np.zeros(chains), np.zeros(chains)
    for t in range(1, 6_001):
        g = w - 1 + s * rng.standard_normal(chains)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        update = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w -= lr * (update + d * w)
    second = float(np.mean(v / (1 - 0.999**t)))
    lam = ns.prior_precision_of(d, n_train=1, optimizer="adamw", second_moment=second)
    assert lam == pytest.approx(d * s, rel=0.05)
    expected = 1 / (1 + lam)  # of the cost (w - 1)^2/2 + lam/2 w^2
    assert expected < 0.8  # plain SGD's 1/(1 + d) = .95 is far away
    assert abs(w.mean() - expected) < 4 * w.std() / np.sqrt(chains) + expected / s**2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, adamw"),
        ({"optimizer": "adamw"}, "depends on second_moment"),
        ({"second_moment": 1.0}, "second_moment is AdamW's alone"),
        ({"optimizer": "adamw", "second_moment": [-1.0]}, "finite numbers at least 0"),
        ({"n_train": 0}, "n_train must be at least 1"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ns.InputError, match=message):
        ns.prior_precision_of(0.1, **{"n_train": 10} | settings)
    with pytest.raises(ns.InputError, match=message):
        ns.weight_decay_of(0.1, **{"n_train": 10} | settings)
