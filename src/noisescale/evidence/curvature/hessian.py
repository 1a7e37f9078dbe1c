"""The Hessian of the summed nll, sum_i d2 nll_i / dw2: products with it, and the whole matrix."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from noisescale.evidence.curvature.model import BLOCK_BYTES, Architecture, Array, Model
from noisescale.evidence.pace import advance, stage

_BLOCK_FLOPS = 1 << 34  # of a block of columns, at two a parameter and pass: under a second


@partial(jax.jit, static_argnums=0)
def hessian_products(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, V: jax.Array
) -> jax.Array:
    """The Hessian's product with each row of ``V`` (k, p)."""
    gradient = jax.grad(architecture.nll_sum)
    columns = jax.vmap(lambda v: jax.jvp(lambda w: gradient(w, x, y), (w,), (v,))[1])(V)
    return jnp.asarray(columns)


def dense_hessian(model: Model) -> Array:
    """The Hessian (p, p), a block of columns at a time."""
    p = model.n_params
    fitting = BLOCK_BYTES // (8 * max(p, model.x.size))
    quick = _BLOCK_FLOPS // (12 * p * max(len(model.x), 1))
    columns = max(1, min(p, fitting, quick))

    H = np.empty((p, p))
    x, y = model.block(slice(None))
    with jax.enable_x64(True):
        stage("curvature", p)
        for start in range(0, p, columns):
            stop = min(p, start + columns)
            directions = np.eye(stop - start, p, start)
            H[start:stop] = hessian_products(model.architecture, model.w, x, y, directions)
            advance(stop - start)
    return np.asarray((H + H.T) / 2)
