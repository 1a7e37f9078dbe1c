"""A Bayesian mixture of experts: the same predictions at several temperatures, and the null model.

Expert k pays L_k(b) = -ln P_k(block b). Before block b its weight is proportional to
exp(-sum of its losses so far), so the mixture pays

    -ln sum_k w_k exp(-L_k(b)),     altogether   -ln (1/M) sum_k exp(-sum_b L_k(b)),

at most ln M more than the best of its M experts. For classes, temperature T turns probabilities p
into p^(1/T)/sum p^(1/T); for real numbers it multiplies the standard deviation.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

Array = NDArray[np.float64]

# An overconfident network is cured by a temperature of a few; an underconfident one is rare.
TEMPERATURES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)


class Mixture(NamedTuple):
    """What the mixture pays for each block (b,), and its weights before each, and after all.

    ``weights`` has shape (b + 1, experts).
    """

    losses: Array
    weights: Array


def mix(losses: Array) -> Mixture:
    """The mixture of experts with these ``losses`` (blocks, experts), all equally likely at first.

    >>> mix(np.array([[0.0, np.inf], [1.0, 0.0]])).losses.round(3)
    array([0.693, 1.   ])
    """
    spent = np.vstack([np.zeros(losses.shape[1]), np.cumsum(losses, axis=0)])  # (b + 1, experts)
    totals = logsumexp(-spent, axis=1) - np.log(losses.shape[1])  # ln P of all blocks before
    return Mixture(-np.diff(totals), np.exp(log_softmax(-spent, axis=1)))


def class_losses(
    probabilities: Array, labels: NDArray[np.integer], temperatures: tuple[float, ...], floor: float
) -> Array:
    """Nats that each temperature pays for ``labels`` (n,), predicted by (n, K) probabilities.

    ``floor`` is the share of the uniform distribution in every prediction: a forest that has never
    seen a class gives it exactly 0, which no later success could make good.
    """
    K = probabilities.shape[1]
    with np.errstate(divide="ignore"):  # an exact 0 without a floor costs everything
        log_p = np.log((1 - floor) * probabilities + floor / K)
        own = log_p[np.arange(len(labels)), labels].sum()
        totals = [np.logaddexp.reduce(log_p / T, axis=1).sum() for T in temperatures]
        return np.array([total - own / T for total, T in zip(totals, temperatures, strict=True)])


def gaussian_losses(
    means: Array, stds: Array, targets: Array, temperatures: tuple[float, ...]
) -> Array:
    """The same for real targets (n,): (members, n) Gaussians, whose densities are averaged."""
    members = len(means)
    paid = []
    for T in temperatures:
        z = (targets - means) / (T * stds)  # (members, n)
        log_p = -0.5 * z**2 - np.log(T * stds) - 0.5 * np.log(2 * np.pi)
        paid.append(-(np.logaddexp.reduce(log_p, axis=0) - np.log(members)).sum())
    return np.array(paid)
