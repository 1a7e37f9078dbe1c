"""The kernel K = A L^-1 A' between rows A = (R_i J_i) of the Gauss-Newton matrix's root.

Built block by block, A never held whole. By differentiation for any function: a row by reverse,
then one forward derivative along it through the training set, which yields a row of K. From the
layers of a dense network, with a their inputs and D the rows' derivatives at their outputs, as the
sum of (a_i . a_j/lambda_w + 1/lambda_b) (D_r . D_s).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from noisescale.errors import InputError
from noisescale.evidence.occam.term import NOT_CONVEX, Array, check_curvature
from noisescale.evidence.problem import Problem, Rows

if TYPE_CHECKING:
    from noisescale.evidence.curvature.layers import DenseLayers

BLOCK_BYTES = 1 << 28  # of rows or of their derivatives held at once
NEGLIGIBLE = 1e-9  # nats that leaving rows out may change the log-determinant by, in all


@dataclass(frozen=True)
class DualKernel:
    """K in units of the prior, its rows, and each row's product with L^-1 gradient."""

    matrix: Array  # (n, n), the lower triangle filled
    rows: Rows
    along_gradient: Array  # (n,)


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
    builder = kernel_builder(problem, L)
    diagonal = check_curvature(builder.diagonal(every))
    order = np.argsort(diagonal)
    # |I + K| exceeds that of a part of it by at most the product of the other 1 + K_rr.
    kept = np.ones(len(every), bool)
    kept[order[np.cumsum(diagonal[order]) <= negligible]] = False
    rows = every[kept]
    along = row_products(problem, (gradient / L)[None], rows)[0]
    return DualKernel(builder.matrix(rows), rows, along)


def output_rows(problem: Problem) -> Rows:
    """All rows that the roots have."""
    roots = problem.roots()
    if roots is None:
        raise InputError(NOT_CONVEX)
    N, k, C = roots.shape
    return Rows(np.repeat(np.arange(N), k), roots.reshape(N * k, C))


class Builder(Protocol):
    """K for one prior, between given rows."""

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        ...

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        ...


def kernel_builder(problem: Problem, L: Array) -> Builder:
    """From a dense network's layers if each of its arrays has one precision, else generic."""
    layers = problem.dense_layers()
    precisions = None if layers is None else layers.precisions(L)
    if layers is None or precisions is None:
        return GenericRows(problem, L)
    return LayerRows(layers, precisions)


class GenericRows:
    """K by differentiation, for any function."""

    def __init__(self, problem: Problem, L: Array) -> None:
        self.problem, self.L = problem, L

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        parts = [np.einsum("rp,rp->r", A, A / self.L) for A in row_blocks(self.problem, rows)]
        return np.concatenate([np.zeros(0), *parts])

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        K = np.empty((len(rows), len(rows)))
        start = 0
        for A in row_blocks(self.problem, rows):
            stop = start + len(A)
            # Only examples up to this block's own: the lower triangle is enough.
            K[start:stop, :stop] = row_products(self.problem, A / self.L, rows[:stop])
            start = stop
        return K


class LayerRows:
    """K from a dense network's layers."""

    def __init__(self, layers: "DenseLayers", precisions: list[tuple[float, float]]) -> None:
        self.layers, self.precisions = layers, precisions

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        total = np.zeros(len(rows))
        for part in self._parts(rows):
            derivatives = self.layers.derivatives(rows[part])
            for D, a, (w, b) in zip(derivatives, self.layers.inputs, self.precisions, strict=True):
                norms = np.einsum("nd,nd->n", a, a)[rows.examples[part]]
                total[part] += (norms / w + 1 / b) * np.einsum("nh,nh->n", D, D)
        return total

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        n = len(rows)
        K = np.zeros((n, n))
        grams = [a @ a.T for a in self.layers.inputs]  # (N, N) each
        derivatives = self.layers.derivatives(rows)
        for part in self._parts(rows):
            upto = slice(0, part.stop)
            for D, gram, (w, b) in zip(derivatives, grams, self.precisions, strict=True):
                between = gram[rows.examples[part]][:, rows.examples[upto]]
                between /= w
                between += 1 / b
                between *= D[part] @ D[upto].T
                K[part, upto] += between
        return K

    @staticmethod
    def _parts(rows: Rows) -> Iterator[slice]:
        size = int(np.clip(BLOCK_BYTES // (16 * max(len(rows), 1)), 1, 2_048))
        return (slice(s, min(s + size, len(rows))) for s in range(0, len(rows), size))


def row_blocks(problem: Problem, rows: Rows) -> Iterator[Array]:
    """The rows themselves (b, p), a block at a time."""
    size = int(np.clip(BLOCK_BYTES // (8 * len(problem.w)), 1, 512))
    for start in range(0, len(rows), size):
        yield problem.rows(rows[start : start + size])


def row_products(problem: Problem, directions: Array, rows: Rows) -> Array:
    """(b, n): the product of each of the directions (b, p) with each row."""
    products = np.empty((len(directions), len(rows)))
    last = int(rows.examples[-1]) + 1 if len(rows) else 0
    size = max(1, BLOCK_BYTES // (8 * 4 * len(directions) * problem.activations))
    for start in range(0, last, size):
        chosen = slice(start, min(start + size, last))
        low, high = np.searchsorted(rows.examples, (chosen.start, chosen.stop))
        outputs = problem.derivatives(chosen, directions)
        at = rows.examples[low:high] - start
        products[:, low:high] = np.einsum(
            "brc,rc->br", outputs[:, at], rows.coefficients[low:high], optimize=True
        )
    return products
