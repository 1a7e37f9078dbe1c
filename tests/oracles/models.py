"""Small models and data that several tests share."""

import jax
import jax.numpy as jnp
import numpy as np

import noisescale as ns

NETWORK = ns.DenseNetwork((8, 7, 6, 4))


def data(n=40, d=8, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, (x[:, :classes] + 0.3 * rng.normal(size=(n, classes))).argmax(axis=1)


def params_of(network, seed=0, scale=1.0):
    return jax.tree.map(lambda leaf: scale * np.asarray(leaf, float) + 0.01, network.init(seed))


def convolutional(params, x):
    """4 x 4 images, a 3 x 3 convolution with 3 channels, average pooling, a linear layer."""
    images = x.reshape(-1, 4, 4, 1)
    z = jax.lax.conv_general_dilated(
        images, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    pooled = jnp.tanh(z + params["bias"]).reshape(-1, 2, 2, 2, 2, 3).mean(axis=(2, 4))
    return pooled.reshape(len(x), -1) @ params["head"]


def residual(params, x):
    h = x @ params["in"]
    h = h + jnp.tanh(h @ params["a"]) @ params["b"]
    return h @ params["out"]


def as_function(params, x):
    """The network again, as a function that the fast path cannot see into."""
    return NETWORK(params, x)


def draw(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}


CASES = {
    "dense network": (NETWORK, params_of(NETWORK), data()),
    "softmax regression": (
        ns.softmax_regression(8, 4),
        params_of(ns.softmax_regression(8, 4)),
        data(),
    ),
    "convolutional": (
        convolutional,
        draw({"kernel": (3, 3, 1, 3), "bias": (3,), "head": (12, 3)}),
        data(30, 16, 3),
    ),
    "residual": (
        residual,
        draw({"in": (8, 5), "a": (5, 5), "b": (5, 5), "out": (5, 4)}),
        data(),
    ),
}


def linear(w, x):
    return x @ w


def network(params, x):
    return jnp.tanh(x @ params["a"] + params["b"]) @ params["c"]


def network_params(n_out, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(size=(3, 4)),
        "b": rng.normal(size=4),
        "c": rng.normal(size=(4, n_out)),
    }


def targets(likelihood, n, n_out, seed=1):
    rng = np.random.default_rng(seed)
    if likelihood == "categorical":
        return rng.integers(n_out, size=n)
    if likelihood == "bernoulli":
        return rng.integers(2, size=n)
    return rng.normal(size=(n, n_out))


def affine(params, x):
    return x @ params["w"] + params["b"]
