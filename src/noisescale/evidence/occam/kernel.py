"""The kernel K = A L^-1 A' between rows A = (R_i J_i) of the Gauss-Newton matrix's root.

Where A fits into memory its rows are made once, block by block, and multiplied as matrices. Where
it does not: a row by reverse, then one forward derivative along it through the training set, which
yields a row of K. A problem that knows its layers has a builder of its own: from the inputs a of a
dense network's layers and the rows' derivatives D at their outputs K is the sum of
(a_i . a_j/lambda_w + 1/lambda_b) (D_r . D_s).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from noisescale.checks import memory_limit
from noisescale.errors import InputError
from noisescale.evidence.occam.term import NOT_CONVEX, Array, check_curvature
from noisescale.evidence.pace import advance, attended, stage, tick
from noisescale.evidence.problem import Problem
from noisescale.evidence.rows import Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from noisescale.evidence.curvature.layers import DenseLayers


BLOCK_BYTES = 1 << 28  # of rows or of their derivatives held at once
BLOCK_FLOPS = 1 << 33  # of a product of matrices in one stroke: some tenths of a second
NEGLIGIBLE = 1e-9  # nats that leaving rows out may change the log-determinant by, in all
_STROKE = 512  # rows of a lower triangle in one stroke: what is made above it is small
LEFT_OUT = 1e200  # a precision from which on a parameter is not looked at


@dataclass(frozen=True)
class DualKernel:
    """K in units of the prior, which of the rows it has, and their products with L^-1 gradient."""

    matrix: Array  # (n, n), the lower triangle filled
    kept: "NDArray[np.bool_]"  # of all rows
    along_gradient: Array  # (n,)


class Builder(Protocol):
    """K for one prior between given rows, all or some of them."""

    def diagonal(self) -> Array:
        """The diagonal of K between all rows."""
        ...

    def matrix(self, kept: "NDArray[np.bool_]") -> Array:
        """K between some of the rows, its lower triangle."""
        ...

    def along(self, direction: Array) -> Array:
        """The product of every row with a direction (p,)."""
        ...


def dual_kernel(
    problem: Problem,
    L: Array,
    gradient: Array,
    *,
    negligible: float = NEGLIGIBLE,
    every: Rows | None = None,
) -> DualKernel:
    """K for this prior, without rows that together change less than ``negligible`` nats.

    ``every`` are all rows, where they are known already.
    """
    every = output_rows(problem) if every is None else every
    builder = kernel_builder(problem, L, every)
    diagonal = check_curvature(builder.diagonal())
    order = np.argsort(diagonal)
    # |I + K| exceeds that of a part of it by at most the product of the other 1 + K_rr.
    kept = np.ones(len(every), bool)
    kept[order[np.cumsum(diagonal[order]) <= negligible]] = False
    along = builder.along(gradient / L)[kept]
    return DualKernel(builder.matrix(kept), kept, along)


def output_rows(problem: Problem) -> Rows:
    """All rows that the roots have."""
    roots = problem.roots()
    if roots is None:
        raise InputError(NOT_CONVEX)
    return Rows.of(roots)


def kernel_builder(problem: Problem, L: Array, rows: Rows) -> Builder:
    """The problem's own, by layers; else by rows, held whole if they fit."""
    own = problem.layer_kernel(L, rows)
    if own is not None:
        return own
    held = rows_fit(len(rows), int((L < LEFT_OUT).sum()))
    return HeldRows(problem, L, rows) if held else StreamedRows(problem, L, rows)


def rows_fit(n_rows: int, n_columns: int) -> bool:
    """Whether the rows fit into memory beside two kernels."""
    return 8.0 * n_rows * (n_columns + 2 * n_rows) <= memory_limit()


class HeldRows:
    """K from all rows at once, A L^-1/2 (n, p): for any function."""

    def __init__(self, problem: Problem, L: Array, rows: Rows) -> None:
        self.root, self.used = np.sqrt(L), np.flatnonzero(L < LEFT_OUT)
        whole = len(self.used) == len(L)
        self.A = np.empty((len(rows), len(self.used)))
        stage("rows", len(rows))
        start = 0
        for block in row_blocks(problem, rows):
            into = self.A[start : start + len(block)]
            np.divide(block, self.root, out=into) if whole else np.divide(
                block[:, self.used], self.root[self.used], out=into
            )
            start += len(block)
            advance(len(block))

    def diagonal(self) -> Array:
        """The diagonal of K."""
        return np.asarray(np.einsum("rp,rp->r", self.A, self.A))

    def matrix(self, kept: "NDArray[np.bool_]") -> Array:
        """K, its lower triangle."""
        A = self.A if kept.all() else self.A[kept]
        K = np.empty((len(A), len(A)))
        add_products(K, A, add=False)
        return K

    def along(self, direction: Array) -> Array:
        """The product of every row with a direction."""
        return self.A @ (direction * self.root)[self.used]


class StreamedRows:
    """K by differentiation, for any function whose rows do not fit into memory."""

    def __init__(self, problem: Problem, L: Array, rows: Rows) -> None:
        self.problem, self.L, self.rows = problem, L, rows

    def diagonal(self) -> Array:
        """The diagonal of K."""
        stage("diagonal", len(self.rows))
        parts = []
        for A in row_blocks(self.problem, self.rows):
            parts.append(np.einsum("rp,rp->r", A, A / self.L))
            advance(len(A))
        return np.concatenate([np.zeros(0), *parts])

    def matrix(self, kept: "NDArray[np.bool_]") -> Array:
        """K, its lower triangle."""
        rows = self.rows[kept]
        K = np.empty((len(rows), len(rows)))
        start = 0
        stage("kernel", len(rows) ** 2)
        for A in row_blocks(self.problem, rows):
            stop = start + len(A)
            # Only examples up to this block's own: the lower triangle is enough.
            K[start:stop, :stop] = row_products(self.problem, A / self.L, rows[:stop])
            advance(stop**2 - start**2)
            start = stop
        return K

    def along(self, direction: Array) -> Array:
        """The product of every row with a direction."""
        return np.asarray(row_products(self.problem, direction[None], self.rows)[0])


class LayerRows:
    """K from a dense network's layers.

    ``rows`` are the problem's, ``layers`` those of the examples that occur in them.
    """

    def __init__(
        self,
        problem: Problem,
        layers: "DenseLayers",
        precisions: list[tuple[float, float]],
        rows: Rows,
    ) -> None:
        self.problem, self.layers, self.whole = problem, layers, rows
        self.precisions = precisions
        few = rows.of_few()[1]
        self.rows = Rows(few.examples, few.coefficients)

    def diagonal(self) -> Array:
        """The diagonal of K."""
        rows = self.rows
        total = np.zeros(len(rows))
        for part in self._parts(rows):
            derivatives = self.layers.derivatives(rows[part])
            for D, a, (w, b) in zip(derivatives, self.layers.inputs, self.precisions, strict=True):
                norms = np.einsum("nd,nd->n", a, a)[rows.examples[part]]
                total[part] += (norms / w + 1 / b) * np.einsum("nh,nh->n", D, D)
            tick()
        return total

    def matrix(self, kept: "NDArray[np.bool_]") -> Array:
        """K, its lower triangle."""
        rows = self.rows[kept]
        n = len(rows)
        K = np.zeros((n, n))
        grams = [
            attended(a.size * len(a), np.matmul, a, a.T) / w + 1 / b
            for a, (w, b) in zip(self.layers.inputs, self.precisions, strict=True)
        ]  # (N, N) each
        derivatives = self.layers.derivatives(rows)
        stage("kernel", n**2)
        for part in parts_of(n, _STROKE):
            upto = slice(0, part.stop)
            for D, gram in zip(derivatives, grams, strict=True):
                between = attended(2.0 * D[part].size * part.stop, np.matmul, D[part], D[upto].T)
                between *= gram[rows.examples[part]].take(rows.examples[upto], axis=1)
                K[part, upto] += between
            advance(part.stop**2 - part.start**2)
        return K

    def along(self, direction: Array) -> Array:
        """The product of every row with a direction."""
        return np.asarray(row_products(self.problem, direction[None], self.whole)[0])

    @staticmethod
    def _parts(rows: Rows) -> Iterator[slice]:
        return parts_of(len(rows), int(np.clip(BLOCK_BYTES // (16 * max(len(rows), 1)), 1, 2_048)))


def parts_of(n: int, size: int) -> Iterator[slice]:
    """Slices of so many at most."""
    return (slice(s, min(s + size, n)) for s in range(0, n, size))


def add_products(
    K: Array,
    A: Array,
    *,
    add: bool = True,
    multiply: Callable[[Array, Array], Array] = np.matmul,
    of: str = "kernel",
) -> None:
    """K += A A', or K = A A', its lower triangle, in blocks that take well under a second."""
    n, p = A.shape
    stage(of, n**2)
    start = 0
    while start < n:
        # 2 b (start + b) p operations of a block: b = 64 at least, for the product's speed.
        room = BLOCK_FLOPS / (2 * max(p, 1))
        size = max(64, int((np.sqrt(start**2 + 4 * room) - start) / 2))
        stop = min(start + size, n)
        block = attended(2.0 * (stop - start) * stop * p, multiply, A[start:stop], A[:stop].T)
        if add:
            K[start:stop, :stop] += block
        else:
            K[start:stop, :stop] = block
        advance(stop**2 - start**2)
        start = stop


def row_blocks(problem: Problem, rows: Rows) -> Iterator[Array]:
    """The rows themselves (b, p), a block at a time."""
    size = problem.rows_at_once()
    for start in range(0, len(rows), size):
        yield problem.rows(rows[start : start + size])


def row_products(problem: Problem, directions: Array, rows: Rows) -> Array:
    """(b, n): the product of each of the directions (b, p) with each row."""
    products = np.empty((len(directions), len(rows)))
    last = int(rows.examples[-1]) + 1 if len(rows) else 0
    size = max(1, BLOCK_BYTES // (8 * 4 * len(directions) * problem.activations))
    first = int(rows.examples[0]) // size * size if len(rows) else 0
    for start in range(first, last, size):
        chosen = slice(start, min(start + size, last))
        low, high = np.searchsorted(rows.examples, (chosen.start, chosen.stop))
        outputs = problem.derivatives(chosen, directions)
        here = rows[low:high]
        at, c = here.examples - start, here.coefficients
        if 8 * len(directions) * c.size <= BLOCK_BYTES:
            products[:, low:high] = np.einsum("brc,rc->br", outputs[:, at], c, optimize=True)
        else:  # an example of so many rows (a sequence) at a time, its outputs not repeated
            for example in np.unique(at):
                own = at == example
                products[:, low:high][:, own] = outputs[:, example] @ c[own].T
        tick()
    return products
