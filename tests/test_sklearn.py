import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from noisescale.errors import InputError
from noisescale.evidence.null import log_null_frequencies
from noisescale.sklearn import EdgeWarning, EvidenceLogisticRegression, EvidenceRidge


@parametrize_with_checks(
    [
        EvidenceLogisticRegression(),
        EvidenceLogisticRegression(prior_precision=0.1, predictive="probit"),
        EvidenceRidge(),
    ]
)
# Some of the checks train on labels that have nothing to do with the features.
@pytest.mark.filterwarnings("ignore::noisescale.sklearn.EdgeWarning")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x), y


def test_attributes(cancer):
    x, y = cancer
    model = EvidenceLogisticRegression().fit(x, y)
    assert model.coef_.shape == (1, 30)
    assert model.intercept_.shape == (1,)
    assert model.log_bayes_factor_ == -model.E_ > 0
    assert model.log_evidence_ == pytest.approx(model.path_["log_evidence"].max())
    assert 0.01 < model.prior_precision_ < 100
    assert 0.05 < model.prior_precision_log10_std_ < 1
    fixed = EvidenceLogisticRegression(prior_precision=model.prior_precision_).fit(x, y)
    np.testing.assert_allclose(fixed.coef_, model.coef_, atol=1e-6)
    assert len(fixed.path_["E"]) == 1


@pytest.mark.parametrize("predictive", ["map", "probit", "monte_carlo"])
def test_three_classes_in_a_pipeline_with_strings_and_pandas(predictive):
    wine = load_wine(as_frame=True)
    names = wine.target.map({0: "barolo", 1: "grignolino", 2: "barbera"})
    model = make_pipeline(StandardScaler(), EvidenceLogisticRegression(predictive=predictive))
    model.set_output(transform="pandas")
    model.fit(wine.data, names)
    assert isinstance(wine.data, pd.DataFrame)
    assert model.score(wine.data, names) > 0.97
    probabilities = model.predict_proba(wine.data)
    assert probabilities.shape == (178, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert model[-1].classes_.tolist() == ["barbera", "barolo", "grignolino"]
    assert model[-1].coef_.shape == (3, 13)
    assert model[-1].feature_names_in_[0] == "alcohol"


def test_clone_and_grid_search(cancer):
    x, y = cancer
    search = GridSearchCV(EvidenceLogisticRegression(), {"prior_precision": [0.1, 1.0, "auto"]})
    search.fit(x[:200], y[:200])
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()
    assert cross_val_score(EvidenceLogisticRegression(), x[:200], y[:200]).mean() > 0.9


def test_an_intercept_may_have_its_own_prior(cancer):
    x, y = cancer
    loose = EvidenceLogisticRegression(prior_precision=1.0, intercept_precision=1e-6).fit(x + 3, y)
    tight = EvidenceLogisticRegression(prior_precision=1.0, intercept_precision=1e6).fit(x + 3, y)
    none = EvidenceLogisticRegression(prior_precision=1.0, fit_intercept=False).fit(x + 3, y)
    assert abs(loose.intercept_[0]) > 1
    assert abs(tight.intercept_[0]) < 1e-3
    assert none.intercept_[0] == 0
    np.testing.assert_allclose(tight.coef_, none.coef_, atol=1e-3)


def test_weights_are_repeats(cancer):
    x, y = cancer
    weights = np.arange(len(y)) % 3
    a = EvidenceLogisticRegression().fit(x, y, sample_weight=weights)
    b = EvidenceLogisticRegression().fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
    assert a.log_evidence_ == pytest.approx(b.log_evidence_, rel=1e-8)
    assert a.prior_precision_ == pytest.approx(b.prior_precision_, rel=1e-3)


def test_noise_is_called_noise():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 20)), np.arange(60) % 2
    with pytest.warns(EdgeWarning, match="may say nothing about the labels"):
        model = EvidenceLogisticRegression().fit(x, y)
    assert abs(model.E_) < 0.1


def test_clear_refusals(cancer):
    x, y = cancer
    with pytest.raises(InputError, match="predictive must be one of"):
        EvidenceLogisticRegression(predictive="median").fit(x, y)
    with pytest.raises(InputError, match="prior_precision must be one of auto, got 'best'"):
        EvidenceLogisticRegression(prior_precision="best").fit(x, y)
    with pytest.raises(InputError, match="a flat prior has no evidence"):
        EvidenceLogisticRegression(prior_precision=0.0).fit(x, y)
    with pytest.raises(InputError, match=r"bounds must be a pair \(low, high\), got None"):
        EvidenceLogisticRegression(bounds=None).fit(x, y)
    with pytest.raises(InputError, match="random_state must be a whole number, got None"):
        EvidenceLogisticRegression(random_state=None).fit(x, y)
    with pytest.raises(InputError, match="one class only"):
        EvidenceLogisticRegression().fit(x, np.ones(len(y)))


def test_a_class_of_weight_zero_is_a_class_left_out():
    x, y = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    a = EvidenceLogisticRegression(prior_precision=1.0).fit(x, y, sample_weight=(y != 2) * 1.0)
    b = EvidenceLogisticRegression(prior_precision=1.0).fit(x[y != 2], y[y != 2])
    assert a.classes_.tolist() == [0, 1]
    assert pytest.approx(b.E_, rel=1e-10) == a.E_


@pytest.mark.parametrize("form", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
@pytest.mark.parametrize("wide", [False, True])
def test_sparse_input_gives_the_same(form, wide):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 90 if wide else 12)) * (rng.random((40, 90 if wide else 12)) < 0.3)
    x[:, 3] = 0
    y = np.argmax(x[:, :3] + 0.3 * rng.normal(size=(40, 3)), axis=1)
    dense = EvidenceLogisticRegression(prior_precision=0.5, predictive="probit").fit(x, y)
    sparse = EvidenceLogisticRegression(prior_precision=0.5, predictive="probit").fit(form(x), y)
    np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=1e-10)
    assert sparse.log_evidence_ == pytest.approx(dense.log_evidence_, rel=1e-12)
    np.testing.assert_allclose(sparse.predict_proba(form(x)), dense.predict_proba(x), atol=1e-10)


def test_a_null_model_that_knows_the_frequencies():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)), (np.arange(60) < 6).astype(int)
    uniform = EvidenceLogisticRegression(prior_precision=10.0).fit(x, y)
    fair = EvidenceLogisticRegression(prior_precision=10.0, null="frequencies").fit(x, y)
    assert uniform.log_evidence_ == fair.log_evidence_
    assert (
        pytest.approx(log_null_frequencies([54, 6]) + 60 * np.log(2), rel=1e-12)
        == fair.E_ - uniform.E_
    )
    with pytest.raises(InputError, match="null must be one of uniform, frequencies"):
        EvidenceLogisticRegression(null="none").fit(x, y)


class TestRidge:
    def test_the_null_model_has_the_noise_that_is_given(self):
        """Weights that the prior leaves no size make a model that is the null model."""
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(30, 2)), 3.0 * rng.normal(size=30)
        found = EvidenceRidge(noise_precision=4.0, weight_precision=1e12).fit(X, y)
        assert abs(found.log_bayes_factor_) < 1e-6

    def data(self, n=30, d=4, noise=0.5):
        rng = np.random.default_rng(1)
        x = rng.normal(size=(n, d)) + 2
        return x, x @ rng.normal(size=d) + 5 + noise * rng.normal(size=n)

    @pytest.mark.parametrize(("n", "d"), [(30, 4), (8, 20)])
    @pytest.mark.parametrize("intercept", [True, False])
    def test_the_evidence_is_a_density_that_scipy_knows(self, n, d, intercept):
        x, y = self.data(n, d)
        settings = {"noise_precision": 3.0, "weight_precision": 0.7, "intercept_precision": 0.2}
        model = EvidenceRidge(fit_intercept=intercept, **settings).fit(x, y)
        centred = x - x.mean(axis=0) if intercept else x
        K = np.eye(n) / 3.0 + centred @ centred.T / 0.7 + intercept * np.ones((n, n)) / 0.2
        exact = multivariate_normal(np.zeros(n), K).logpdf(y)
        assert model.log_evidence_ == pytest.approx(exact, rel=1e-9)
        assert model.scores_.tolist() == [model.log_evidence_]
        # Predictions: the Gaussian conditioned on the targets.
        new = np.random.default_rng(2).normal(size=(3, d))
        c = new - x.mean(axis=0) if intercept else new
        k = c @ centred.T / 0.7 + intercept / 0.2
        mean, std = model.predict(new, return_std=True)
        np.testing.assert_allclose(mean, k @ np.linalg.solve(K, y), rtol=1e-9)
        own = (c**2).sum(axis=1) / 0.7 + intercept / 0.2 + 1 / 3.0
        variance = own - np.einsum("ij,ji->i", k, np.linalg.solve(K, k.T))
        np.testing.assert_allclose(std, np.sqrt(variance), rtol=1e-9)

    def test_precisions_are_those_of_bayesian_ridge(self):
        x, y = self.data(200)
        ours = EvidenceRidge(intercept_precision=1e-9).fit(x, y)
        theirs = BayesianRidge(
            alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, tol=1e-12, max_iter=5000
        ).fit(x, y)
        # It counts N examples where an intercept has taken one of them.
        assert ours.alpha_ * 200 / 199 == pytest.approx(theirs.alpha_, rel=1e-3)
        assert ours.lambda_ == pytest.approx(theirs.lambda_, rel=1e-3)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-4)

    def test_the_maximum_is_one(self):
        x, y = self.data()
        model = EvidenceRidge().fit(x, y)
        assert model.scores_[-1] == model.log_evidence_ >= model.scores_.max() - 1e-9
        for factor in (0.97, 1.03):
            for name, value in (
                ("noise_precision", model.alpha_),
                ("weight_precision", model.lambda_),
            ):
                other = {"noise_precision": model.alpha_, "weight_precision": model.lambda_}
                fixed = EvidenceRidge(**other | {name: factor * value}).fit(x, y)
                assert fixed.log_evidence_ < model.log_evidence_
        one = EvidenceRidge(noise_precision=model.alpha_).fit(x, y)
        assert one.lambda_ == pytest.approx(model.lambda_, rel=1e-4)

    def test_weights_are_repeats(self):
        x, y = self.data()
        weights = np.arange(30) % 3
        a = EvidenceRidge().fit(x, y, sample_weight=weights)
        b = EvidenceRidge().fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
        assert a.log_evidence_ == pytest.approx(b.log_evidence_, rel=1e-9)
        np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-5)

    def test_features_that_say_nothing_are_worth_nothing(self):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(60, 3)), rng.normal(size=60)
        told = EvidenceRidge(weight_precision=1e-3).fit(x, y)
        assert told.E_ > 0
        x, y = self.data()
        assert EvidenceRidge().fit(x, y).log_bayes_factor_ > 10

    def test_clear_refusals(self):
        x, y = self.data()
        with pytest.raises(InputError, match="noise_precision must be one of auto, got 'best'"):
            EvidenceRidge(noise_precision="best").fit(x, y)
        with pytest.raises(InputError, match="weight_precision must be a finite number above 0"):
            EvidenceRidge(weight_precision=0.0).fit(x, y)
        with pytest.raises(InputError, match="the targets are all alike"):
            EvidenceRidge().fit(x, np.ones(30))
        with pytest.raises(InputError, match="intercept_precision must be a finite number above"):
            EvidenceRidge(intercept_precision=-1.0).fit(x, y)
