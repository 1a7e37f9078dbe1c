"""Null models against enumeration."""

from itertools import product
from math import exp, log

import numpy as np
import pytest
from scipy.integrate import quad

import noisescale as ns
from noisescale.evidence.null import log_null_frequencies, log_null_uniform
from oracles.models import affine


def test_frequencies_against_the_integral():
    for n, m in ((3, 5), (0, 4), (1, 1)):
        integral, _ = quad(lambda p, n=n, m=m: p**n * (1 - p) ** m, 0, 1)
        assert log_null_frequencies([n, m]) == pytest.approx(log(integral), rel=1e-9)


def test_frequencies_are_a_distribution_over_labellings():
    total = sum(
        exp(log_null_frequencies(np.bincount(labels, minlength=3)))
        for labels in product(range(3), repeat=6)
    )
    assert total == pytest.approx(1, rel=1e-12)


def test_frequencies_step_by_step():
    """Laplace's rule of succession: (n_k + 1)/(n + K) for the next label."""
    labels = np.random.default_rng(0).integers(4, size=50)
    counts, total = np.zeros(4), 0.0
    for label in labels:
        total += log((counts[label] + 1) / (counts.sum() + 4))
        counts[label] += 1
    assert log_null_frequencies(counts) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("counts", [[3], [], [-1, 2], [np.nan, 2], "ab", [[1, 2]], [0.5, 1.5]])
def test_bad_counts(counts):
    with pytest.raises(ns.InputError, match="class counts must be two or more finite numbers"):
        log_null_frequencies(counts)


class TestInResults:
    def imbalanced(self):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(80, 4)), (np.arange(80) < 8).astype(int)
        return {"w": np.zeros((4, 2)), "b": np.zeros(2)}, (x, y)

    def test_beating_uniform_guessing_means_little_on_imbalanced_data(self):
        params, data = self.imbalanced()
        uniform, fair = (
            ns.log_evidence(affine, params, data, prior_precision=1.0, at="map", null=null)
            for null in ("uniform", "frequencies")
        )
        gain = log_null_frequencies([72, 8]) - log_null_uniform(80, 2)
        assert gain > 20
        assert uniform.log_bayes_factor - fair.log_bayes_factor == pytest.approx(gain)
        assert uniform.log_evidence == fair.log_evidence
        assert uniform.log_bayes_factor > 10 > 0 > fair.log_bayes_factor
        assert any("imbalanced" in note for note in uniform.notes)
        assert not any("imbalanced" in note for note in fair.notes)
        assert uniform.odds.endswith("for the model against random guessing")
        assert fair.odds.endswith("for the class frequencies against the model")

    def test_everywhere(self):
        params, data = self.imbalanced()
        log_null = log_null_frequencies([72, 8])
        curve = ns.evidence_curve(
            affine, params, data, prior_precisions=[0.1, 1.0, 10.0], null="frequencies"
        )
        np.testing.assert_allclose(curve.E, log_null - curve.log_evidence)
        operator = ns.log_evidence_from_operator(
            np.eye(3), nll=1.0, penalty=0.0, prior_precision=1.0, n_train=80, class_counts=[72, 8]
        )
        assert operator.log_null == log_null
        assert operator.null_model == "the class frequencies"
        with pytest.raises(ns.InputError, match="null must be one of uniform, frequencies, got"):
            ns.log_evidence(affine, params, data, prior_precision=1.0, null="best")

    def test_bets_and_samples_say_so_too(self):
        from sklearn.dummy import DummyClassifier

        params, (x, y) = self.imbalanced()
        bets = {
            null: ns.prequential_evidence(DummyClassifier(strategy="prior"), (x, y), null=null)
            for null in ("uniform", "frequencies")
        }
        assert bets["uniform"].E < -10  # against a null that nothing is needed to beat
        assert any("imbalanced" in note for note in bets["uniform"].notes)
        assert not any("imbalanced" in note for note in bets["frequencies"].notes)
        for null, told in (("uniform", True), ("frequencies", False)):
            sampled = ns.annealed_evidence(
                affine,
                params,
                (x, y),
                prior_precision=1.0,
                n_chains=4,
                n_temperatures=20,
                n_leapfrog=2,
                null=null,
            )
            assert any("imbalanced" in note for note in sampled.notes) is told


@pytest.mark.parametrize("counts", [[10, 10], [0, 0], [60, 41]])
def test_counts_are_those_of_the_examples(counts):
    with pytest.raises(ns.InputError, match=rf"add up to {sum(counts)}, but n_train is 100"):
        ns.log_evidence_from_operator(
            np.eye(3),
            nll=30.0,
            penalty=1.0,
            prior_precision=1.0,
            gradient=np.zeros(3),
            n_train=100,
            class_counts=counts,
        )
