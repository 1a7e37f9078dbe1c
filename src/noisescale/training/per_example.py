"""Sums over per-example gradients, block by block, without ever holding N x p numbers.

For a :class:`DenseNetwork` the gradient of one example is an outer product in every layer, so its
norm and the sum of its squared entries follow from the layer's inputs a and the errors d at its
outputs: |a|^2 |d|^2 and (a^2)'(d^2). Any other function is differentiated example by example.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.likelihood import Likelihood
from noisescale.training.dense import as_dense, gradient_factors
from noisescale.training.models import LayerParams

ApplyFn = Callable[[Any, jax.Array], jax.Array]

_BLOCK_BYTES = 1 << 27  # of gradients or activations held at once


class Sums(NamedTuple):
    """Over a block: each example's squared norm, the summed gradient, the summed squares."""

    sq_norms: jax.Array  # (n,)
    gradient: Any  # as params
    squares: Any  # as params


def blocks(apply_fn: ApplyFn, params: Any, n_examples: int, numbers: int) -> Iterator[slice]:
    """Rows that fit into a block of memory together, of so many numbers beside the gradient."""
    n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    network = as_dense(apply_fn)
    width = n_params + numbers if network is None else 3 * sum(network.widths)
    rows = int(np.clip(_BLOCK_BYTES // (4 * width), 1, n_examples))
    return (slice(start, start + rows) for start in range(0, n_examples, rows))


def sums(
    apply_fn: ApplyFn, likelihood: Likelihood, params: Any, x: NDArray[Any], y: NDArray[Any]
) -> Sums:
    """What is summed over the examples of one block."""
    if as_dense(apply_fn) is None:
        return Sums(*_general_sums(apply_fn, likelihood, params, x, y))
    return Sums(*_dense_sums(likelihood, params, x, y))


@partial(jax.jit, static_argnames=("apply_fn", "likelihood"))
def _general_sums(
    apply_fn: ApplyFn, likelihood: Likelihood, params: Any, x: jax.Array, y: jax.Array
) -> Sums:
    def nll(w: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return likelihood.nll(apply_fn(w, x[None]), y[None])[0]

    gradients = jax.vmap(jax.grad(nll), in_axes=(None, 0, 0))(params, x, y)  # (n, ...) each
    squares = jax.tree.map(jnp.square, gradients)
    norms = sum(leaf.reshape(len(x), -1).sum(axis=1) for leaf in jax.tree.leaves(squares))
    total = partial(jnp.sum, axis=0)
    return Sums(jnp.asarray(norms), jax.tree.map(total, gradients), jax.tree.map(total, squares))


@partial(jax.jit, static_argnames="likelihood")
def _dense_sums(likelihood: Likelihood, params: LayerParams, x: jax.Array, y: jax.Array) -> Sums:
    norms = jnp.zeros(len(x))
    gradient, squares = [], []
    for a, d in gradient_factors(likelihood, params, x, y):
        norms += (1 + jnp.sum(a**2, axis=1)) * jnp.sum(d**2, axis=1)
        gradient.append({"b": d.sum(axis=0), "w": a.T @ d})
        squares.append({"b": (d**2).sum(axis=0), "w": (a**2).T @ d**2})
    return Sums(norms, tuple(gradient), tuple(squares))
