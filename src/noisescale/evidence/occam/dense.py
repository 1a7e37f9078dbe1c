"""The Occam factor of a curvature H against a diagonal prior precision L.

With mu_i the eigenvalues of L^-1/2 H L^-1/2, the log Occam factor is -1/2 sum ln(1 + mu_i). The
paper keeps the eigenvalues lambda_i >= lambda of the whole cost, which are those with mu_i >= 0.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Occam:
    """Log Occam factors and what the curvature says of the point.

    Attributes:
        restricted: -1/2 sum of ln(1 + mu) over mu >= 0, never positive.
        full: the same over all mu; None unless every 1 + mu is positive (a minimum).
        n_negative: the number of mu below zero, beyond rounding.
        negative_weight: minus the sum of those mu, in units of the prior precision.
        newton_decrement: grad' (H + L)^-1 grad, over directions of positive curvature.
    """

    restricted: float
    full: float | None
    n_negative: int
    negative_weight: float
    newton_decrement: float


# Rounding in the eigenvalues of M adds up to p eps trace(M) nats, which a Cholesky factorisation of
# I + M would count as curvature. Beyond this many nats the eigenvalues are computed and cut off.
_ROUNDING = 1e-6


def occam_of_positive_root(A: Array, L: Array, gradient: Array) -> Occam:
    """For H = A' A with A (n, p): Cholesky on the smaller of the two sides."""
    scaled = A / np.sqrt(L)  # (n, p)
    n, p = scaled.shape
    g = gradient / np.sqrt(L)
    if n < p:
        # |I + A A'| = |I + A' A|, and Woodbury for the solve.
        kernel = scaled @ scaled.T
        if not _resolved(kernel):
            # The nonzero eigenvalues are the squared singular values, in full relative accuracy.
            _, s, vt = scipy.linalg.svd(scaled, full_matrices=False)
            return _occam(s**2, vt @ g, float(g @ g))
        kernel[np.diag_indices(n)] += 1
        factor = scipy.linalg.cholesky(kernel, lower=True, overwrite_a=True)
        half = scipy.linalg.solve_triangular(factor, scaled @ g, lower=True)
        decrement = float(g @ g - half @ half)
        log_occam = -float(np.log(np.diag(factor)).sum())
        return Occam(log_occam, log_occam, 0, 0.0, max(decrement, 0.0))
    return occam_of_positive(A.T @ A, L, gradient)


def occam_of_kernel(K: Array, along: Array, length: float) -> Occam:
    """From the dual kernel K = A L^-1 A' (its lower triangle; overwritten).

    Args:
        K: (n, n), in units of the prior.
        along: A L^-1 gradient.
        length: gradient' L^-1 gradient.
    """
    n = len(K)
    if n == 0:
        return Occam(0.0, 0.0, 0, 0.0, length)
    if not _resolved_kernel(K):
        mu, vectors = scipy.linalg.eigh(K, overwrite_a=True, check_finite=False)
        noise = n * np.finfo(float).eps * mu[-1]
        mu = np.where(mu <= noise, 0.0, mu)
        # A vector's length in weight space is the root of its mu.
        known = np.where(mu > 0, (vectors.T @ along) / np.sqrt(np.where(mu > 0, mu, 1)), 0.0)
        return _occam(mu, known, length)
    K[np.diag_indices(n)] += 1
    # The lower triangle in C order is the upper one in Fortran's, which LAPACK overwrites in place.
    factor = scipy.linalg.cholesky(K.T, lower=False, overwrite_a=True, check_finite=False)
    half = scipy.linalg.solve_triangular(factor, along, trans="T", check_finite=False)
    log_occam = -float(np.log(np.diag(factor)).sum())
    return Occam(log_occam, log_occam, 0, 0.0, max(length - float(half @ half), 0.0))


def _resolved_kernel(K: Array) -> bool:
    """Whether rounding in K, eps times its norm on each of n eigenvalues, is negligible."""
    v = np.ones(len(K)) / np.sqrt(len(K))
    for _ in range(8):
        w = scipy.linalg.blas.dsymv(1.0, K.T, v, lower=0)
        size = float(np.linalg.norm(w))
        if size == 0:
            return True
        v = w / size
    return bool(len(K) * np.finfo(float).eps * size < _ROUNDING)


def occam_of_positive(H: Array, L: Array, gradient: Array) -> Occam:
    """For a curvature known to have no negative eigenvalue: one Cholesky factorisation."""
    M = _scaled(H, L)
    if not _resolved(M):
        return occam_of_symmetric(H, L, gradient)
    M[np.diag_indices(len(M))] += 1
    factor = scipy.linalg.cholesky(M, lower=True, overwrite_a=True)
    half = scipy.linalg.solve_triangular(factor, gradient / np.sqrt(L), lower=True)
    log_occam = -float(np.log(np.diag(factor)).sum())
    return Occam(log_occam, log_occam, 0, 0.0, float(half @ half))


def occam_of_symmetric(H: Array, L: Array, gradient: Array) -> Occam:
    """For any symmetric curvature: all its eigenvalues."""
    mu, vectors = scipy.linalg.eigh(_scaled(H, L), overwrite_a=True)
    g = gradient / np.sqrt(L)
    return _occam(mu, vectors.T @ g, float(g @ g))


def _occam(mu: Array, along: Array, length: float) -> Occam:
    """From eigenvalues, the scaled gradient along their vectors, and its whole squared length."""
    # Rounding leaves exact zeros (dead pixels, say) at about p times the machine's epsilon.
    noise = len(mu) * np.finfo(float).eps * np.abs(mu).max(initial=0.0)
    mu = np.where(np.abs(mu) <= noise, 0.0, mu)
    kept = mu > -1
    outside = max(length - float(along @ along), 0.0)  # where the curvature is zero
    return Occam(
        restricted=-0.5 * float(np.log1p(mu[mu > 0]).sum()),
        full=-0.5 * float(np.log1p(mu).sum()) if kept.all() else None,
        n_negative=int((mu < 0).sum()),
        negative_weight=float(-mu[mu < 0].sum()),
        newton_decrement=float((along[kept] ** 2 / (1 + mu[kept])).sum()) + outside,
    )


def _resolved(M: Array) -> bool:
    """Whether rounding in a positive matrix is negligible against the identity added to it."""
    return bool(len(M) * np.finfo(float).eps * np.trace(M) < _ROUNDING)


def _scaled(H: Array, L: Array) -> Array:
    root = np.sqrt(L)
    return np.asarray(H / np.outer(root, root))
