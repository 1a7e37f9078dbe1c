"""One reduction of a kernel that serves every prior precision: K = Q B Q' with B of narrow band.

Blocks of b columns are reflected onto their first b rows: with the QR decomposition of what stands
below the band, in the form Q = I - V T V', what is left of the matrix becomes

    Q' A Q = A - V X' - X V',    X = Y - V T' (V' Y)/2,    Y = A V T,

all products of matrices. That is 4/3 n^3 operations, the time of seven factorisations, and then
ln|I + s B| is n b^2 for every s. (Eigenvalues take as many operations, half of them products with a
vector, which are several times slower: fifteen factorisations of 9,000 rows.)
"""

import numpy as np
import scipy.linalg

from noisescale.evidence.occam.kernel import parts_of
from noisescale.evidence.occam.term import Array
from noisescale.evidence.pace import advance, attended, stage

WIDTH = 128  # columns of a block, and of the band
_STROKE = 1_024  # rows of a lower triangle in one stroke


def band_of(K: Array) -> Array:
    """B of a matrix of which the lower triangle is filled, as LAPACK stores it: (b + 1, n).

    ``K`` is overwritten.
    """
    n = len(K)
    stage("reduction", 4 * n**3 / 3)
    for start in range(0, n - WIDTH - 1, WIDTH):
        stop = start + WIDTH
        left = n - stop
        attended(4.0 * left**2 * WIDTH, _reflect, K[stop:, start:stop], K[stop:, stop:])
        advance(4.0 * left**2 * WIDTH)
    B = np.zeros((min(WIDTH, n - 1) + 1, n))
    for below, row in enumerate(B):
        row[: n - below] = np.diagonal(K, -below)
    return B


def log_determinant(B: Array, scale: float) -> float:
    """ln|I + scale B|."""
    M = B * scale
    M[0] += 1
    factor = scipy.linalg.cholesky_banded(M, overwrite_ab=True, lower=True, check_finite=False)
    return 2 * float(np.log(factor[0]).sum())


def _reflect(panel: Array, A: Array) -> None:
    """The panel (m, b) onto its first rows, and A (m, m), a lower triangle, with it."""
    (QR, tau), R = scipy.linalg.qr(panel, mode="raw", check_finite=False)
    b = panel.shape[1]
    V = np.tril(QR, -1)
    np.fill_diagonal(V, 1.0)
    panel[:] = 0
    panel[: len(R)] = R[:, :b]
    V = np.ascontiguousarray(V[:, : len(tau)])
    T = _compact(V, tau)
    Y = _product(A, V) @ T
    Y -= V @ (T.T @ (V.T @ Y)) / 2
    left, right = np.hstack([V, Y]), np.hstack([Y, V])
    for part in parts_of(len(A), _STROKE):
        upto = slice(0, part.stop)
        A[part, upto] -= left[part] @ right[upto].T


def _compact(V: Array, tau: Array) -> Array:
    """T with I - V T V' the product of the reflections I - tau v v'."""
    G, k = V.T @ V, len(tau)
    # T^-1 has 1/tau on its diagonal and G above it; a reflection with tau = 0 is none.
    T = np.zeros((k, k))
    for j in range(k):
        T[:j, j] = -tau[j] * (T[:j, :j] @ G[:j, j])
        T[j, j] = tau[j]
    return T


def _product(A: Array, V: Array) -> Array:
    """A V of a symmetric A of which the lower triangle is filled."""
    product = np.zeros(V.shape)
    for part in parts_of(len(A), _STROKE):
        before, own = slice(0, part.start), np.tril(A[part, part])
        product[part] += A[part, before] @ V[before]
        product[before] += A[part, before].T @ V[part]
        product[part] += (own + np.tril(own, -1).T) @ V[part]
    return product
