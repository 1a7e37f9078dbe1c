"""Rows of the dual kernel from JAX: by differentiation, or from a dense network's layers.

With a the inputs of a dense layer and D the rows' derivatives at its outputs, K is the sum over
layers of (a_i . a_j/lambda_w + 1/lambda_b) (D_r . D_s).
"""

from collections.abc import Iterator
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np

from noisescale.evidence.curvature.model import Architecture, Model, output_root
from noisescale.evidence.curvature.products import activations, row_blocks
from noisescale.evidence.occam import dual as kernel
from noisescale.evidence.occam.dual import Array, Builder, GenericRows, Rows, stack_roots
from noisescale.training.models import DenseNetwork, LayerParams


class JaxSource:
    """The derivatives of a JAX function."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def n_params(self) -> int:
        """The number of parameters p."""
        return self.model.n_params

    @cached_property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass."""
        return activations(self.model)

    def roots(self) -> Array | None:
        """R (N, k, C) of every example; None if some nll is not convex in its outputs."""
        model, found = self.model, []
        for rows in row_blocks(model, model.n_outputs, "float64"):
            x, y = model.block(rows)
            with jax.enable_x64(True):
                outputs = np.asarray(_outputs(model.architecture, model.w, x))
            root = output_root(model.architecture, outputs, y)
            if root is None:
                return None
            found.append(root)
        return stack_roots(found)

    def rows(self, rows: Rows) -> Array:
        """The rows c' J themselves: (b, p)."""
        model = self.model
        x, _ = model.block(rows.examples)
        with jax.enable_x64(True):
            return np.asarray(_rows(model.architecture, model.w, x, rows.coefficients))

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """Each direction's derivative of these examples' outputs: (b, n, C)."""
        model = self.model
        x, _ = model.block(examples)
        with jax.enable_x64(True):
            return np.asarray(_derivatives(model.architecture, model.w, x, directions))


def builder(model: Model, L: Array) -> Builder:
    """The fast path for a dense network whose arrays have one precision each, or the general."""
    precisions = layer_precisions(model, L)
    if precisions is None:
        return GenericRows(JaxSource(model), L)
    return DenseRows(model, precisions)


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
        size = int(np.clip(kernel.BLOCK_BYTES // (16 * max(len(rows), 1)), 1, 2_048))
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
