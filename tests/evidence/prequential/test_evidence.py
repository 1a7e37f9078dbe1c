"""The evidence by betting, against closed forms and what must hold of any bet."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.stats
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.naive_bayes import GaussianNB

import noisescale as ns
from noisescale.errors import InputError
from noisescale.evidence.prequential.blocks import fit_seed, order_of

RNG = np.random.default_rng(0)


def linear_posterior(precision, noise_precision):
    """A fit that is the exact posterior predictive of conjugate linear regression."""

    def fit(x, y, *, seed):
        A = noise_precision * x.T @ x + precision * np.eye(x.shape[1])
        mean = noise_precision * np.linalg.solve(A, x.T @ y)

        def predict(x):
            variance = 1 / noise_precision + np.einsum("ni,ni->n", x, np.linalg.solve(A, x.T).T)
            return x @ mean, np.sqrt(variance)

        return predict

    return fit


def test_conjugate_regression_one_by_one_is_the_closed_form():
    N, p, precision, noise_precision = 25, 4, 0.7, 3.0
    x, y = RNG.normal(size=(N, p)), RNG.normal(size=N)
    null = scipy.stats.norm(0, 2)
    found = ns.prequential_evidence(
        linear_posterior(precision, noise_precision),
        (x, y),
        blocks=[1] * N,
        orders=3,
        null=null,
        temperatures=(1.0,),
        null_expert=False,
    )
    covariance = x @ x.T / precision + np.eye(N) / noise_precision
    whole = scipy.stats.multivariate_normal(np.zeros(N), covariance).logpdf(y)
    for k, value in enumerate(found.log_evidences):
        first = order_of(0, k, N)[0]
        own = scipy.stats.norm(0, math.sqrt(covariance[first, first])).logpdf(y[first])
        assert value == pytest.approx(whole - own + null.logpdf(y[first]), abs=1e-9)


def nearest_mean(x, y, *, seed):
    """Deterministic, copes with one class alone, and far too certain."""
    means = [x[y == c].mean() if (y == c).any() else 0.0 for c in (0, 1)]

    def predict(x):
        logits = np.stack([-5 * np.abs(x[:, 0] - mean) for mean in means], axis=1)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    return predict


@pytest.mark.parametrize(
    ("null", "blocks", "orders"), [("uniform", [2, 3, 5], 1), ("frequencies", [1, 2, 3], 2)]
)
def test_all_labellings_together_have_probability_one(null, blocks, orders):
    n = sum(blocks)  # 10: 1,024 labellings
    x = RNG.normal(size=(n, 1))
    total = math.fsum(
        math.exp(
            ns.prequential_evidence(
                nearest_mean,
                (x, np.array(labels)),
                blocks=blocks,
                orders=orders,
                null=null,
                n_classes=2,
            ).log_evidence
        )
        for labels in itertools.product((0, 1), repeat=n)
    )
    assert total == pytest.approx(1, abs=1e-10)


def test_random_labels_are_rarely_believed():
    """P(E < -t) <= e^-t for labels drawn at random: counts within four standard deviations."""
    n = 200
    x = RNG.normal(size=(64, 3))
    E = np.array(
        [
            ns.prequential_evidence(
                GaussianNB(),
                (x, labels),
                blocks=[16, 16, 32],
                orders=1,
                n_classes=2,
                temperatures=(1.0, 4.0),
            ).E
            for labels in np.random.default_rng(1).integers(0, 2, size=(n, 64))
        ]
    )
    for t in (0.0, 0.5, 1.0, 2.0, 3.0):
        bound = math.exp(-t)
        assert (-t > E).sum() <= n * bound + 4 * math.sqrt(n * bound * (1 - bound))
    assert E.max() <= math.log(3) + 1e-9  # the mixture costs at most the number of experts


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(2)
    y = rng.integers(0, 3, size=120)
    return rng.normal(size=(120, 2)) + 2.5 * np.stack([y == 1, y == 2], axis=1), y


def test_the_parts_add_up(blobs, tmp_path):
    found = ns.prequential_evidence(LogisticRegression(), blobs, orders=3)
    table = found.table
    by_order = (table["loss"] * table["n_paid"]).groupby(table["order"]).sum()
    np.testing.assert_allclose(-by_order, found.log_evidences)
    assert found.log_evidence == pytest.approx(math.log(np.exp(found.log_evidences).mean()))
    assert found.log_null == pytest.approx(-120 * math.log(3))
    assert pytest.approx(found.log_null - found.log_evidence) == found.E
    assert found.E < -60
    assert found.E_of_orders.n == 3
    assert (table["null_loss"] * table["n_paid"])[table["order"] == 1].sum() == pytest.approx(
        -found.log_null
    )
    first = table[table["n_seen"] == 0]
    np.testing.assert_allclose(first["loss"], math.log(3))
    assert "odds of 10^" in found.verdict
    assert "accuracy" in repr(found)
    assert found.to_dict()["E"] == found.E
    curve = found.learning_curve
    assert curve["n_seen"].tolist() == [7, 15, 30, 60]
    assert found.plot().get_xlabel() == "examples seen"
    found.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1_000


def test_the_mixture_tames_what_is_too_certain(blobs):
    """One temperature alone loses hundreds of nats on random labels; the mixture ln M."""
    x, y = blobs
    random = np.random.default_rng(3).permutation(y)
    certain = LogisticRegression(C=1e4, max_iter=1_000)
    alone = ns.prequential_evidence(
        certain, (x, random), orders=1, temperatures=(1.0,), null_expert=False
    )
    mixed = ns.prequential_evidence(certain, (x, random), orders=1)
    assert alone.E > 10
    assert 0 < mixed.E <= math.log(10)
    assert "stays near ln 10" in repr(mixed)
    assert "one order alone" in repr(mixed)


def test_the_error_of_one_order_is_not_known(blobs):
    x, y = blobs
    once = {
        name: ns.prequential_evidence(fit, (x, y), orders=1)
        for name, fit in {"bayes": GaussianNB(), "logistic": LogisticRegression()}.items()
    }
    found = ns.compare(once)
    other = 1 - found.names.index(found.best)
    assert math.isnan(found.log_odds_stds[other])
    assert found.warnings[other] == "one order"
    assert found.to_dict()["log_odds_stds"][other] is None


def test_procedures_are_paired_by_order(blobs):
    good = ns.prequential_evidence(GaussianNB(), blobs)
    bad = ns.prequential_evidence(GaussianNB(var_smoothing=10.0), blobs)
    difference = good.minus(bad)
    np.testing.assert_allclose(
        difference.value, (good.log_evidences - bad.log_evidences).mean(), rtol=1e-12
    )
    assert difference.low > 0
    with pytest.raises(InputError, match="paired by order only with the same data, seed"):
        good.minus(ns.prequential_evidence(GaussianNB(), blobs, seed=1))


def test_the_null_of_base_rates_is_sequential():
    """Against one Bernoulli prediction after another, (n_c + 1)/(n + 2)."""
    y = np.array([0, 1, 1, 1, 0, 1, 1, 1])
    x = np.zeros((8, 1))
    found = ns.prequential_evidence(
        nearest_mean, (x, y), blocks=[1, 3, 4], orders=1, null="frequencies"
    )
    ordered = y[order_of(0, 0, 8)]
    steps = [math.log(((ordered[:k] == c).sum() + 1) / (k + 2)) for k, c in enumerate(ordered)]
    np.testing.assert_allclose(
        -found.null_losses[0], [steps[0], sum(steps[1:4]), sum(steps[4:])], rtol=1e-12
    )
    assert found.log_null == pytest.approx(sum(steps))


def test_the_gaussian_null_predicts_by_student():
    """Each further number has Student's t density around the mean of those before."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(12, 2)), rng.normal(5, 3, size=12)
    found = ns.prequential_evidence(BayesianRidge(), (x, y), blocks=[3] + [1] * 9, orders=1)
    ordered = y[order_of(0, 0, 12)]
    expected = []
    for k in range(3, 12):
        past = ordered[:k]
        scale = past.std(ddof=1) * math.sqrt(1 + 1 / k)
        expected.append(-scipy.stats.t(k - 1, past.mean(), scale).logpdf(ordered[k]))
    assert found.null == "gaussian"
    np.testing.assert_allclose(found.null_losses[0, 1:], expected, rtol=1e-10)


def test_an_ensemble_is_averaged_before_it_pays():
    x, y = np.zeros((8, 1)), np.array([0, 1] * 4)

    def fit(x, y, *, seed):
        return lambda x: np.tile([0.9, 0.1] if seed % 2 else [0.3, 0.7], (len(x), 1))

    found = ns.prequential_evidence(
        fit, (x, y), blocks=[4, 4], orders=1, ensemble=3, temperatures=(1.0,), floor=0.0
    )
    p = np.mean([[0.9, 0.1] if fit_seed(0, 0, 4, k) % 2 else [0.3, 0.7] for k in range(3)], axis=0)
    expected = -np.log(p[y[order_of(0, 0, 8)[4:]]]).sum()
    assert found.losses[0, 0, 0] == pytest.approx(expected, rel=1e-12)


def test_an_exact_zero_costs_everything_only_without_a_floor():
    x, y = np.zeros((8, 1)), np.array([0, 1] * 4)

    def fit(x, y, *, seed):
        return lambda x: np.tile([1.0, 0.0], (len(x), 1))

    certain = ns.prequential_evidence(fit, (x, y), orders=1, floor=0.0)
    assert np.isinf(certain.losses[0, 0, :-1]).all()
    assert pytest.approx(math.log(10)) == certain.E  # what is left is the null expert
    assert np.isfinite(ns.prequential_evidence(fit, (x, y), orders=1).losses).all()


def test_text_labels_and_classes_that_a_prefix_lacks():
    x = np.arange(12.0).reshape(-1, 1)
    y = np.array(["cat", "dog", "eel"] * 4)
    found = ns.prequential_evidence(GaussianNB(var_smoothing=1.0), (x, y), blocks=[3, 9], orders=2)
    assert found.n_classes == 3
    assert np.isfinite(found.E)


def test_a_jax_network_and_its_divergence(blobs):
    x, y = blobs
    network = ns.DenseNetwork((2, 8, 3))
    recipe = {"batch_size": 40, "steps": 200, "momentum": 0.9}
    fit = ns.fit_function(network, network.init, learning_rate=0.05, **recipe)
    options = {"orders": 1, "blocks": [30, 90]}
    assert ns.prequential_evidence(fit, (x, y), **options).E < -50
    wild = ns.fit_function(network, network.init, learning_rate=1e30, **recipe)
    found = ns.prequential_evidence(wild, (x, y), **options)
    np.testing.assert_allclose(found.losses, 90 * math.log(3))


@pytest.mark.parametrize(
    ("fit", "options", "sentence"),
    [
        (None, {}, "fit must be a scikit-learn estimator or a function"),
        (GaussianNB, {}, "got the class GaussianNB"),
        (lambda x, y: None, {}, r"fit must take \(x, y, \*, seed\)"),
        (lambda x, y, *, seed: 3, {}, "must return a function that predicts"),
        (lambda x, y, *, seed: 1 / 0, {}, "fit on the first 7 examples .* ZeroDivisionError"),
        (lambda x, y, *, seed: lambda x: np.full((len(x), 3), np.nan), {}, "hold nan"),
        (
            lambda x, y, *, seed: lambda x: np.ones((len(x), 3)),
            {},
            r"row 0 is \(1, 1, 1\) and sums to 3: return predict_proba",
        ),
        (lambda x, y, *, seed: lambda x: np.ones((len(x), 2)) / 2, {}, r"shape \(8, 3\)"),
        (lambda x, y, *, seed: lambda x: ["x"] * len(x), {}, "must be an array of numbers"),
        (GaussianNB(), {"blocks": [60, 50]}, "must add up to the number of examples, 120"),
        (GaussianNB(), {"blocks": [120]}, "two or more"),
        (GaussianNB(), {"blocks": "many"}, "must be the sizes of the blocks"),
        (GaussianNB(), {"null": "gaussian"}, "null must be one of uniform, frequencies"),
        (GaussianNB(), {"orders": 0}, "orders must be at least 1"),
        (GaussianNB(), {"floor": 1}, r"floor must be a finite number in \[0, 1\)"),
        (GaussianNB(), {"temperatures": (0,)}, "a temperature must be a finite number above 0"),
        (GaussianNB(), {"temperatures": (), "null_expert": False}, "there is no bet"),
        (GaussianNB(), {"n_classes": 2}, "labels must be whole numbers in 0..1"),
    ],
)
def test_bad_input_gets_one_sentence(blobs, fit, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        ns.prequential_evidence(fit, blobs, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (([[1.0]], [0]), "two examples or more"),
        (([[1.0], [2.0]], [0]), "2 examples in x but 1 targets"),
        (([[1.0], [2.0]], [1, 1]), "holds one class alone"),
        (3, r"must be a pair \(x, y\)"),
        (([[1.0], [2.0]], [[0], [1]]), "one-dimensional"),
    ],
)
def test_bad_data(data, sentence):
    with pytest.raises(InputError, match=sentence):
        ns.prequential_evidence(GaussianNB(), data)


def test_labels_that_are_floating_point_numbers(blobs):
    with pytest.raises(InputError, match=r"got dtype float64: y.astype\(int\) makes whole"):
        ns.prequential_evidence(GaussianNB(), (blobs[0], blobs[1].astype(float)))


def test_one_class_in_the_first_block_says_so():
    x, y = np.arange(10.0).reshape(-1, 1), np.array([0] * 9 + [1])
    with pytest.raises(InputError, match="the first 2 examples are all of class 0") as caught:
        ns.prequential_evidence(LogisticRegression(), (x, y), blocks=[2, 8])
    assert "make the first block larger" in str(caught.value)


def test_estimators_that_cannot_bet():
    from sklearn.cluster import KMeans
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    data = np.arange(8.0).reshape(-1, 1), np.arange(8.0)
    for fit, sentence in (
        (LinearSVC(), "no predict_proba"),
        (Ridge(), "predicts no standard deviation"),
        (KMeans(), "neither"),
        (BayesianRidge(), "null must be 'gaussian' for a regressor"),
    ):
        with pytest.raises(InputError, match=sentence):
            ns.prequential_evidence(fit, data, null="frequencies")


def test_compare_pairs_by_order_and_refuses_other_kinds(blobs):
    good = ns.prequential_evidence(GaussianNB(), blobs)
    worse = ns.prequential_evidence(GaussianNB(var_smoothing=10.0), blobs)
    found = ns.compare({"good": good, "worse": worse})
    assert found.best == "good"
    assert found.log_odds_stds[0] == 0
    assert found.log_odds_stds[1] == pytest.approx(worse.minus(good).std)
    alike = ns.prequential_evidence(GaussianNB(var_smoothing=1e-3), blobs)
    (note,) = ns.compare({"good": good, "alike": alike}).notes
    assert note.endswith("probabilities are not resolved, bet on more orders.")
    model = ns.softmax_regression(2, 3)
    laplace = ns.log_evidence(model, model.init(0), blobs, prior_precision=1.0, at="map")
    with pytest.raises(InputError, match="evidences of different kinds are not compared"):
        ns.compare({"bets": good, "laplace": laplace})


def test_data_frames_and_sparse_matrices_are_taken_as_they_are(blobs):
    x, y = blobs
    options = {"orders": 1, "blocks": [40, 80]}
    dense = ns.prequential_evidence(LogisticRegression(), (x, y), **options)
    for same in (pd.DataFrame(x, columns=["a", "b"]), scipy.sparse.csr_matrix(x)):
        found = ns.prequential_evidence(LogisticRegression(), (same, pd.Series(y)), **options)
        np.testing.assert_allclose(found.losses, dense.losses, rtol=1e-6)


def test_a_ready_fit_is_a_classifier():
    network = ns.DenseNetwork((2, 3, 1))
    with pytest.raises(InputError, match="likelihood must be one of categorical, bernoulli, got"):
        ns.fit_function(
            network, network.init, batch_size=5, learning_rate=0.1, steps=9, likelihood="gaussian"
        )
