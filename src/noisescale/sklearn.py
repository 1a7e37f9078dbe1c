"""For scikit-learn: a classifier that chooses its regularisation by the evidence, and a function
to tune for its networks."""

import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from noisescale.checks import check_choice, check_whole
from noisescale.evidence.averaging import PREDICTIVES, average_probabilities
from noisescale.evidence.linear.regression import (
    DEFAULT_BOUNDS,
    LinearFit,
    check_counts,
    fit_map,
    linear_problem,
    logit_covariance,
    maximise_evidence,
)
from noisescale.tune.sklearn_function import train_function

__all__ = ["EdgeWarning", "EvidenceLogisticRegression", "train_function"]

Array = NDArray[np.float64]


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
        bounds: where ``"auto"`` searches.
        n_samples: draws for ``"monte_carlo"``.
        random_state: an int, decides those draws.

    Attributes:
        coef_, intercept_, classes_, n_features_in_: as in scikit-learn.
        prior_precision_: the precision used.
        prior_precision_log10_std_: its posterior standard deviation in decades; None if given or
            at an edge of ``bounds``.
        log_evidence_: ln P(y | X), Laplace.
        log_bayes_factor_: the same minus the null model's, which gives every class the same
            probability: above 0 the classifier is worth more than guessing.
        E_: minus that, the paper's log evidence ratio.
        path_: arrays over every precision tried: ``prior_precision``, ``log_evidence``, ``E``,
            ``nll``, ``penalty``, ``log_occam_factor``, ascending.

    ``sample_weight`` in ``fit`` counts how often an example was seen: weight 2 is the same as the
    row twice, weight 0 the same as leaving it out. There is no other meaning under which evidences
    stay comparable.
    """

    def __init__(
        self,
        *,
        prior_precision: float | str = "auto",
        intercept_precision: float | None = None,
        fit_intercept: bool = True,
        predictive: str = "map",
        bounds: tuple[float, float] = DEFAULT_BOUNDS,
        n_samples: int = 1000,
        random_state: int = 0,
    ) -> None:
        self.prior_precision = prior_precision
        self.intercept_precision = intercept_precision
        self.fit_intercept = fit_intercept
        self.predictive = predictive
        self.bounds = bounds
        self.n_samples = n_samples
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Find the MAP, and with ``prior_precision="auto"`` the precision of largest evidence."""
        check_choice("predictive", self.predictive, PREDICTIVES)
        check_whole("random_state", self.random_state, at_least=0)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if sample_weight is not None:  # weight 0 leaves a row out, and with it perhaps a class
            counts = check_counts(sample_weight, n=np.shape(y)[0])
            X, y, sample_weight = X[counts > 0], y[counts > 0], counts[counts > 0]
        self.classes_, labels = np.unique(y, return_inverse=True)
        self._problem = linear_problem(
            X,
            labels,
            n_classes=len(self.classes_),
            fit_intercept=self.fit_intercept,
            counts=sample_weight,
        )
        self.prior_precision_log10_std_: float | None = None
        if isinstance(self.prior_precision, str):
            check_choice("prior_precision", self.prior_precision, ["auto"])
            found = maximise_evidence(
                self._problem, bounds=self.bounds, intercept_precision=self.intercept_precision
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

    def _inputs(self, X: ArrayLike) -> Array:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

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
