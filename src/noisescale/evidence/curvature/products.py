"""Curvature as a SciPy LinearOperator: products with the examples streamed through in blocks.

Neither p x p nor N x p numbers are ever held: what a product takes in memory is a few vectors of p
and the activations of one block of examples.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError
from noisescale.evidence.curvature.gauss_newton import ggn_products
from noisescale.evidence.curvature.hessian import hessian_products
from noisescale.evidence.curvature.model import Architecture, Model, activations
from noisescale.evidence.pace import tick
from noisescale.evidence.problem import Precision

# (architecture, w, x, y, V) -> products (k, p) of one block's sum with each row of V (k, p).
BlockProduct = Callable[[Architecture, Any, Any, Any, Any], jax.Array]

_BLOCK_BYTES = 1 << 27  # of activations held at once
_BLOCK_FLOPS = 1 << 34  # of a block: under a second
_PASSES = 4  # forward and backward, values and their derivatives


def curvature_operator(
    model: Model, curvature: str = "ggn", *, precision: Precision = "float32"
) -> LinearOperator:
    """The Gauss-Newton matrix or the Hessian of the summed nll, (p, p), without the prior."""
    return streamed(model, ggn_products if curvature == "ggn" else hessian_products, precision)


def nll_and_gradient(
    model: Model, precision: Precision = "float64"
) -> tuple[float, NDArray[np.float64]]:
    """The summed nll and its gradient, both checked to be finite."""
    total, gradient = nll_function(model, precision)(model.w)
    if not (np.isfinite(total) and np.isfinite(gradient).all()):
        raise InputError(
            "the model's outputs or gradients are not finite at these params: "
            "the evidence needs a point where they are."
        )
    return total, gradient


def nll_function(
    model: Model, precision: Precision
) -> Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]:
    """The summed nll and its gradient as a function of flat parameters, in this precision."""
    blocks = tuple(row_blocks(model, 1, precision))

    def at(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        total, gradient = 0.0, np.zeros(len(w))
        for rows in blocks:
            with jax.enable_x64(True):  # in which float32 stays what it is
                value, slope = _value_and_gradient(
                    model.architecture, w.astype(precision), *model.block(rows, precision)
                )
            total += float(value)
            gradient += np.asarray(slope)
            tick()
        return total, gradient

    return at


def streamed(model: Model, product: BlockProduct, precision: Precision) -> LinearOperator:
    """The (p, p) operator whose products are sums over blocks of examples."""
    with jax.enable_x64(True):
        w = jnp.asarray(model.w, precision)

    @cache
    def blocks(n_directions: int) -> tuple[slice, ...]:
        return tuple(row_blocks(model, n_directions, precision))

    def matmat(V: NDArray[Any]) -> NDArray[np.float64]:
        directions = np.ascontiguousarray(V.T, precision)  # (k, p)
        total = np.zeros(directions.shape)
        for rows in blocks(len(directions)):
            with jax.enable_x64(True):  # in which float32 stays what it is
                x, y = map(spread, model.block(rows, precision))
                part = product(model.architecture, w, x, y, directions)
            total += np.asarray(part)
            tick()
        return total.T

    p = model.n_params
    return LinearOperator(
        (p, p),
        matvec=lambda v: matmat(np.reshape(v, (p, 1)))[:, 0],
        rmatvec=lambda v: matmat(np.reshape(v, (p, 1)))[:, 0],
        matmat=matmat,
        dtype=np.float64,
    )


def spread(array: NDArray[Any]) -> Any:
    """Examples over the local devices, if there are several and they divide evenly."""
    devices = jax.local_devices()
    if len(devices) == 1 or len(array) % len(devices):
        return array
    mesh = jax.sharding.Mesh(np.array(devices), ("examples",))
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec("examples")))  # type: ignore[no-untyped-call]


def row_blocks(model: Model, n_directions: int, precision: Precision) -> Iterator[slice]:
    """Rows whose activations, for so many directions at once, fit into a block of memory.

    A pass takes two operations a parameter at the least, and a product three passes along each
    direction.
    """
    width = np.dtype(precision).itemsize
    bytes_a_row = _PASSES * n_directions * width * activations(model)
    devices = jax.local_device_count()  # each takes an equal part
    flops_a_row = 12 * n_directions * model.n_params
    fitting = min(_BLOCK_BYTES // bytes_a_row, _BLOCK_FLOPS // flops_a_row)
    rows = int(np.clip(devices * fitting, devices, len(model.x)))
    return (slice(start, start + rows) for start in range(0, len(model.x), rows))


@partial(jax.jit, static_argnums=0)
def _value_and_gradient(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(architecture.nll_sum)(w, x, y)
