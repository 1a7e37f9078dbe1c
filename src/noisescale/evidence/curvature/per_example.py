"""The gradients of single examples: their sums, their slopes along a direction, their products."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.evidence.curvature.model import Architecture, Array, Model, activations
from noisescale.evidence.curvature.products import row_blocks, streamed
from noisescale.evidence.problem import Moments, Precision
from noisescale.training.per_example import blocks, sums

_HELD = 4  # times the activations: what a reverse pass holds, and gradients on their way


def gradient_moments(model: Model, precision: Precision) -> Moments:
    """Sums over per-example gradients, each in ``precision``, added up in float64."""
    apply_fn, likelihood = model.architecture.apply_fn, model.architecture.likelihood
    sq_norms = np.empty(len(model.x))
    total, squares = np.zeros(model.n_params), np.zeros(model.n_params)
    with jax.enable_x64(precision == "float64"):
        params = model.architecture.unflatten(jnp.asarray(model.w, precision))
        for rows in blocks(apply_fn, params, len(model.x), _HELD * activations(model)):
            part = sums(apply_fn, likelihood, params, *model.block(rows, precision))
            sq_norms[rows] = part.sq_norms
            total += _flat(part.gradient)
            squares += _flat(part.squares)
    return Moments(sq_norms, total, squares)


def slopes(model: Model, direction: Array, precision: Precision) -> Array:
    """Each example's gradient times ``direction``: one forward derivative."""
    along = np.empty(len(model.x))
    with jax.enable_x64(precision == "float64"):
        w, v = jnp.asarray(model.w, precision), jnp.asarray(direction, precision)
        for rows in row_blocks(model, 1, precision):
            along[rows] = _slopes(model.architecture, w, *model.block(rows, precision), v)
    return along


def second_moments(model: Model, precision: Precision) -> LinearOperator:
    """sum_i g_i g_i' as products, (p, p)."""
    return streamed(model, _second_moment_products, precision)


def _flat(tree: Any) -> Array:
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(tree)])


@partial(jax.jit, static_argnums=0)
def _slopes(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, v: jax.Array
) -> jax.Array:
    return jnp.asarray(jax.jvp(lambda w: architecture.nll_each(w, x, y), (w,), (v,))[1])


@partial(jax.jit, static_argnums=0)
def _second_moment_products(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, V: jax.Array
) -> jax.Array:
    """sum_i g_i (g_i' v): the slope of every example along v, pulled back."""

    def nll(w: jax.Array) -> jax.Array:
        return architecture.nll_each(w, x, y)

    _, pull_back = jax.vjp(nll, w)
    along = jax.vmap(lambda v: jax.jvp(nll, (w,), (v,))[1])(V)  # (k, n)
    return jax.vmap(lambda s: jnp.asarray(pull_back(s)[0]))(along)
