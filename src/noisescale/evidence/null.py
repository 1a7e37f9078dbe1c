"""Null models: what an evidence is compared with.

``uniform`` gives each of K classes the probability 1/K,

    ln P(y) = -N ln K.

``frequencies`` knows no inputs either but learns how frequent the classes are, under a uniform
Dirichlet prior on their probabilities: with n_k examples of class k

    P(y) = (K - 1)! prod_k n_k! / (N + K - 1)!.

Of sequences, N counts the tokens that count. For regression and counts the null model is the best
constant, see :mod:`noisescale.evidence.constant`.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln

from noisescale.checks import check_choice, shown
from noisescale.errors import InputError
from noisescale.evidence.constant import log_constant
from noisescale.evidence.problem import Problem

NULLS = ("uniform", "frequencies")
TRIVIAL = 3.0  # nats by which the frequencies alone beat uniform guessing before a note says so


def log_null_uniform(n_train: float, n_classes: int) -> float:
    """The log evidence of guessing each of the classes alike.

    >>> round(log_null_uniform(100, 10), 2)
    -230.26
    """
    return -n_train * math.log(n_classes)


def log_null_frequencies(counts: ArrayLike) -> float:
    """The log evidence of the classes' frequencies under a uniform prior, from their counts.

    >>> round(log_null_frequencies([1, 1]), 4)  # 1/2 for the first, 1/3 for the other one
    -1.7918
    """
    try:
        n = np.asarray(counts, np.float64)
    except (TypeError, ValueError):
        n = np.full(1, np.nan)
    whole = np.isfinite(n).all() and (n >= 0).all() and (n == np.floor(n)).all()
    if n.ndim != 1 or len(n) < 2 or not whole:
        raise InputError(
            "class counts must be two or more finite numbers >= 0 without decimals, got "
            f"{shown(counts)}."
        )
    K = len(n)
    return float(gammaln(K) + gammaln(n + 1).sum() - gammaln(n.sum() + K))


def log_null_of_classes(null: str, counts: ArrayLike) -> float:
    """The log evidence of the null model of this name, from the classes' counts."""
    check_choice("null", null, NULLS)
    if null == "frequencies":
        return log_null_frequencies(counts)
    n = np.asarray(counts, np.float64)
    return log_null_uniform(float(n.sum()), len(n))


def class_counts(problem: Problem) -> NDArray[np.int64] | None:
    """The number of examples (or tokens) of each class, None for a likelihood without."""
    if problem.n_classes is None:
        return None
    y = problem.observed
    tokens = y if y.ndim == 1 else y[y != problem.likelihood.ignore_index]
    return np.bincount(tokens.astype(np.int64).ravel(), minlength=problem.n_classes)


def log_null_of(
    problem: Problem, prior_precision: ArrayLike, null: str = "uniform"
) -> float | None:
    """The null model's log evidence; None for a user's own likelihood.

    A constant has the model's mean prior variance.
    """
    check_choice("null", null, NULLS)
    counts, likelihood = class_counts(problem), problem.likelihood
    if counts is not None:
        return log_null_of_classes(null, counts)
    if likelihood.function is not None:
        return None
    precision = 1 / float(np.mean(1 / np.asarray(prior_precision, float)))
    return log_constant(problem.observed, likelihood, precision)


def null_in_words(problem: Problem, null: str) -> str:
    """What the null model of this name is, for sentences about odds against it."""
    if problem.n_classes is None:
        return "the best constant"
    return "the class frequencies" if null == "frequencies" else "random guessing"


def note_on_imbalance(problem: Problem, null: str) -> str | None:
    """Where guessing by frequency beats guessing uniformly, beating the latter means little."""
    counts = class_counts(problem)
    return None if counts is None else note_on_counts(counts, null)


def note_on_counts(counts: ArrayLike, null: str) -> str | None:
    """The same from the classes' counts; None if there is nothing to say.

    >>> note_on_counts([5, 5], "uniform")
    """
    if null != "uniform":
        return None
    gain = log_null_frequencies(counts) - log_null_of_classes("uniform", counts)
    if gain <= TRIVIAL:
        return None
    return (
        f"the classes are imbalanced: their frequencies alone beat uniform guessing by {gain:.3g} "
        "nats; null='frequencies' compares with them."
    )
