"""For scikit-learn: a classifier and a regressor that choose their regularisation by the evidence,
and a function to tune for its networks."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from noisescale.arrays import check_scale
from noisescale.checks import check_choice, check_flag, check_whole
from noisescale.evidence.averaging import PREDICTIVES, average_probabilities
from noisescale.evidence.linear.regression import (
    DEFAULT_BOUNDS,
    LinearFit,
    check_counts,
    check_precision,
    fit_map,
    linear_problem,
    logit_covariance,
)
from noisescale.evidence.linear.ridge import RidgeFit, fit_ridge, ridge_problem
from noisescale.evidence.linear.search import evidence_peak
from noisescale.tune.sklearn_function import train_function

__all__ = ["EdgeWarning", "EvidenceLogisticRegression", "EvidenceRidge", "train_function"]

Array = NDArray[np.float64]
_DECADES = (
    0.001  # how closely the prior precision is searched for: a hundredth of its own uncertainty
)


class EdgeWarning(UserWarning):
    """The evidence is still rising where the search for the prior precision ended."""


class EvidenceLogisticRegression(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic (two classes) or softmax regression with a Gaussian prior on every parameter.

    Args:
        prior_precision: lambda > 0, or ``"auto"`` to maximise the evidence of the training data,
            refitting at each value tried.
        intercept_precision: the prior precision of the intercept; None for the same as
            ``prior_precision``. An unpenalised intercept would have no evidence.
        fit_intercept: whether there is an intercept.
        predictive: ``"map"`` predicts with the most probable weights; ``"probit"`` and
            ``"monte_carlo"`` average over the posterior (equations 2 and 3 of the paper).
        null: what the evidence is compared with: ``"uniform"`` guesses every class alike,
            ``"frequencies"`` as often as they occur.
        bounds: where ``"auto"`` searches.
        n_samples: draws for ``"monte_carlo"``.
        random_state: an int, decides those draws.

    Attributes:
        coef_, intercept_, classes_, n_features_in_: as in scikit-learn.
        prior_precision_: the precision used.
        prior_precision_log10_std_: its posterior standard deviation in decades; None if given or
            at an edge of ``bounds``.
        log_evidence_: ln P(y | X), Laplace.
        log_bayes_factor_: the same minus the null model's: above 0 the classifier is worth more
            than guessing.
        E_: minus that, the paper's log evidence ratio.
        path_: arrays over every precision tried: ``prior_precision``, ``log_evidence``, ``E``,
            ``nll``, ``penalty``, ``log_occam_factor``, ascending.

    ``sample_weight`` in ``fit`` counts how often an example was seen: weight 2 is the same as the
    row twice, weight 0 the same as leaving it out. There is no other meaning under which evidences
    stay comparable. Sparse ``X`` is welcome; the features that some example uses must fit into
    memory as a dense array.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = EvidenceLogisticRegression(prior_precision=1.0).fit(X / X.max(axis=0), y)
    >>> model.log_bayes_factor_ > 0
    True
    """

    def __init__(
        self,
        *,
        prior_precision: float | str = "auto",
        intercept_precision: float | None = None,
        fit_intercept: bool = True,
        predictive: str = "map",
        null: str = "uniform",
        bounds: tuple[float, float] = DEFAULT_BOUNDS,
        n_samples: int = 1000,
        random_state: int = 0,
    ) -> None:
        self.prior_precision = prior_precision
        self.intercept_precision = intercept_precision
        self.fit_intercept = fit_intercept
        self.predictive = predictive
        self.null = null
        self.bounds = bounds
        self.n_samples = n_samples
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Find the MAP, and with ``prior_precision="auto"`` the precision of largest evidence."""
        check_choice("predictive", self.predictive, PREDICTIVES)
        check_whole("n_samples", self.n_samples, at_least=1)
        check_whole("random_state", self.random_state, at_least=0)
        fit_intercept = check_flag("fit_intercept", self.fit_intercept)
        X, y = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr")
        check_classification_targets(y)
        if sample_weight is not None:  # weight 0 leaves a row out, and with it perhaps a class
            counts = check_counts(sample_weight, n=np.shape(y)[0])
            X, y, sample_weight = X[counts > 0], y[counts > 0], counts[counts > 0]
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._problem = linear_problem(
            X,
            labels,
            n_classes=len(self.classes_),
            fit_intercept=fit_intercept,
            counts=sample_weight,
            null=self.null,
        )
        self.prior_precision_log10_std_: float | None = None
        if isinstance(self.prior_precision, str):
            check_choice("prior_precision", self.prior_precision, ["auto"])
            found = evidence_peak(
                self._problem,
                bounds=self.bounds,
                intercept_precision=self.intercept_precision,
                tolerance=_DECADES,
            )
            self._fit, path = found.fit, found.path
            self.prior_precision_log10_std_ = found.log10_std
            if found.edge is not None:
                warnings.warn(
                    f"the evidence is still rising at the {found.edge} prior precision searched, "
                    f"{found.fit.prior_precision:g}: "
                    + (
                        "the features may say nothing about the labels."
                        if found.edge == "highest"
                        else "widen bounds."
                    ),
                    EdgeWarning,
                    stacklevel=2,
                )
        else:
            self._fit = fit_map(
                self._problem,
                prior_precision=self.prior_precision,
                intercept_precision=self.intercept_precision,
            )
            path = (self._fit,)
        self._publish(path)
        return self

    def _publish(self, path: tuple[LinearFit, ...]) -> None:
        fit = self._fit
        self.coef_ = np.atleast_2d(fit.coef)
        self.intercept_ = np.atleast_1d(fit.intercept)
        self.prior_precision_ = fit.prior_precision
        self.log_evidence_ = fit.log_evidence
        self.log_bayes_factor_ = fit.log_bayes_factor
        self.E_ = fit.E
        names = ("prior_precision", "log_evidence", "E", "nll", "penalty", "log_occam_factor")
        self.path_ = {name: np.array([getattr(f, name) for f in path]) for name in names}

    def _inputs(self, X: ArrayLike) -> Any:
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, accept_sparse="csr", reset=False)
        check_scale(inputs.data if hasattr(inputs, "tocsr") else inputs, "X")
        return inputs

    def __sklearn_tags__(self) -> Any:
        """Sparse input is accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def decision_function(self, X: ArrayLike) -> Array:
        """Logits of the MAP: (n,) for two classes, (n, K) for more."""
        inputs = self._inputs(X)
        return self._fit.logits(inputs)

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities (n, K), averaged over the posterior if ``predictive`` says so."""
        inputs = self._inputs(X)
        return average_probabilities(
            self._fit.logits(inputs),
            lambda: logit_covariance(self._problem, self._fit, inputs),
            predictive=self.predictive,
            n_samples=self.n_samples,
            seed=self.random_state,
        )

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Logarithms of ``predict_proba``."""
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class of each row."""
        likeliest = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[likeliest])


class EvidenceRidge(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Linear regression with Gaussian noise, its two precisions chosen by the evidence.

    Like scikit-learn's ``BayesianRidge`` without hyperpriors, but the evidence is normalised: it
    holds the intercept and every constant, so that it compares with that of any other model.

    Args:
        noise_precision: of the targets; ``"auto"`` maximises the evidence of the training data.
        weight_precision: the prior precision of the weights, likewise.
        intercept_precision: of the output at the mean of the inputs; None for one over the mean
            squared target, so that the intercept is a priori as large as the targets are.
        fit_intercept: whether there is an intercept.

    Attributes:
        coef_, intercept_, n_features_in_: as in scikit-learn.
        alpha_, lambda_: the precisions of noise and weights, as in ``BayesianRidge``.
        log_evidence_: ln P(y | X), exact.
        log_bayes_factor_: the same minus that of the constant, whose noise precision is the one
            given, or of its own largest evidence: above 0 the features are worth having.
        E_: minus that.
        scores_: log evidences on the way to the maximum, the last one that of the fit.

    ``sample_weight`` in ``fit`` counts how often an example was seen.

    >>> import numpy as np
    >>> X = np.arange(8.0)[:, None]
    >>> model = EvidenceRidge().fit(X, 3 * X[:, 0] + 1 + np.tile([0.5, -0.5], 4))
    >>> mean, std = model.predict([[10.0]], return_std=True)
    >>> bool(abs(mean[0] - 31) < std[0])
    True
    """

    def __init__(
        self,
        *,
        noise_precision: float | str = "auto",
        weight_precision: float | str = "auto",
        intercept_precision: float | None = None,
        fit_intercept: bool = True,
    ) -> None:
        self.noise_precision = noise_precision
        self.weight_precision = weight_precision
        self.intercept_precision = intercept_precision
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """The posterior under the precisions given, or under those of largest evidence."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        counts = check_counts(np.ones(len(y)) if sample_weight is None else sample_weight, len(y))
        seen = counts > 0
        targets = np.asarray(y, np.float64)
        check_scale(X, "X")
        check_scale(targets, "y")
        problem = ridge_problem(
            X[seen],
            targets[seen],
            counts[seen],
            fit_intercept=check_flag("fit_intercept", self.fit_intercept),
            intercept_precision=self.intercept_precision,
        )
        self._fit: RidgeFit = fit_ridge(
            problem,
            alpha=_precision("noise_precision", self.noise_precision),
            lam=_precision("weight_precision", self.weight_precision),
        )
        if self._fit.edge is not None:
            warnings.warn(
                f"the evidence is still rising at the {self._fit.edge} ratio of weight to noise "
                f"precision searched, {self._fit.lam / self._fit.alpha:.3g}: "
                + (
                    "the features may say nothing about the targets."
                    if self._fit.edge == "highest"
                    else "the targets may hold no noise."
                ),
                EdgeWarning,
                stacklevel=2,
            )
        self.coef_, self.intercept_ = self._fit.coef, self._fit.intercept
        self.alpha_, self.lambda_ = self._fit.alpha, self._fit.lam
        self.log_evidence_ = self._fit.log_evidence
        self.log_bayes_factor_ = self._fit.log_evidence - self._fit.log_null
        self.E_ = -self.log_bayes_factor_
        self.scores_ = np.array(self._fit.scores)
        return self

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """The posterior mean of the targets; with ``return_std`` their standard deviation too."""
        check_is_fitted(self)
        inputs = validate_data(self, X, dtype=np.float64, reset=False)
        check_scale(inputs, "X")
        mean = np.asarray(inputs @ self.coef_ + self.intercept_)
        return (mean, np.sqrt(self._fit.variance(inputs))) if return_std else mean


def _precision(name: str, given: float | str) -> float | None:
    """A number above 0, or None for one to be chosen."""
    if isinstance(given, str):
        check_choice(name, given, ["auto"])
        return None
    return check_precision(name, given)
