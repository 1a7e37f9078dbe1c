"""``dual`` where most rows matter little: a determinant mostly in float32, to a stated rounding.

Rows of large diagonal, the head h, go in float64; what they leave of the others, the tail, is
S = K_tt - K_th (I + K_hh)^-1 K_ht, and

    ln|I + K| = ln|I + K_hh| + ln|I + S|.

Entries of S off its diagonal are wanted in float32 alone: they change ln|I + S| by the entries of
(I + S)^-1 off its diagonal, which are small as well. Its diagonal, to which the determinant is most
sensitive, is kept in float64 through the whole factorisation: block after block of rows, a block's
own factor in float64, the update of those after it in float32, their diagonals updated apart.

Rounding: an entry of S is off by about u sqrt(n) sqrt(K_rr K_ss) with u = 2^-24, as if by chance,
hence ln|I + S| by no more than u sqrt(n) max(K_rr) |S|, |S| being the Frobenius norm off the
diagonal. Measured errors are a tenth of it or less. Where it is above a thousandth of a nat, or
more than a quarter of the rows are large, everything is computed in float64.
"""

import math

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from noisescale.evidence.occam.cholesky import cholesky_of_lower
from noisescale.evidence.occam.kernel import NEGLIGIBLE, parts_of
from noisescale.evidence.occam.term import Array, Occam, Term, check_curvature
from noisescale.evidence.pace import attended, stage
from noisescale.evidence.problem import Problem
from noisescale.evidence.rows import Rows

FEWEST = 2_048  # rows below which float64 is quick enough
_LARGE = 1.0  # a diagonal of K from which on a row belongs to the head
_HEAD = 0.25  # of all rows, which the head may have
_PANEL, _STROKE = 2_048, 1_024  # rows of a block, and of an update in one stroke
_ROUNDING = 1e-3  # nats
_U = 2.0**-24


def term(problem: Problem, L: Array, slope: Array, every: Rows) -> Term | None:
    """The Occam factor; None where float64 is the better way."""
    if len(every) < FEWEST:
        return None
    builder = problem.layer_kernel(L, every)
    if builder is None:
        return None
    diagonal = check_curvature(builder.diagonal())
    order = np.argsort(diagonal)
    rows = order[np.cumsum(diagonal[order]) > NEGLIGIBLE]
    large = diagonal[rows] > _LARGE
    head, tail = np.sort(rows[large]), np.sort(rows[~large])
    if len(rows) == 0 or len(head) > _HEAD * len(rows):
        return None
    rough = problem.layer_kernel(L, every[tail], "float32")
    assert rough is not None
    S = rough.matrix(np.ones(len(tail), bool))
    if S.dtype != np.float32:
        return None
    along = builder.along(slope / L)
    columns = np.concatenate([block for _, block in builder.columns(head)])  # (n, h)
    stage("factorisation", len(rows) ** 3 / 3)
    work = len(tail) ** 2 * len(rows) / 2
    found = attended(
        work,
        factorised,
        columns[head],
        columns[tail],
        S.astype(np.float32, copy=False),
        diagonal[tail],
        along[head],
        along[tail],
    )
    log_determinant, decrease, rounding = found
    if rounding > _ROUNDING:
        return None
    log_occam = -log_determinant / 2
    decrement = max(float(slope @ (slope / L)) - decrease, 0.0)
    details = {"kernel_rows": len(rows), "rounding_bound": rounding / 2}
    return Term(Occam(log_occam, log_occam, 0, 0.0, decrement), details=details)


def factorised(
    K_hh: Array,
    K_th: Array,
    K_tt: NDArray[np.float32],
    diagonal: Array,
    along_head: Array,
    along_tail: Array,
) -> tuple[float, float, float]:
    """ln|I + K|, a' (I + K)^-1 a of a vector a, and what rounding may change the first by.

    ``K_tt`` has its lower triangle filled, apart from its ``diagonal``, and is overwritten.
    """
    n, largest = len(K_hh) + len(K_tt), float(diagonal.max(initial=0.0))
    U = cholesky_of_lower(K_hh + np.eye(len(K_hh)))
    half = scipy.linalg.solve_triangular(U, along_head, trans="T", check_finite=False)
    P = scipy.linalg.solve_triangular(U, K_th.T, trans="T", check_finite=False).T  # (t, h)
    rest, residual = along_tail - P @ half, diagonal - np.square(P).sum(axis=1)
    S = K_tt
    _subtract_products(S, P.astype(np.float32))
    size = math.sqrt(2 * _squares_below(S))
    known, decrease = _of_residual(S, residual, rest)
    log_determinant = 2 * float(np.log(np.diag(U)).sum()) + known
    rounding = _U * math.sqrt(n) * largest * size
    return log_determinant, float(half @ half) + decrease, rounding


def _of_residual(S: NDArray[np.float32], diagonal: Array, a: Array) -> tuple[float, float]:
    """ln|I + S| and a' (I + S)^-1 a; S, ``diagonal`` and ``a`` are overwritten."""
    log_determinant, decrease = 0.0, 0.0
    for part in parts_of(len(S), _PANEL):
        own, after = S[part, part].astype(np.float64), slice(part.stop, len(S))
        own[np.diag_indices(len(own))] = 1 + diagonal[part]
        U = scipy.linalg.cholesky(own.T, lower=False, overwrite_a=True, check_finite=False)
        half = scipy.linalg.solve_triangular(U, a[part], trans="T", check_finite=False)
        log_determinant += 2 * float(np.log(np.diag(U)).sum())
        decrease += float(half @ half)
        if part.stop == len(S):
            break
        panel = scipy.linalg.blas.strsm(
            1.0, U.astype(np.float32), S[after, part].T, trans_a=1, overwrite_b=0
        ).T  # (rows after, block)
        diagonal[after] -= np.square(panel, dtype=np.float64).sum(axis=1)
        a[after] -= panel @ half.astype(np.float32)
        _subtract_products(S[after, after], panel)
    return log_determinant, decrease


def _subtract_products(S: NDArray[np.float32], A: NDArray[np.float32]) -> None:
    """S -= A A', its lower triangle."""
    for part in parts_of(len(S), _STROKE):
        upto = slice(0, part.stop)
        S[part, upto] -= A[part] @ A[upto].T


def _squares_below(S: NDArray[np.float32]) -> float:
    """The squared entries below the diagonal, summed."""
    total = 0.0
    for part in parts_of(len(S), _STROKE):
        before, own = S[part, : part.start], np.tril(S[part, part], -1)
        total += float(np.square(before).sum(dtype=np.float64))
        total += float(np.square(own).sum(dtype=np.float64))
    return total
