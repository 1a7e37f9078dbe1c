"""The softmax of Gaussian logits, averaged (equations 2 and 3 of the paper).

Either by the probit approximation, sigmoid(z / sqrt(1 + pi s^2/8)), applied to each logit of a
softmax likewise, or by sampling.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri, softmax

from noisescale.checks import check_choice, check_whole
from noisescale.seeds import random_stream

Array = NDArray[np.float64]

PREDICTIVES = ("map", "probit", "monte_carlo")


def average_probabilities(
    logits: Array,
    covariance: Callable[[], Array],
    *,
    predictive: str,
    n_samples: int = 1000,
    seed: int = 0,
) -> Array:
    """Class probabilities (n, K) from Gaussian logits.

    ``logits`` are (n,) for two classes with one logit, (n, K) for more; ``covariance()`` gives the
    logits' variances (n,) or covariances (n, K, K), and is not called for ``"map"``.
    """
    check_choice("predictive", predictive, PREDICTIVES)
    check_whole("n_samples", n_samples, at_least=1)
    check_whole("seed", seed, at_least=0)
    if logits.ndim == 1:
        if predictive == "probit":
            logits = logits / np.sqrt(1 + np.pi / 8 * covariance())
        if predictive == "monte_carlo":
            # One dimension needs no luck: equally likely points of the normal distribution,
            # symmetric, so that no prediction changes sides by sampling error.
            points = ndtri((np.arange(n_samples) + 0.5) / n_samples)
            s = np.sqrt(covariance())
            p = np.zeros_like(logits)
            for point in points:
                p += expit(logits + s * point) / n_samples
        else:
            p = expit(logits)
        return np.stack([1 - p, p], axis=1)
    if predictive == "map":
        return np.asarray(softmax(logits, axis=1))
    # A softmax does not see a shift common to all logits: leave its variance out.
    K = logits.shape[1]
    centre = np.eye(K) - 1 / K
    S = centre @ covariance() @ centre
    if predictive == "probit":
        variances = np.einsum("nkk->nk", S)
        return np.asarray(softmax((logits @ centre) / np.sqrt(1 + np.pi / 8 * variances), axis=1))
    values, vectors = np.linalg.eigh(S)
    root = vectors * np.sqrt(np.maximum(values, 0))[:, None, :]  # (n, K, K)
    rng = random_stream(seed, "posterior")
    total = np.zeros_like(logits)
    for _ in range(n_samples):
        total += softmax(logits + root @ rng.standard_normal(K), axis=1)
    return total / n_samples
