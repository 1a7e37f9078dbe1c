"""Cholesky factors of kernels and curvatures, of any size that fits into memory."""

import numpy as np
import scipy.linalg

from noisescale.evidence.occam.term import Array
from noisescale.evidence.pace import attended

# Beyond 2**31 bytes (16,384 rows) OpenBLAS on several threads ends the process in dpotrf.
_WHOLE = 12_000
_PANEL = 2_048


def cholesky_of_lower(K: Array) -> Array:
    """The upper factor of a matrix of which the lower triangle is filled; overwritten.

    The lower triangle in C order is the upper one in Fortran's, which LAPACK overwrites in place.
    """
    work = len(K) ** 3 / 3
    if len(K) > _WHOLE:
        return attended(work, _by_panels, K)
    return attended(
        work, scipy.linalg.cholesky, K.T, lower=False, overwrite_a=True, check_finite=False
    )


def _by_panels(K: Array) -> Array:
    """With K = (a b'; b c): a = U'U, b becomes b U^-1, and what is left to factorise c - b b'."""
    n = len(K)
    for start in range(0, n, _PANEL):
        stop = min(start + _PANEL, n)
        U = scipy.linalg.cholesky(K[start:stop, start:stop].T, lower=False, check_finite=False)
        K[start:stop, start:stop] = U.T
        K[start:stop, stop:] = 0
        panel = K[stop:, start:stop]
        panel[:] = scipy.linalg.solve_triangular(U, panel.T, trans="T", check_finite=False).T
        for first in range(stop, n, _PANEL):
            last = min(first + _PANEL, n)
            K[first:last, stop:last] -= panel[first - stop : last - stop] @ panel[: last - stop].T
    return np.asarray(K.T)
