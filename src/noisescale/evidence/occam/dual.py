"""The dual form of the Gauss-Newton matrix: a kernel between rows, n x n with n at most N C.

With Lambda_i the Hessian of an example's nll in its outputs and Lambda_i = R_i' R_i, the rows
A = (R_i J_i) give the Gauss-Newton matrix A' A, and for a prior precision L

    |L + A' A|/|L| = |I + K|,    K = A L^-1 A'.

A softmax leaves one row in C out (its Lambda has rank C - 1), and rows whose diagonal is negligible
add nothing. K is built block by block, A is never held whole: rows by reverse differentiation, then
one forward derivative along each through the training set, which yields a row of K.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BLOCK_BYTES = 1 << 28  # of rows or of their derivatives held at once
NEGLIGIBLE = 1e-9  # nats that leaving rows out may change the log-determinant by, in all


@dataclass(frozen=True)
class Rows:
    """Rows of A: the example of each, and what multiplies its outputs' Jacobian."""

    examples: NDArray[np.int64]  # (n,), ascending
    coefficients: Array  # (n, C)

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, chosen: Any) -> "Rows":
        return Rows(self.examples[chosen], self.coefficients[chosen])


@dataclass(frozen=True)
class Kernel:
    """K in units of the prior, its rows, and each row's product with L^-1 gradient."""

    matrix: Array  # (n, n), the lower triangle filled
    rows: Rows
    along_gradient: Array  # (n,)


class Source(Protocol):
    """A model's derivatives in float64, by whatever framework."""

    @property
    def n_params(self) -> int:
        """The number of parameters p."""
        ...

    @property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass."""
        ...

    def roots(self) -> Array | None:
        """R (N, k, C) of every example; None if some nll is not convex in its outputs."""
        ...

    def rows(self, rows: Rows) -> Array:
        """The rows c' J themselves: (b, p)."""
        ...

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """Each direction's derivative of these examples' outputs: (b, n, C)."""
        ...


class Builder(Protocol):
    """K for one prior, between given rows."""

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        ...

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        ...


def build_kernel(
    source: Source, builder: Builder, L: Array, gradient: Array, negligible: float = NEGLIGIBLE
) -> Kernel | None:
    """K for this prior; None if the nll is not convex in the outputs.

    Rows are left out that together change the log-determinant by less than ``negligible`` nats.
    """
    every = output_rows(source)
    if every is None:
        return None
    diagonal = builder.diagonal(every)
    order = np.argsort(diagonal)
    # |I + K| exceeds that of a part of it by at most the product of the other 1 + K_rr.
    kept = np.ones(len(every), bool)
    kept[order[np.cumsum(diagonal[order]) <= negligible]] = False
    rows = every[kept]
    along = row_products(source, (gradient / L)[None], rows)[0]
    return Kernel(builder.matrix(rows), rows, along)


def output_rows(source: Source) -> Rows | None:
    """All rows that the roots have."""
    roots = source.roots()
    if roots is None:
        return None
    N, k, C = roots.shape
    return Rows(np.repeat(np.arange(N), k), roots.reshape(N * k, C))


class GenericRows:
    """K by differentiation, for any function."""

    def __init__(self, source: Source, L: Array) -> None:
        self.source, self.L = source, L
        self.size = int(np.clip(BLOCK_BYTES // (8 * source.n_params), 1, 512))

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        parts = [np.einsum("rp,rp->r", A, A / self.L) for A in self.blocks(rows)]
        return np.concatenate(parts)

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        K = np.empty((len(rows), len(rows)))
        start = 0
        for A in self.blocks(rows):
            stop = start + len(A)
            # Only examples up to this block's own: the lower triangle is enough.
            K[start:stop, :stop] = row_products(self.source, A / self.L, rows[:stop])
            start = stop
        return K

    def blocks(self, rows: Rows) -> Iterator[Array]:
        """The rows themselves (b, p), a block at a time."""
        for start in range(0, len(rows), self.size):
            yield self.source.rows(rows[start : start + self.size])


def row_products(source: Source, directions: Array, rows: Rows) -> Array:
    """(b, n): the product of each of the directions (b, p) with each row."""
    found = np.empty((len(directions), len(rows)))
    last = int(rows.examples[-1]) + 1 if len(rows) else 0
    size = max(1, BLOCK_BYTES // (8 * 4 * len(directions) * source.activations))
    for start in range(0, last, size):
        chosen = slice(start, min(start + size, last))
        low, high = np.searchsorted(rows.examples, (chosen.start, chosen.stop))
        outputs = source.derivatives(chosen, directions)
        at = rows.examples[low:high] - start
        found[:, low:high] = np.einsum(
            "brc,rc->br", outputs[:, at], rows.coefficients[low:high], optimize=True
        )
    return found


def stack_roots(roots: list[Array]) -> Array:
    """Blocks of roots as one array; a smaller rank is filled up with zeros."""
    rank = max(root.shape[1] for root in roots)
    padded = [np.pad(root, ((0, 0), (rank - root.shape[1], 0), (0, 0))) for root in roots]
    return np.concatenate(padded)
