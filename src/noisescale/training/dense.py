"""A dense network layer by layer: what its structure gives that no differentiation would.

With a the inputs of a layer, W its weights and D the derivatives of anything at its outputs,

    a_{l+1} = relu(a_l W_l + b_l),    D_l = (D_{l+1} W_{l+1}') * (a_{l+1} > 0),

so one example's gradient in a layer is the outer product of its rows of a and D. The functions take
NumPy's and JAX's arrays alike.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from noisescale.likelihood import Likelihood
from noisescale.training.models import DenseNetwork, LayerParams


def as_dense(apply_fn: object) -> DenseNetwork | None:
    """The network if its layers are known, None for any other function.

    The one place that asks: a subclass may compute otherwise, so only the class itself counts.
    """
    return apply_fn if type(apply_fn) is DenseNetwork else None


def leaf_shapes(network: DenseNetwork) -> list[tuple[int, ...]]:
    """The shapes of its arrays in the order of flat parameters: b, w of each layer."""
    return [shape for d, h in pairwise(network.widths) for shape in ((h,), (d, h))]


def layer_inputs(params: Any, x: Any) -> list[Any]:
    """Every layer's inputs a, the network's own first."""
    inputs = [x]
    for layer in params[:-1]:
        inputs.append((inputs[-1] @ layer["w"] + layer["b"]).clip(0))
    return inputs


def layer_derivatives(D: Any, weights: Sequence[Any], active: Iterable[Any]) -> list[Any]:
    """The derivatives at every layer's outputs, from those at the last.

    ``weights`` are all layers'; ``active`` says where a hidden layer is above 0, last layer first.
    """
    derivatives = [D]
    for W, on in zip(reversed(weights[1:]), active, strict=True):
        D = D @ W.T
        D *= on  # in place, where arrays can be written
        derivatives.append(D)
    return derivatives[::-1]


def gradient_factors(
    likelihood: Likelihood, params: LayerParams, x: jax.Array, y: jax.Array
) -> list[tuple[jax.Array, jax.Array]]:
    """For each layer its inputs a and the nll's derivatives D at its outputs, by example."""
    inputs = layer_inputs(params, jnp.asarray(x, params[0]["w"].dtype))
    outputs = inputs[-1] @ params[-1]["w"] + params[-1]["b"]
    D = jax.grad(lambda z: jnp.sum(likelihood.nll(z, y)))(outputs)  # (n, C)
    weights = [layer["w"] for layer in params]
    active = (a > 0 for a in reversed(inputs[1:]))
    return list(zip(inputs, layer_derivatives(D, weights, active), strict=True))
