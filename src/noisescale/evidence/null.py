"""The evidence of the null model: what a model must beat to be believed.

For classes every one is as likely as any other: -n ln C for n examples, or n tokens that count. For
regression and counts it is the best constant, see :mod:`noisescale.evidence.constant`.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from noisescale.evidence.constant import log_constant
from noisescale.evidence.problem import Problem


def log_null_of(problem: Problem, prior_precision: ArrayLike) -> float | None:
    """The null model's log evidence; None for a user's own likelihood.

    A constant has the model's mean prior variance.
    """
    likelihood, y = problem.likelihood, problem.observed
    if problem.n_classes is not None:
        tokens = y if y.ndim == 1 else y[y != likelihood.ignore_index]
        return -tokens.size * math.log(problem.n_classes)
    if likelihood.function is not None:
        return None
    return log_constant(y, likelihood, 1 / float(np.mean(1 / np.asarray(prior_precision, float))))
