import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import noisescale as ns
from noisescale.likelihood import LIKELIHOODS
from noisescale.training import evaluation


@given(steps=st.integers(0, 10**7), n=st.integers(1, 60))
def test_log_schedule(steps, n):
    schedule = evaluation.evaluation_steps("log", steps=steps, n_evaluations=n)
    assert schedule == sorted(set(schedule))
    assert schedule[0] == 0
    assert schedule[-1] == steps
    assert len(schedule) <= n + 1


def test_log_schedule_is_log_spaced():
    schedule = evaluation.evaluation_steps("log", steps=10_000, n_evaluations=30)
    ratios = np.diff(np.log([s for s in schedule if s > 30]))
    assert ratios.max() < 1.25 * ratios.min()


def test_other_schedules():
    assert evaluation.evaluation_steps("final", steps=7, n_evaluations=1) == [7]
    assert evaluation.evaluation_steps([3, 1, 3], steps=7, n_evaluations=1) == [1, 3, 7]


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_scores_are_sums_over_blocks(monkeypatch, likelihood):
    monkeypatch.setattr(evaluation, "_ROWS", 7)
    rng = np.random.default_rng(0)
    width = 4 if likelihood == "categorical" else 1
    x, w = rng.normal(size=(30, 5)), rng.normal(size=(5, width))
    y = rng.integers(4 if width == 4 else 2, size=30)
    logits = x @ w
    if width == 4:
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = (logits.argmax(axis=1) == y).mean(), -np.log(p[np.arange(30), y]).mean()
    else:
        p = 1 / (1 + np.exp(-logits[:, 0]))
        expected = ((p > 0.5) == y).mean(), -np.log(np.where(y == 1, p, 1 - p)).mean()
    got = evaluation.accuracy_and_cross_entropy(
        lambda w, x: x @ w,
        LIKELIHOODS[likelihood],
        jnp.asarray(w, jnp.float32),
        jnp.asarray(x, jnp.float32),
        jnp.asarray(y),
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_extreme_logits_stay_finite(likelihood):
    logits = jnp.array([[1e4, -1e4], [1e4, -1e4]])
    logits = logits if likelihood == "categorical" else logits[:, :1]
    nll = LIKELIHOODS[likelihood].nll(logits, jnp.array([0, 1]))
    assert np.isfinite(nll).all()
    assert sorted(nll.tolist())[1] >= 1e4


def test_outputs_without_classes_are_refused():
    with pytest.raises(ns.InputError, match="needs a logit for each of two or more classes"):
        ns.train(
            lambda w, x: x @ w,
            np.zeros((2, 1)),
            (np.ones((3, 2)), np.zeros(3, int)),
            learning_rate=0.1,
            batch_size=1,
            steps=1,
        )
