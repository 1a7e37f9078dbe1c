"""Whatever a user trains with, as one function: ``fit(x, y, seed=...)`` gives ``predict(x)``.

A prediction is an array (n, K) of probabilities in the order of the classes, or, for real targets,
a pair of arrays (n,): means and standard deviations. What a fit returns is checked, and refused
with a sentence that says what is wrong with it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError

Array = NDArray[np.float64]
Predict = Callable[[Any], Any]
Fit = Callable[..., Predict]

_SUMS = 1e-3  # by which rows of probabilities may miss 1: float32, and rounded tables


def is_estimator(fit: Any) -> bool:
    """Whether ``fit`` is an estimator of scikit-learn, or like one."""
    return hasattr(fit, "fit") and hasattr(fit, "get_params")


def as_fit(fit: Any) -> tuple[Fit, bool | None]:
    """The function behind ``fit``, and whether it predicts real numbers (None: y says)."""
    if isinstance(fit, type):
        raise InputError(f"fit must be an object or a function, got the class {fit.__name__}.")
    if is_estimator(fit):
        real = _is_regressor(fit)
        return EstimatorFit(fit, real), real
    if hasattr(fit, "forward") and hasattr(fit, "state_dict"):
        raise InputError(
            f"fit must train from scratch, and {type(fit).__name__} is one PyTorch module: use "
            "noisescale.torch.fit_function(make_module, ...), or a function fit(x, y, *, seed)."
        )
    if not callable(fit):
        raise InputError(
            "fit must be a scikit-learn estimator or a function fit(x, y, *, seed) that returns "
            f"predict_proba, got {type(fit).__name__}."
        )
    try:
        inspect.signature(fit).bind(None, None, seed=0)
    except TypeError as error:
        raise InputError(f"fit must take (x, y, *, seed): {error}.") from None
    except ValueError:  # written in C: it will be seen when called
        pass
    return fit, getattr(fit, "real", None)


def _is_regressor(estimator: Any) -> bool:
    from sklearn.base import is_classifier, is_regressor

    name = type(estimator).__name__
    if is_classifier(estimator):
        if not hasattr(estimator, "predict_proba"):
            raise InputError(
                f"{name} has no predict_proba, and evidence is paid in probabilities: wrap it in "
                "CalibratedClassifierCV, or use probability=True where there is such a setting."
            )
        return False
    if not is_regressor(estimator):
        raise InputError(f"fit must be a classifier or a regressor, and {name} is neither.")
    if "return_std" not in inspect.signature(estimator.predict).parameters:
        raise InputError(
            f"{name} predicts no standard deviation (predict has no return_std), and evidence is "
            "paid in densities: use BayesianRidge or GaussianProcessRegressor, or give a function "
            "whose predictions are pairs (mean, sd)."
        )
    return True


@dataclass(frozen=True, eq=False)
class EstimatorFit:
    """A scikit-learn estimator: copied for every fit, every random state of it set."""

    estimator: Any
    real: bool

    def __call__(self, x: Any, y: NDArray[Any], *, seed: int) -> Predict:
        """Fit a copy."""
        from sklearn.base import clone

        copy = clone(self.estimator)
        states = [
            name
            for name in copy.get_params()
            if name == "random_state" or name.endswith("__random_state")
        ]
        try:
            fitted = copy.set_params(**dict.fromkeys(states, seed)).fit(x, y)
        except ValueError as error:
            if self.real or len(np.unique(y)) > 1:
                raise
            raise InputError(
                f"the first {len(y)} examples are all of class {y[0]}, and "
                f"{type(copy).__name__} needs two: make the first block larger with blocks="
            ) from error
        if self.real:
            return lambda x: fitted.predict(x, return_std=True)
        return lambda x: Columns(fitted.predict_proba(x), fitted.classes_)


@dataclass(frozen=True, eq=False)
class Columns:
    """Probabilities of the classes that an estimator has seen."""

    probabilities: Any
    classes: NDArray[Any]


def check_probabilities(prediction: Any, classes: NDArray[Any], n: int) -> Array:
    """Probabilities (n, K) of all classes: finite, none negative, rows that sum to 1."""
    seen = classes
    if isinstance(prediction, Columns):
        prediction, seen = prediction.probabilities, prediction.classes
    given = _floats(prediction)
    if given.shape == (n,) and len(classes) == 2:  # of the second class
        given = np.stack([1 - given, given], axis=1)
    if given.shape != (n, len(seen)):
        raise InputError(
            f"predictions must have shape {(n, len(seen))}, a probability for each of {len(seen)} "
            f"classes (n_classes= counts those that y lacks), got {given.shape}"
        )
    if not np.isfinite(given).all():
        raise InputError(f"predictions hold {given[~np.isfinite(given)][0]}: training diverged?")
    sums = given.sum(axis=1)
    if given.min(initial=0.0) < 0 or np.abs(sums - 1).max(initial=0.0) > _SUMS:
        worst = int(np.argmax(np.abs(sums - 1) + (given < 0).any(axis=1)))
        raise InputError(
            f"predictions must be probabilities, but row {worst} is {_in_short(given[worst])} and "
            f"sums to {sums[worst]:.4g}: return predict_proba, not logits or labels"
        )
    whole = np.zeros((n, len(classes)))
    whole[:, np.searchsorted(classes, seen)] = given / sums[:, None]
    return whole


def check_gaussian(prediction: Any, n: int) -> tuple[Array, Array]:
    """Means and standard deviations (n,), finite, the latter above 0."""
    if not isinstance(prediction, tuple) or len(prediction) != 2:
        raise InputError(
            "predictions of real targets must be a pair of arrays (mean, sd), got "
            f"{type(prediction).__name__}"
        )
    mean, std = (_floats(part) for part in prediction)
    std = np.broadcast_to(std, mean.shape) if std.ndim == 0 else std
    if mean.shape != (n,) or std.shape != (n,):
        raise InputError(
            f"mean and sd must have shape {(n,)} each, got {mean.shape} and {std.shape}"
        )
    if not np.isfinite(mean).all() or not np.isfinite(std).all():
        raise InputError("predictions hold NaN or infinite values: training diverged?")
    if std.min() <= 0:
        raise InputError(f"a predicted sd must be above 0, got {std.min():g}")
    return mean, std


def _in_short(row: Array) -> str:
    first = ", ".join(f"{value:.3g}" for value in row[:4])
    return f"({first}, ...)" if len(row) > 4 else f"({first})"


def _floats(prediction: Any) -> Array:
    if hasattr(prediction, "detach"):  # a tensor of PyTorch, wherever it is
        prediction = prediction.detach().cpu()
    try:
        return np.asarray(prediction, np.float64)
    except (TypeError, ValueError):
        raise InputError(
            f"predictions must be an array of numbers, got {type(prediction).__name__}"
        ) from None
