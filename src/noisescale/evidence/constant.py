"""The best constant as a null model: of regression and of counts.

Each output is a constant b with the model's prior precision lambda. With Gaussian noise of
precision beta the evidence has a closed form,

    ln P = -N/2 ln(2 pi/beta) - 1/2 ln(1 + N beta/lambda)
           - beta/2 (sum y^2 - beta (sum y)^2/(lambda + N beta)),

and for counts of rate exp(b) it is an integral over b. A noise precision that was estimated is
estimated for the constant as well, from its own residuals of the same data.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.integrate
import scipy.special
from numpy.typing import NDArray

from noisescale.likelihood import Likelihood, estimated_precision

Array = NDArray[np.float64]

_NEGLIGIBLE = 45.0  # nats below its maximum where an integrand counts no more


def log_constant(y: NDArray[np.generic], likelihood: Likelihood, prior_precision: float) -> float:
    """The log evidence of a constant for each output; ``y`` (N, ...) are the targets."""
    columns = y.reshape(len(y), -1).T.astype(float)  # (C, N)
    if likelihood.name == "poisson":
        return sum(_log_counts(column, prior_precision) for column in columns)
    own = likelihood.constant_precision if likelihood.estimated else likelihood.noise_precision
    noise = estimated_precision(own)
    return sum(_log_regression(column, prior_precision, noise) for column in columns)


def _log_regression(y: Array, lam: float, noise: float) -> float:
    """y_i = b + noise, b Gaussian of precision ``lam``; sums around the mean, against rounding."""
    N, mean = len(y), float(y.mean())
    spread = float(((y - mean) ** 2).sum())
    pull = lam * N * mean**2 / (lam + N * noise)
    return (
        -0.5 * N * math.log(2 * math.pi / noise)
        - 0.5 * math.log1p(N * noise / lam)
        - 0.5 * noise * (spread + pull)
    )


def _log_counts(y: Array, lam: float) -> float:
    """y_i Poisson of rate exp(b), b Gaussian of precision ``lam``."""
    N, total = len(y), float(y.sum())

    def log_joint(b: float) -> float:
        return total * b - N * math.exp(b) - 0.5 * lam * b * b

    constant = -float(scipy.special.gammaln(y + 1).sum()) + 0.5 * math.log(lam / (2 * math.pi))
    # The maximum: total - N exp(b) = lam b, so that N/lam exp(total/lam - u) = u = total/lam - b.
    u = float(np.real(scipy.special.wrightomega(math.log(N / lam) + total / lam)))
    return constant + log_integral(log_joint, total / lam - u)


def log_integral(log_f: Callable[[float], float], top: float) -> float:
    """ln of the integral of a log-concave function that is largest at ``top``."""
    peak = log_f(top)

    def edge(sign: int) -> float:
        step = 1e-3
        while log_f(top + sign * step) > peak - _NEGLIGIBLE:
            step *= 1.5
        return top + sign * step

    value, _ = scipy.integrate.quad(
        lambda b: math.exp(log_f(b) - peak),
        edge(-1),
        edge(1),
        points=[top],
        limit=200,
        epsabs=0.0,
        epsrel=1e-11,
    )
    return peak + math.log(value)
