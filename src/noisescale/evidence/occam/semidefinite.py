"""Positive semidefinite matrices M: eigenvalues, and solutions with s M + precision for many s.

A Kronecker product B x A shifted by a precision needs eigenvectors of one factor alone: in their
basis it is a row of matrices s_j M + precision, M the other factor and s_j the eigenvalues of the
first. For those a tridiagonal form M = Q T Q' serves, a third of the work. Rows that are zero (a
pixel that is never on, a unit that is dead) are left out of all of it.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg import lapack

from noisescale.evidence.occam.term import Array

_WORTH_A_FACTOR = 64  # sides of a matrix below which eigenvectors cost nothing
LOW_RANK = 0.7  # of a matrix's side, below which its factor's eigenvectors are cheaper


def semidefinite_eigh(matrix: Array) -> "Spectral":
    """Eigenvalues (r,) and vectors (n, r) of a positive semidefinite matrix; others are zero.

    Fewer examples than inputs, or inputs that are never on, leave a matrix of low rank. A pivoted
    Cholesky factor F (n, r) finds it out in a fraction of the time that eigenvectors take, and the
    small F' F = W D W' gives them: F W D^-1/2.

    >>> values, vectors = semidefinite_eigh(np.ones((100, 100)))
    >>> values.round(6), vectors.shape
    (array([100.]), (100, 1))
    """
    n, places = len(matrix), _not_zero(matrix)
    if len(places) < n:
        values, some = (
            semidefinite_eigh(matrix[np.ix_(places, places)])
            if len(places)
            else (np.zeros(0), np.zeros((0, 0)))
        )
        vectors = np.zeros((n, len(values)))
        vectors[places] = some
        return Spectral(values, vectors)
    few = _of_low_rank(matrix) if n >= _WORTH_A_FACTOR else None
    return _by_vectors(matrix) if few is None else few


def _not_zero(matrix: Array) -> NDArray[np.intp]:
    """The rows that are not zero, which a diagonal shows."""
    return np.flatnonzero(np.diag(matrix) > 0)


def _by_vectors(matrix: Array) -> "Spectral":
    values, vectors = scipy.linalg.eigh(matrix, driver="evd")
    return Spectral(np.maximum(values, 0), vectors)


def _of_low_rank(matrix: Array) -> "Spectral | None":
    """From a factor, if that is small; else None."""
    n = len(matrix)
    noise = n * np.finfo(float).eps * float(np.diag(matrix).max())
    factor, failed = lapack.dpotrf(matrix, lower=1)
    if not failed and float(np.diag(factor).min()) ** 2 > noise:
        return None  # of full rank, as a tenth of the time shows
    packed, order, rank, _ = lapack.dpstrf(matrix, tol=noise, lower=1)
    if rank > LOW_RANK * n:
        return None
    F = np.empty((n, rank))
    F[order - 1] = np.tril(packed)[:, :rank]
    values, W = scipy.linalg.eigh(F.T @ F, driver="evd")
    kept = values > n * np.finfo(float).eps * values.max(initial=0.0)
    return Spectral(values[kept], F @ (W[:, kept] / np.sqrt(values[kept])))


class Spectral(NamedTuple):
    """A positive semidefinite matrix M as its eigenvalues (r,) and vectors (n, r)."""

    values: Array
    vectors: Array

    def inverse(self, W: Array, scales: Array, precision: float) -> Array:
        """w_j' (s_j M + precision)^-1 w_j for the columns of W (n, m): (m,)."""
        along = self.vectors.T @ W  # (r, m)
        inside = (along**2 / (np.outer(self.values, scales) + precision)).sum(axis=0)
        beside = np.maximum((W**2).sum(axis=0) - (along**2).sum(axis=0), 0.0)
        return np.asarray(inside + beside / precision)


class Tridiagonal(NamedTuple):
    """The same as Q T Q', T of a diagonal (n,) and what is beside it (n - 1,).

    A third of the work of eigenvectors; (s M + precision)^-1 w is Q (s T + precision)^-1 Q' w.
    """

    values: Array  # eigenvalues (n,)
    diagonal: Array
    beside: Array
    reflectors: Array  # (n - 1, n - 1), as LAPACK packs them, and their scales
    scales: Array

    def inverse(self, W: Array, scales: Array, precision: float) -> Array:
        """w_j' (s_j M + precision)^-1 w_j for the columns of W (n, m): (m,)."""
        rotated = np.array(W, order="F")
        work = max(1, W.shape[1]) * 64
        rotated[1:] = lapack.dormqr("L", "T", self.reflectors, self.scales, W[1:], work)[0]
        products = np.empty(W.shape[1])
        for j, scale in enumerate(scales):
            w = rotated[:, j]
            d, e = scale * self.diagonal + precision, scale * self.beside
            _, _, x, failed = lapack.dptsv(d, e, w)
            if failed:  # rounding below zero, where the precision is no larger
                x = scipy.linalg.solve_banded((1, 1), _banded(d, e), w)
            products[j] = w @ x
        return products


class Within(NamedTuple):
    """A matrix whose rows are zero but at some places, where it is ``part``."""

    part: Spectral | Tridiagonal
    places: NDArray[np.intp]

    @property
    def values(self) -> Array:
        """Its eigenvalues, without those of the rows that are zero."""
        return self.part.values

    def inverse(self, W: Array, scales: Array, precision: float) -> Array:
        """w_j' (s_j M + precision)^-1 w_j for the columns of W (n, m): (m,)."""
        outside = np.delete(W, self.places, axis=0)
        inside = self.part.inverse(W[self.places], scales, precision)
        return np.asarray(inside + (outside**2).sum(axis=0) / precision)


def _banded(d: Array, e: Array) -> Array:
    return np.array([np.append(0.0, e), d, np.append(e, 0.0)])


def solved_when_shifted(matrix: Array) -> Spectral | Tridiagonal | Within:
    """The eigenvalues of a positive semidefinite matrix, and solutions with s M + precision.

    >>> made = solved_when_shifted(np.diag([1.0, 3.0]))
    >>> made.inverse(np.array([[2.0], [2.0]]), np.ones(1), 1.0)
    array([3.])
    """
    places = _not_zero(matrix)
    if 0 < len(places) < len(matrix):
        return Within(_solved(matrix[np.ix_(places, places)]), places)
    return _solved(matrix)


def _solved(matrix: Array) -> Spectral | Tridiagonal:
    n = len(matrix)
    few = _of_low_rank(matrix) if n >= _WORTH_A_FACTOR else _by_vectors(matrix)
    if few is not None:
        return few
    packed, d, e, scales, _ = lapack.dsytrd(matrix, lower=1, lwork=64 * n)
    values, failed = lapack.dsterf(d, e)
    if failed:
        return _by_vectors(matrix)
    reflectors = np.asfortranarray(packed[1:, :-1])
    return Tridiagonal(np.maximum(values, 0.0), d, e, reflectors, scales)
