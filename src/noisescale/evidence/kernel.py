"""The dual form of the Gauss-Newton matrix: a kernel between rows, n x n with n at most N C.

With Lambda_i the Hessian of an example's nll in its outputs and Lambda_i = R_i' R_i, the rows
A = (R_i J_i) give the Gauss-Newton matrix A' A, and for a prior precision L

    |L + A' A|/|L| = |I + K|,    K = A L^-1 A'.

A softmax leaves one row in C out (its Lambda has rank C - 1), and rows whose diagonal is negligible
add nothing. K is built block by block: A is never held whole.

- Any function: rows by reverse differentiation, then one forward derivative along each through the
  whole training set, which yields a row of K.
- A :class:`DenseNetwork`: with a the inputs of a layer and D the rows' derivatives at its outputs,
  K is the sum over layers of (a_i . a_j/lambda_w + 1/lambda_b) (D_r . D_s).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.evidence.curvature import Architecture, Model, output_root
from noisescale.evidence.products import activations, row_blocks
from noisescale.training.models import DenseNetwork, LayerParams

Array = NDArray[np.float64]

_BLOCK_BYTES = 1 << 28  # of rows or of their derivatives held at once
NEGLIGIBLE = 1e-10  # nats that leaving rows out may change the log-determinant by, in all


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


def build_kernel(model: Model, L: Array, gradient: Array) -> Kernel | None:
    """K for this prior; None if the nll is not convex in the outputs."""
    every = output_rows(model)
    if every is None:
        return None
    diagonal = _builder(model, L).diagonal(every)
    order = np.argsort(diagonal)
    # |I + K| exceeds that of a part of it by at most the product of the other 1 + K_rr.
    kept = np.ones(len(every), bool)
    kept[order[np.cumsum(diagonal[order]) <= NEGLIGIBLE]] = False
    rows = every[kept]
    along = row_products(model, (gradient / L)[None], rows)[0]
    return Kernel(kernel_of_rows(model, L, rows), rows, along)


def kernel_of_rows(model: Model, L: Array, rows: Rows) -> Array:
    """K between these rows, its lower triangle."""
    return _builder(model, L).matrix(rows)


def _builder(model: Model, L: Array) -> "DenseRows | GenericRows":
    precisions = layer_precisions(model, L)
    return GenericRows(model, L) if precisions is None else DenseRows(model, precisions)


def output_rows(model: Model) -> Rows | None:
    """All rows that a root of each example's Lambda has; None if some Lambda is not positive."""
    roots = []
    for rows in row_blocks(model, model.n_outputs, "float64"):
        x, y = model.block(rows)
        with jax.enable_x64(True):
            outputs = np.asarray(_outputs(model.architecture, model.w, x))
        root = output_root(model.architecture, outputs, y)  # (n, k, C)
        if root is None:
            return None
        roots.append(root)
    rank = max(root.shape[1] for root in roots)
    padded = [np.pad(root, ((0, 0), (rank - root.shape[1], 0), (0, 0))) for root in roots]
    coefficients = np.concatenate(padded)  # (N, k, C)
    examples = np.repeat(np.arange(len(coefficients)), rank)
    return Rows(examples, coefficients.reshape(len(examples), -1))


class GenericRows:
    """Rows of K by differentiation, for any function."""

    def __init__(self, model: Model, L: Array) -> None:
        self.model, self.L = model, L
        self.size = int(np.clip(_BLOCK_BYTES // (8 * model.n_params), 1, 512))

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        return np.concatenate([
            np.einsum("rp,rp->r", A, A / self.L) for A in self.blocks(rows)
        ])  # fmt: skip

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        K = np.empty((len(rows), len(rows)))
        start = 0
        for A in self.blocks(rows):
            stop = start + len(A)
            # Only examples up to this block's own: the lower triangle is enough.
            K[start:stop, :stop] = row_products(self.model, A / self.L, rows[:stop])
            start = stop
        return K

    def blocks(self, rows: Rows) -> Iterator[Array]:
        """The rows themselves (b, p), a block at a time."""
        model = self.model
        for start in range(0, len(rows), self.size):
            part = rows[start : start + self.size]
            x, _ = model.block(part.examples)
            with jax.enable_x64(True):
                yield np.asarray(_rows(model.architecture, model.w, x, part.coefficients))


class DenseRows:
    """K from a dense network's layers."""

    def __init__(self, model: Model, precisions: list[tuple[float, float]]) -> None:
        self.model, self.precisions = model, precisions
        x, _ = model.block(slice(None))
        with jax.enable_x64(True):
            params = model.architecture.unflatten(jnp.asarray(model.w))
            inputs, active = _forward(params, jnp.asarray(x))
            self.inputs = [np.asarray(a) for a in inputs]
            self.weights = [np.asarray(layer["w"]) for layer in params]
            self.active = [np.asarray(a) for a in active]

    def derivatives(self, rows: Rows) -> list[Array]:
        """Each layer's D (n, width): the rows' derivatives at its outputs, last layer first."""
        D = [rows.coefficients]
        for weights, active in zip(self.weights[:0:-1], self.active[::-1], strict=True):
            D.append((D[-1] @ weights.T) * active[rows.examples])
        return D

    def diagonal(self, rows: Rows) -> Array:
        """The diagonal of K."""
        total = np.zeros(len(rows))
        for part in self._parts(rows):
            for D, a, (w, b) in self._layers(rows[part]):
                norms = np.einsum("nd,nd->n", a, a)[rows.examples[part]]
                total[part] += (norms / w + 1 / b) * np.einsum("nh,nh->n", D, D)
        return total

    def matrix(self, rows: Rows) -> Array:
        """K, its lower triangle."""
        n = len(rows)
        K = np.zeros((n, n))
        grams = [a @ a.T for a in self.inputs[::-1]]  # (N, N) each, last layer first
        derivatives = self.derivatives(rows)
        for part in self._parts(rows):
            upto = slice(0, part.stop)
            for D, gram, (w, b) in zip(derivatives, grams, self.precisions[::-1], strict=True):
                between = gram[rows.examples[part]][:, rows.examples[upto]]
                between /= w
                between += 1 / b
                between *= D[part] @ D[upto].T
                K[part, upto] += between
        return K

    def _layers(self, rows: Rows) -> Iterator[tuple[Array, Array, tuple[float, float]]]:
        return zip(self.derivatives(rows), self.inputs[::-1], self.precisions[::-1], strict=True)

    @staticmethod
    def _parts(rows: Rows) -> Iterator[slice]:
        size = int(np.clip(_BLOCK_BYTES // (16 * max(len(rows), 1)), 1, 2_048))
        return (slice(s, min(s + size, len(rows))) for s in range(0, len(rows), size))


def layer_precisions(model: Model, L: Array) -> list[tuple[float, float]] | None:
    """(weights', biases') precision of each layer, if it is a dense network with such a prior."""
    if type(model.architecture.apply_fn) is not DenseNetwork:
        return None
    found, start = [], 0
    for shape in model.architecture.shapes:  # of b, w, b, w, ...: the order of a layer's leaves
        part = L[start : start + int(np.prod(shape))]
        if np.ptp(part) != 0:
            return None
        found.append(float(part[0]))
        start += len(part)
    return [(w, b) for b, w in zip(found[::2], found[1::2], strict=True)]


def row_products(model: Model, directions: Array, rows: Rows) -> Array:
    """(b, n): the product of each of the directions (b, p) with each row."""
    found = np.empty((len(directions), len(rows)))
    last = int(rows.examples[-1]) + 1 if len(rows) else 0
    size = max(1, _BLOCK_BYTES // (8 * 4 * len(directions) * activations(model)))
    for start in range(0, last, size):
        chosen = slice(start, min(start + size, last))
        low, high = np.searchsorted(rows.examples, (chosen.start, chosen.stop))
        x, _ = model.block(chosen)
        with jax.enable_x64(True):
            outputs = np.asarray(_derivatives(model.architecture, model.w, x, directions))
        at = rows.examples[low:high] - start
        found[:, low:high] = np.einsum(
            "brc,rc->br", outputs[:, at], rows.coefficients[low:high], optimize=True
        )
    return found


def _forward(params: LayerParams, x: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
    """Every layer's inputs, and where each hidden layer is active."""
    inputs, active = [x], []
    for layer in params[:-1]:
        z = inputs[-1] @ layer["w"] + layer["b"]
        active.append(z > 0)
        inputs.append(jax.nn.relu(z))
    return inputs, active


@partial(jax.jit, static_argnums=0)
def _outputs(architecture: Architecture, w: jax.Array, x: jax.Array) -> jax.Array:
    return architecture.outputs(w, x)


@partial(jax.jit, static_argnums=0)
def _rows(
    architecture: Architecture, w: jax.Array, x: jax.Array, coefficients: jax.Array
) -> jax.Array:
    """c' J for each pair of an example and its c: (b, p)."""

    def one(x: jax.Array, c: jax.Array) -> jax.Array:
        return jnp.asarray(jax.grad(lambda w: architecture.outputs(w, x[None])[0] @ c)(w))

    return jax.vmap(one)(x, coefficients)


@partial(jax.jit, static_argnums=0)
def _derivatives(
    architecture: Architecture, w: jax.Array, x: jax.Array, directions: jax.Array
) -> jax.Array:
    """Each direction's derivative of all outputs: (b, n, C)."""

    def one(v: jax.Array) -> jax.Array:
        return jnp.asarray(jax.jvp(lambda w: architecture.outputs(w, x), (w,), (v,))[1])

    return jax.vmap(one)(directions)
