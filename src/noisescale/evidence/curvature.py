"""Curvature of the summed negative log-likelihood, without the prior, in float64.

The Hessian is sum_i d2 nll_i / dw2. The generalised Gauss-Newton matrix keeps the part of it that
is curved in the outputs, sum_i J_i' Lambda_i J_i with J_i the Jacobian of the outputs and Lambda_i
the Hessian of nll_i in them; for a convex nll it has no negative eigenvalue, and for a linear model
it is the Hessian.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError
from noisescale.likelihood import Likelihood

Array = NDArray[np.float64]

_BLOCK_BYTES = 1 << 28  # of Jacobian held at once


@dataclass(frozen=True)
class Architecture:
    """What a compiled program depends on: the function, the likelihood, the params' structure.

    Hashable, so that evidences of the same model at other points or priors compile nothing again.
    """

    apply_fn: Callable[[Any, jax.Array], jax.Array]
    likelihood: Likelihood
    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    def unflatten(self, w: jax.Array) -> Any:
        """Params from their flat vector."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = jnp.split(w, np.cumsum(sizes)[:-1].tolist())
        leaves = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)

    def outputs(self, w: Any, x: Any) -> jax.Array:
        """Outputs (n, C); a single output an example may come without its axis."""
        return self.apply_fn(self.unflatten(w), x).reshape(x.shape[0], -1)

    def nll_sum(self, w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        """The summed negative log-likelihood."""
        return jnp.sum(self.likelihood.nll(self.outputs(w, x), y))


@dataclass(frozen=True, eq=False)
class Model:
    """A model at a point: its architecture, flat float64 parameters, and data."""

    architecture: Architecture
    w: Array  # (p,)
    x: NDArray[Any]
    y: NDArray[Any]

    @classmethod
    def at(
        cls,
        apply_fn: Callable[[Any, jax.Array], jax.Array],
        params: Any,
        x: NDArray[Any],
        y: NDArray[Any],
        likelihood: Likelihood,
    ) -> "Model":
        """Flatten ``params`` in float64."""
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params)]
        shapes = tuple(leaf.shape for leaf in leaves)
        architecture = Architecture(apply_fn, likelihood, jax.tree.structure(params), shapes)
        return cls(architecture, np.concatenate([leaf.ravel() for leaf in leaves]), x, y)

    @property
    def n_params(self) -> int:
        """The number of parameters p."""
        return len(self.w)

    @property
    def n_outputs(self) -> int:
        """Outputs an example, C."""
        with jax.enable_x64(True):
            return int(jax.eval_shape(self.architecture.outputs, self.w, self.x[:1]).shape[1])

    def blocks(self, x: NDArray[Any]) -> Iterator[slice]:
        """Rows of ``x`` whose Jacobian fits into a block of memory."""
        rows = max(1, _BLOCK_BYTES // (8 * self.n_outputs * self.n_params))
        return (slice(start, start + rows) for start in range(0, len(x), rows))


def nll_and_gradient(model: Model) -> tuple[float, Array]:
    """The summed nll and its gradient, both checked to be finite."""
    with jax.enable_x64(True):
        value, gradient = _value_and_gradient(model.architecture, model.w, model.x, model.y)
        if not (np.isfinite(value) and np.isfinite(np.asarray(gradient)).all()):
            raise InputError(
                "the model's outputs or gradients are not finite at these params: "
                "the evidence needs a point where they are."
            )
        return float(value), np.asarray(gradient)


def outputs_and_jacobian(model: Model, x: NDArray[Any]) -> Iterator[tuple[Array, Array]]:
    """For blocks of inputs: outputs (n, C) and their Jacobian (n, C, p)."""
    for rows in model.blocks(x):
        with jax.enable_x64(True):
            outputs, J = _jacobians(model.architecture, model.w, x[rows])
        yield np.asarray(outputs), np.asarray(J)


def output_derivatives(model: Model) -> Iterator[tuple[Array, Array]]:
    """For blocks of examples: Jacobian (n, C, p) of outputs, Hessian (n, C, C) of the nll."""
    for rows in model.blocks(model.x):
        with jax.enable_x64(True):
            outputs, J = _jacobians(model.architecture, model.w, model.x[rows])
            Lambda = _output_hessians(model.architecture, outputs, model.y[rows])
        yield np.asarray(J), np.asarray(Lambda)


@partial(jax.jit, static_argnums=0)
def _value_and_gradient(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(architecture.nll_sum)(w, x, y)


@partial(jax.jit, static_argnums=0)
def _jacobians(
    architecture: Architecture, w: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    def one(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def outputs(w: jax.Array) -> jax.Array:
            return architecture.outputs(w, x[None])[0]

        return outputs(w), jax.jacrev(outputs)(w)

    return jax.vmap(one)(x)


@partial(jax.jit, static_argnums=0)
def _output_hessians(architecture: Architecture, outputs: jax.Array, y: jax.Array) -> jax.Array:
    def nll(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return architecture.likelihood.nll(outputs[None], y[None])[0]

    return jnp.asarray(jax.vmap(jax.hessian(nll))(outputs, y))


@partial(jax.jit, static_argnums=0)
def _hessian_products(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, directions: jax.Array
) -> jax.Array:
    gradient = jax.grad(architecture.nll_sum)
    columns = jax.vmap(lambda v: jax.jvp(lambda w: gradient(w, x, y), (w,), (v,))[1])(directions)
    return jnp.asarray(columns)


def dense_ggn(model: Model) -> tuple[Array, bool]:
    """The Gauss-Newton matrix (p, p), and whether it is known to have no negative eigenvalue."""
    H = np.zeros((model.n_params, model.n_params))
    convex = True
    for J, Lambda in output_derivatives(model):
        root = _symmetric_root(Lambda)
        if root is None:
            convex = False
            flat = J.reshape(-1, model.n_params)  # (n C, p)
            H += flat.T @ (Lambda @ J).reshape(-1, model.n_params)
        else:
            A = (root @ J).reshape(-1, model.n_params)
            H += A.T @ A  # a product with itself takes half the arithmetic
    return np.asarray((H + H.T) / 2), convex


def dense_hessian(model: Model) -> Array:
    """The Hessian (p, p), a block of columns at a time."""
    p = model.n_params
    columns = max(1, min(p, _BLOCK_BYTES // (8 * max(p, model.x.size))))

    H = np.empty((p, p))
    with jax.enable_x64(True):
        for start in range(0, p, columns):
            stop = min(p, start + columns)
            directions = np.eye(stop - start, p, start)
            H[start:stop] = _hessian_products(
                model.architecture, model.w, model.x, model.y, directions
            )
    return np.asarray((H + H.T) / 2)


def ggn_root(model: Model) -> Array:
    """A matrix A (N C, p) with A' A the Gauss-Newton matrix."""
    parts = []
    for J, Lambda in output_derivatives(model):
        root = _symmetric_root(Lambda)
        if root is None:
            raise InputError(
                "the negative log-likelihood is not convex in the outputs, so its Gauss-Newton "
                "matrix has no square root: use method='dense'."
            )
        parts.append((root @ J).reshape(-1, model.n_params))
    return np.concatenate(parts)


def _symmetric_root(Lambda: Array) -> Array | None:
    """R (n, k, C) with R' R = Lambda, k the largest rank that occurs; None if not convex.

    A softmax's Hessian has rank C - 1 at most, so one row in C is saved.
    """
    values, vectors = np.linalg.eigh(Lambda)  # (n, C) ascending, (n, C, C)
    if values.min() < -1e-10 * max(values.max(), 1e-300):
        return None
    needed = np.any(values > 1e-15 * np.abs(values).max(), axis=0)
    root = np.sqrt(np.maximum(values, 0))[:, :, None] * np.swapaxes(vectors, 1, 2)
    return np.asarray(root[:, needed])
