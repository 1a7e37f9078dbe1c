"""``dual`` with a tolerance: bounds of the log-determinant from some columns of the kernel.

m steps of pivoted Cholesky leave K = F F' + S, with F (n, m) made from m columns of K, and S, of
which the diagonal is known, positive semidefinite and zero at the pivots. Because of that

    ln|I + F' F|  <=  ln|I + K|  <=  ln|I + F' F| + sum_r ln(1 + S_rr):

|I + A + B| <= |I + A| |I + B| for A and B that are nowhere negative, and Hadamard for |I + S|. Rows
of small diagonal need not be looked at: leaving one out changes the determinant by a factor between
1 and 1 + K_rr. Rows are taken, a block at a time, where S is largest, until the bounds are as near
as was asked, or memory is full.

Rounding: sums of m terms that are rounded by eps each, as if by chance, are off by about sqrt(m)
eps of their size; all of the diagonal together by sqrt(m) eps tr K, by which both bounds are moved
outwards. Where that is small beside the tolerance, numbers are float32.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from noisescale.checks import memory_limit
from noisescale.evidence.occam import dual
from noisescale.evidence.occam.cholesky import cholesky_of_lower
from noisescale.evidence.occam.kernel import (
    Builder,
    kernel_builder,
    output_rows,
    parts_of,
    row_products,
)
from noisescale.evidence.occam.row_timing import seconds_of_rows
from noisescale.evidence.occam.term import Accuracy, Array, Curve, Occam, Term, check_curvature
from noisescale.evidence.pace import advance, attended, stage
from noisescale.evidence.problem import Facts, Precision, Problem
from noisescale.evidence.rows import Rows
from noisescale.evidence.timing import arithmetic_rate

_LEFT_OUT = 0.25  # of the tolerance, for rows that are not looked at
_INDEPENDENT = 0.25  # of a block's largest residual, below which a candidate waits
_EXACT_FROM = 0.25  # of all rows as pivots, from which on the whole kernel is less work
_MEMORY = 0.5  # of what may be used, for F
_ROUNDING = 0.1  # of the tolerance, that float32 may take
_INNER = 1_024  # terms of the sums behind an entry of K, about
_FIRST = 1_024  # rows that costs are predicted for
_FEW = 256  # columns that are measured
_PART = 8_192  # rows of F in one stroke


def refusal(facts: Facts, curvature: str) -> str | None:
    """That of ``dual``."""
    return dual.refusal(facts, curvature)


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """Of the first thousand columns: how many it will take is not known before.

    Of the whole kernel, where it is made at once.
    """
    n, m = facts.rows, min(facts.rows, _FIRST)
    if dual.formed_when_wanted(facts):
        return dual.cost(facts, curvature)
    entry = sum(2.0 * (w.inputs + w.outputs) for w in facts.weights) or 2.0 * facts.p
    held = sum(w.inputs for w in facts.weights)
    return 4.0 * (n * m + facts.N * held), 2 * facts.N * facts.pass_flops + n * m * (entry + 3 * m)


def seconds(problem: Problem, facts: Facts, curvature: str, L: Array, accuracy: Accuracy) -> float:
    """Some rows and columns of their kernel, measured; the rest of the first at a product's rate.

    How many columns it will take is not known before: this is the time of a thousand, or of the
    whole kernel where it is made at once.
    """
    n, m = facts.rows, min(facts.rows, _FIRST)
    if dual.formed_when_wanted(facts):
        return dual.seconds(problem, facts, curvature, L, accuracy)
    diagonal = seconds_of_rows(problem, facts, lambda r: lambda: problem.squared_norms(L, r))
    made = seconds_of_rows(problem, facts, lambda r: lambda: kernel_builder(problem, L, r))
    few = np.arange(min(n, _FEW))

    def columns(rows: Rows) -> Callable[[], object]:
        builder = kernel_builder(problem, L, rows)
        return lambda: sum(len(K) for _, K in builder.columns(few))

    some = seconds_of_rows(problem, facts, columns, at_least=2 * _FEW)
    return diagonal + made + some * m / len(few) + 3 * n * m**2 / arithmetic_rate()


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """The middle of the bounds, and these."""
    assert accuracy.tolerance is not None
    found = reduced(problem, L, accuracy.tolerance)
    known, decrement = (_of_all if found.whole else _of_pivots)(problem, found, slope, L)
    off = found.rounding
    lower, upper = max(known - off, 0.0), known + found.gap + off
    middle = (lower + upper) / 2
    occam = Occam(-middle / 2, -middle / 2, 0, 0.0, decrement)
    details = {
        "rows": found.n_rows,
        "rows_that_matter": len(found.rows),
        "kernel_rows": len(found.rows) if found.whole else len(found.pivots),
        "rounding_bound": off / 2,
        "products": found.precision,
        "tolerance_reached": upper - lower <= 2 * accuracy.tolerance,
        "bounds_by_rows": tuple((rows, gap / 2) for rows, gap in found.trail),
    }
    return Term(occam, bounds=(-upper / 2, -lower / 2), details=details)


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """The middle of the bounds: columns at the smallest precision serve all larger ones."""
    assert accuracy.tolerance is not None
    p = len(problem.w)
    found = reduced(problem, np.full(p, smallest), accuracy.tolerance)
    if found.whole:
        return dual.curve(problem, curvature, accuracy, smallest=smallest, n_values=n_values)
    inner = found.inner()
    h = attended(3.0 * len(inner) ** 3, scipy.linalg.eigvalsh, inner, overwrite_a=True)
    rest = np.concatenate([found.residual, found.beyond])

    def log_occam(precision: float) -> float:
        scale = smallest / precision
        known = np.log1p(scale * np.maximum(h, 0)).sum()
        return -0.5 * float(known + np.log1p(scale * rest).sum() / 2)

    return log_occam


class Reduction:
    """K = F F' + S between the rows that matter, as far as it has come.

    Attributes:
        rows: those that matter.
        n_rows: of all.
        beyond: the diagonal of K at the others.
        residual: the diagonal of S.
        pivots: in the order in which they were taken, an index of ``rows``.
        blocks: F, some columns each.
        trail: the number of pivots and how far apart the bounds of ln|I + K| were, block by block.
        whole: whether K itself is to be factorised, which is less work than going on.
    """

    def __init__(
        self, builder: Builder, rows: Rows, diagonal: Array, beyond: Array, precision: Precision
    ) -> None:
        self.builder, self.rows, self.precision = builder, rows, precision
        self.n_rows, self.beyond = len(diagonal) + len(beyond), beyond
        self.residual, self.whole = diagonal.copy(), False
        self.trace = float(diagonal.sum())
        self.left_out = float(np.log1p(beyond).sum())
        self.pivots = np.zeros(0, np.int64)
        self.blocks: list[Array] = []
        self.trail = [(0, self.gap)]

    @property
    def gap(self) -> float:
        """How far apart the bounds of ln|I + K| are, but for rounding."""
        rest = 0.0 if self.whole else float(np.log1p(self.residual).sum())
        return rest + self.left_out

    @property
    def rounding(self) -> float:
        """What rounding may change them by."""
        n_terms = len(self.rows) if self.whole else len(self.pivots)
        return rounding(self.precision, n_terms, self.trace)

    @property
    def room(self) -> int:
        """Pivots whose columns fit into memory."""
        width = np.dtype(self.precision).itemsize
        return int(_MEMORY * memory_limit() / (width * max(len(self.rows), 1)))

    def extend(self, most: int) -> None:
        """By a block of pivots, where the residual is largest."""
        most = min(most, int((self.residual > 0).sum()))
        candidates = np.sort(np.argpartition(-self.residual, most - 1)[:most])
        S = np.asarray(self.builder.among(candidates), np.float64)
        for F in self.blocks:
            S -= F[candidates] @ F[candidates].T
        first = np.sort(_independent(S))
        chosen, factor = candidates[first], np.linalg.cholesky(S[np.ix_(first, first)])
        inverse = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
        to_new = inverse.T.astype(self.precision)
        new = np.empty((len(self.rows), len(chosen)), self.precision)
        theirs = [F[chosen].T for F in self.blocks]
        for part, K in self.builder.columns(chosen):
            column = K.astype(self.precision, copy=False)
            for F, own in zip(self.blocks, theirs, strict=True):
                column -= F[part] @ own
            new[part] = column @ to_new
        new[self.pivots] = 0.0
        new[chosen] = factor
        for part in parts_of(len(new), _PART):
            self.residual[part] -= np.square(new[part], dtype=np.float64).sum(axis=1)
        np.maximum(self.residual, 0.0, out=self.residual)
        self.pivots = np.concatenate([self.pivots, chosen])
        self.residual[self.pivots] = 0.0
        self.blocks.append(new)
        self.trail.append((len(self.pivots), self.gap))

    def at_pivots(self) -> Array:
        """F at the pivots, a lower triangle (m, m)."""
        F = [block[self.pivots] for block in self.blocks]
        return np.concatenate(F, axis=1).astype(np.float64)

    def inner(self) -> Array:
        """F' F (m, m)."""
        ends = np.cumsum([0, *(F.shape[1] for F in self.blocks)])
        total = np.zeros((ends[-1], ends[-1]))
        stage("determinant", len(self.rows))
        for part in parts_of(len(self.rows), _PART):
            F = np.concatenate([block[part] for block in self.blocks], axis=1)
            total += F.T @ F
            advance(len(F))
        return total


def count_rows(problem: Problem, L: Array, tolerance: float) -> tuple[int, int]:
    """How many rows matter to the tolerance, and how many there are: a pass over the diagonal."""
    diagonal = check_curvature(problem.squared_norms(L, output_rows(problem)))
    return int(rows_that_matter(diagonal, tolerance).sum()), len(diagonal)


def begun(problem: Problem, L: Array, tolerance: float) -> Reduction:
    """No pivots yet: the diagonal of K, and the rows that matter to the tolerance."""
    every = output_rows(problem)
    diagonal = check_curvature(problem.squared_norms(L, every))
    matters = rows_that_matter(diagonal, tolerance)
    trace = float(diagonal[matters].sum())
    rough = rounding("float32", _FIRST, trace) <= _ROUNDING * tolerance
    precision: Precision = "float32" if rough else "float64"
    rows = every[matters]
    stage(f"kernel ({len(rows):,} of {len(every):,} rows matter)", len(rows))
    builder = kernel_builder(problem, L, rows, precision)
    return Reduction(builder, rows, diagonal[matters], diagonal[~matters], precision)


def reduced(problem: Problem, L: Array, tolerance: float) -> Reduction:
    """Pivots until the log evidence's bounds are ``tolerance`` apart, or memory is full."""
    found = begun(problem, L, tolerance)
    n = len(found.rows)
    whole_fits = 3 * 8.0 * n**2 <= _MEMORY * memory_limit()
    decades = math.log(max(found.gap / (2 * tolerance), 1.0))
    stage(f"bounds ({n:,} of {found.n_rows:,} rows matter)", decades)
    while found.gap + 2 * found.rounding > 2 * tolerance and (found.residual > 0).any():
        m, before = len(found.pivots), found.gap
        if whole_fits and (found.builder.whole_first or m >= _EXACT_FROM * n):
            found.whole = True
            break
        if m >= found.room:
            break
        found.extend(min(found.builder.columns_at_once, found.room - m, max(16, n // 16)))
        advance(math.log(before / max(found.gap, 1e-300)))
    return found


def rows_that_matter(diagonal: Array, tolerance: float) -> NDArray[np.bool_]:
    """All rows but those that together change the log evidence by a share of the tolerance.

    >>> rows_that_matter(np.array([1e-9, 3.0, 1e-3, 0.5]), 0.01)
    array([False,  True, False,  True])
    """
    order = np.argsort(diagonal)
    matters = np.ones(len(diagonal), bool)
    changed = np.cumsum(np.log1p(diagonal[order]))
    matters[order[changed <= 2 * _LEFT_OUT * tolerance]] = False
    return matters


def rounding(precision: Precision, n_pivots: int, trace: float) -> float:
    """What the rounding of sums may change ln|I + K| by."""
    return float(np.finfo(precision).eps) * math.sqrt(n_pivots + _INNER) * trace


def _independent(S: Array) -> NDArray[np.int64]:
    """Rows of S by pivoted Cholesky, while what is left of them is not small."""
    least = _INDEPENDENT * float(np.diag(S).max())
    _, order, rank, _ = scipy.linalg.lapack.dpstrf(S, tol=least, lower=1)
    return np.asarray(order[: max(rank, 1)], np.int64) - 1


def _of_all(problem: Problem, found: Reduction, slope: Array, L: Array) -> tuple[float, float]:
    """ln|I + K| between the rows that matter, and the Newton decrement."""
    along = found.builder.along(slope / L)
    K = found.builder.matrix(np.ones(len(found.rows), bool))
    K[np.diag_indices(len(K))] += 1
    stage("factorisation", len(K) ** 3 / 3)
    factor = cholesky_of_lower(K)
    half = scipy.linalg.solve_triangular(factor, along, trans="T", check_finite=False)
    decrement = float(slope @ (slope / L)) - float(half @ half)
    return _log_determinant(factor), max(decrement, 0.0)


def _of_pivots(problem: Problem, found: Reduction, slope: Array, L: Array) -> tuple[float, float]:
    """ln|I + F' F|, and the Newton decrement g' (I + H)^-1 g, both in units of the prior.

    The pivots' rows span, orthonormally, Q = F_P^-1 A_P, in which the curvature H is F' F; what the
    gradient has beside them counts as if nothing were curved there.
    """
    length = float(slope @ (slope / L))
    if not len(found.pivots):
        return 0.0, length
    M = found.inner()
    M[np.diag_indices(len(M))] += 1
    factor = cholesky_of_lower(M)
    order = np.argsort(found.pivots)
    along = np.empty(len(order))
    few = found.rows[found.pivots[order]]
    along[order] = row_products(problem, (slope / L)[None], few)[0]
    Qg = scipy.linalg.solve_triangular(found.at_pivots(), along, lower=True)
    half = scipy.linalg.solve_triangular(factor, Qg, trans="T")
    return _log_determinant(factor), float(half @ half) + max(length - float(Qg @ Qg), 0.0)


def _log_determinant(factor: Array) -> float:
    return 2 * float(np.log(np.diag(factor).astype(np.float64)).sum())
