"""The generalised Gauss-Newton matrix sum_i J_i' Lambda_i J_i of the summed nll.

J_i is the Jacobian of example i's outputs, Lambda_i the Hessian of nll_i in them. It is the part of
the Hessian that is curved in the outputs: never negative for a convex nll, and the Hessian itself
for a linear model.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.evidence.curvature.model import Architecture, Array, Model
from noisescale.evidence.curvature.roots import (
    pulled_back,
    sequence_root,
    softmax_root,
    symmetric_root,
)
from noisescale.evidence.pace import advance, attended, stage


@partial(jax.jit, static_argnums=0)
def ggn_products(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, V: jax.Array
) -> jax.Array:
    """The product with each row of ``V``: forward, the loss's curvature, and back."""

    def outputs(w: jax.Array) -> jax.Array:
        return architecture.outputs(w, x)

    z, pull_back = jax.vjp(outputs, w)
    slope = jax.grad(lambda z: jnp.sum(architecture.likelihood.nll(z, y)))

    def one(v: jax.Array) -> jax.Array:
        Jv = jax.jvp(outputs, (w,), (v,))[1]  # (n, C)
        (product,) = pull_back(jax.jvp(slope, (z,), (Jv,))[1])
        return jnp.asarray(product)

    return jax.vmap(one)(V)


def dense_ggn(model: Model) -> tuple[Array, bool]:
    """The Gauss-Newton matrix (p, p), and whether it is known to have no negative eigenvalue."""
    H = np.zeros((model.n_params, model.n_params))
    convex = True
    stage("curvature", len(model.x))
    for outputs, J, y in output_derivatives(model):
        root = output_root(model.architecture, outputs, y)
        if root is None:
            convex = False
            Lambda = output_hessians(model.architecture, outputs, y)
            flat = J.reshape(-1, model.n_params)  # (n C, p)
            H += flat.T @ (Lambda @ J).reshape(-1, model.n_params)
        else:
            A = pulled_back(root, J)
            # A product with itself takes half the arithmetic.
            H += attended(A.size * model.n_params, np.matmul, A.T, A)
        advance(len(y))
    return np.asarray((H + H.T) / 2), convex


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
def jacobian_rows(
    architecture: Architecture, w: jax.Array, x: jax.Array, coefficients: jax.Array
) -> jax.Array:
    """c' J for each pair of an example and its c: (b, p)."""

    def one(x: jax.Array, c: jax.Array) -> jax.Array:
        return jnp.asarray(jax.grad(lambda w: architecture.outputs(w, x[None])[0] @ c)(w))

    return jax.vmap(one)(x, coefficients)


@partial(jax.jit, static_argnums=0)
def jacobian_products(
    architecture: Architecture, w: jax.Array, x: jax.Array, V: jax.Array
) -> jax.Array:
    """The derivative of all outputs along each row of ``V``: (b, n, C)."""

    def one(v: jax.Array) -> jax.Array:
        return jnp.asarray(jax.jvp(lambda w: architecture.outputs(w, x), (w,), (v,))[1])

    return jax.vmap(one)(V)


def output_root(architecture: Architecture, outputs: Array, y: NDArray[Any]) -> Array | None:
    """R (n, k, C) with R' R the Hessian of each nll in its outputs; None if some is not convex.

    Of sequences (n, T, k, C): that of each token in its own outputs.
    """
    likelihood = architecture.likelihood
    if likelihood.has_classes and likelihood.name == "categorical":
        if y.ndim == 2:
            return sequence_root(outputs.reshape(*y.shape, -1), y != likelihood.ignore_index)
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
