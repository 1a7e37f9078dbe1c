import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from noisescale.errors import InputError
from noisescale.sklearn import EdgeWarning, EvidenceLogisticRegression


@parametrize_with_checks(
    [
        EvidenceLogisticRegression(),
        EvidenceLogisticRegression(prior_precision=0.1, predictive="probit"),
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
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        EvidenceLogisticRegression().fit(scipy.sparse.csr_matrix(x), y)
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
