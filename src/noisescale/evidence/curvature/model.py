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

from noisescale.likelihood import LIKELIHOODS, Likelihood

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

    def block(self, rows: Any, precision: str = "float64") -> tuple[NDArray[Any], NDArray[Any]]:
        """Some examples, their real numbers in this precision."""
        x, y = self.x[rows], self.y[rows]
        return (
            x.astype(precision, copy=False) if x.dtype.kind == "f" else x,
            y.astype(precision, copy=False) if y.dtype.kind == "f" else y,
        )

    def blocks(self, x: NDArray[Any]) -> Iterator[slice]:
        """Rows of ``x`` whose Jacobian fits into a block of memory."""
        rows = max(1, _BLOCK_BYTES // (8 * self.n_outputs * self.n_params))
        return (slice(start, start + rows) for start in range(0, len(x), rows))


def outputs_and_jacobian(model: Model, x: NDArray[Any]) -> Iterator[tuple[Array, Array]]:
    """For blocks of inputs: outputs (n, C) and their Jacobian (n, C, p)."""
    for rows in model.blocks(x):
        with jax.enable_x64(True):
            outputs, J = _jacobians(model.architecture, model.w, x[rows])
        yield np.asarray(outputs), np.asarray(J)


def output_derivatives(model: Model) -> Iterator[tuple[Array, Array, NDArray[Any]]]:
    """For blocks of examples: outputs (n, C), their Jacobian (n, C, p), and the targets."""
    for rows in model.blocks(model.x):
        x, y = model.block(rows)
        with jax.enable_x64(True):
            outputs, J = _jacobians(model.architecture, model.w, x)
        yield np.asarray(outputs), np.asarray(J), y


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
def hessian_products(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, directions: jax.Array
) -> jax.Array:
    """The Hessian's product with each of the directions (k, p)."""
    gradient = jax.grad(architecture.nll_sum)
    columns = jax.vmap(lambda v: jax.jvp(lambda w: gradient(w, x, y), (w,), (v,))[1])(directions)
    return jnp.asarray(columns)


def dense_ggn(model: Model) -> tuple[Array, bool]:
    """The Gauss-Newton matrix (p, p), and whether it is known to have no negative eigenvalue."""
    H = np.zeros((model.n_params, model.n_params))
    convex = True
    for outputs, J, y in output_derivatives(model):
        root = output_root(model.architecture, outputs, y)
        if root is None:
            convex = False
            Lambda = output_hessians(model.architecture, outputs, y)
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
    x, y = model.block(slice(None))
    with jax.enable_x64(True):
        for start in range(0, p, columns):
            stop = min(p, start + columns)
            directions = np.eye(stop - start, p, start)
            H[start:stop] = hessian_products(model.architecture, model.w, x, y, directions)
    return np.asarray((H + H.T) / 2)


def ggn_root(model: Model) -> Array | None:
    """A matrix A (n, p) with A' A the Gauss-Newton matrix; None if the nll is not convex."""
    parts = []
    for outputs, J, y in output_derivatives(model):
        root = output_root(model.architecture, outputs, y)
        if root is None:
            return None
        parts.append((root @ J).reshape(-1, model.n_params))
    return np.concatenate(parts)


def output_root(architecture: Architecture, outputs: Array, y: NDArray[Any]) -> Array | None:
    """R (n, k, C) with R' R the Hessian of each nll in its outputs; None if some is not convex."""
    if architecture.likelihood is LIKELIHOODS["categorical"]:
        return softmax_root(outputs)
    return symmetric_root(output_hessians(architecture, outputs, y))


def output_hessians(architecture: Architecture, outputs: Array, y: NDArray[Any]) -> Array:
    """The Hessian (n, C, C) of each example's nll in its outputs."""
    with jax.enable_x64(True):
        return np.asarray(_output_hessians(architecture, outputs, y))


@partial(jax.jit, static_argnums=0)
def _output_hessians(architecture: Architecture, outputs: jax.Array, y: jax.Array) -> jax.Array:
    def nll(outputs: jax.Array, y: jax.Array) -> jax.Array:
        return architecture.likelihood.nll(outputs[None], y[None])[0]

    return jnp.asarray(jax.vmap(jax.hessian(nll))(outputs, y))


def softmax_root(logits: Array) -> Array:
    """The root of diag(p) - p p', which has rank C - 1, in full relative accuracy.

    With t the likeliest class, q the other probabilities, s = sqrt(q): in logits relative to t's it
    is diag(s) (I - s s') diag(s), and I - s s' = (I - s s'/(1 + sqrt(p_t)))^2. No difference of
    nearly equal numbers occurs, however certain the model is.
    """
    n, C = logits.shape
    order = np.argsort(-logits, axis=1, kind="stable")  # the likeliest class first
    z = np.take_along_axis(logits, order, axis=1)
    weights = np.exp(z - z[:, :1])
    p = weights / weights.sum(axis=1, keepdims=True)
    s = np.sqrt(p[:, 1:])  # (n, C - 1)
    M = np.eye(C - 1) - s[:, :, None] * s[:, None, :] / (1 + np.sqrt(p[:, :1, None]))
    relative = M * s[:, None, :]  # (n, C - 1, C - 1), acting on z_c - z_t
    root = np.zeros((n, C - 1, C))
    np.put_along_axis(root, np.broadcast_to(order[:, None, 1:], relative.shape), relative, axis=2)
    np.put_along_axis(
        root,
        np.broadcast_to(order[:, None, :1], (n, C - 1, 1)),
        -relative.sum(axis=2, keepdims=True),
        axis=2,
    )
    return root


def symmetric_root(Lambda: Array) -> Array | None:
    """R (n, k, C) with R' R = Lambda, k the largest rank that occurs; None if not convex."""
    values, vectors = np.linalg.eigh(Lambda)  # (n, C) ascending, (n, C, C)
    if values.min() < -1e-10 * max(values.max(), 1e-300):
        return None
    needed = np.any(values > 1e-15 * np.abs(values).max(), axis=0)
    root = np.sqrt(np.maximum(values, 0))[:, :, None] * np.swapaxes(vectors, 1, 2)
    return np.asarray(root[:, needed])
