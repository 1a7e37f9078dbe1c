"""What is bet on: classes or real numbers, and what a null model that sees no inputs bets.

A null model is its log marginal likelihood ln m of any number of targets; the block that follows n
targets costs it ln m(first n) - ln m(first n and the block).

    uniform      ln m = -n ln K
    frequencies  base rates that are learnt on the way (see :mod:`noisescale.evidence.null`)
    gaussian     unknown mean and variance under the reference prior 1/variance:
                 ln m = ln Gamma((n-1)/2) - (n-1)/2 ln(pi SS) - 1/2 ln n,  SS = sum (y - mean)^2
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError
from noisescale.evidence.null import NULLS, log_null_of_classes, note_on_counts

LogMarginal = Callable[[NDArray[Any]], float]


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets as they were given, and as they are paid for.

    Attributes:
        given: as users know them, for their fit.
        paid: the position of each label in ``classes``, or the real numbers.
        classes: the labels in order; None for real numbers.
        null, log_null: the null model's name and its log marginal likelihood of any targets.
    """

    given: NDArray[Any]
    paid: NDArray[Any]
    classes: NDArray[Any] | None
    null: str
    log_null: LogMarginal

    @property
    def n_classes(self) -> int | None:
        """K, None for real numbers."""
        return None if self.classes is None else len(self.classes)

    @property
    def null_note(self) -> str | None:
        """That a null model is beaten too easily; None if it is not."""
        if self.n_classes is None:
            return None
        return note_on_counts(np.bincount(self.paid, minlength=self.n_classes), self.null)


def make_targets(y: ArrayLike, *, real: bool | None, n_classes: int | None, null: Any) -> Targets:
    """Targets with a null model; ``real`` says whether they are numbers, None that y's type does.

    ``n_classes`` counts classes that y may lack.
    """
    given = np.asarray(y)
    if given.ndim != 1:
        raise InputError(f"data y must be one-dimensional, got shape {given.shape}.")
    if real is None:
        real = given.dtype.kind == "f" and n_classes is None
    if real:
        return _numbers(given, n_classes, null)
    if given.dtype.kind not in "iubUSO":
        raise InputError(
            f"data y must be labels for a classifier, got dtype {given.dtype}: y.astype(int) makes "
            "whole numbers of them."
        )
    classes = _classes(given, n_classes)
    name, K = check_choice("null", null, NULLS), len(classes)

    def log_marginal(labels: NDArray[Any]) -> float:
        return log_null_of_classes(name, np.bincount(labels, minlength=K))

    return Targets(given, np.searchsorted(classes, given), classes, name, log_marginal)


def _numbers(given: NDArray[Any], n_classes: int | None, null: Any) -> Targets:
    if n_classes is not None:
        raise InputError(f"n_classes is for classifiers, got {n_classes} with a regressor.")
    if given.dtype.kind not in "iuf" or not np.isfinite(given).all():
        raise InputError("data y must be finite numbers for a regressor.")
    paid = given.astype(np.float64)
    if hasattr(null, "logpdf"):
        return Targets(given, paid, None, "given", lambda y: float(np.sum(null.logpdf(y))))
    if null not in ("uniform", "gaussian"):  # the former is what callers get who ask for nothing
        raise InputError(
            f"null must be 'gaussian' for a regressor, or a distribution of scipy.stats such as "
            f"norm(0, 10) that does not depend on y, got {null!r}."
        )
    return Targets(given, paid, None, "gaussian", _gaussian)


def _classes(given: NDArray[Any], n_classes: int | None) -> NDArray[Any]:
    if n_classes is not None:
        K = check_whole("n_classes", n_classes, at_least=2)
        if given.dtype.kind not in "iub" or given.min() < 0 or given.max() >= K:
            raise InputError(f"with n_classes = {K} labels must be whole numbers in 0..{K - 1}.")
        return np.arange(K)
    classes = np.unique(given)
    if len(classes) < 2:
        raise InputError(
            f"data y holds one class alone, {classes[0]!r}: there is nothing to predict; give "
            "n_classes if others were possible."
        )
    return classes


def _gaussian(y: NDArray[Any]) -> float:
    n, squares = len(y), float(np.sum((y - y.mean()) ** 2))
    if n < 2 or squares == 0:
        raise InputError(
            "null='gaussian' needs a first block with two different numbers or more: make it "
            "larger, or give a distribution as null."
        )
    return float(gammaln((n - 1) / 2) - (n - 1) / 2 * np.log(np.pi * squares) - np.log(n) / 2)
