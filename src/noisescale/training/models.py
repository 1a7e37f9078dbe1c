"""The models the paper trains: linear classifiers and a network with one hidden layer.

A model is a function ``model(params, x) -> logits`` with an ``init``; ``train`` takes any other
JAX function just as well. Its input layer is reachable on its own (``input_weights``), which is how
the engine leaves out the work on features that are zero in every training example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_choice, check_list, check_whole, shown
from noisescale.errors import InputError
from noisescale.seeds import random_stream

Layer = dict[str, jax.Array]
LayerParams = tuple[Layer, ...]

_Draw = Callable[[np.random.Generator, int, int], NDArray[np.float64]]


def _uniform(half_width: Callable[[int, int], float]) -> _Draw:
    def draw(rng: np.random.Generator, fan_in: int, fan_out: int) -> NDArray[np.float64]:
        a = half_width(fan_in, fan_out)
        return rng.uniform(-a, a, (fan_in, fan_out))

    return draw


def _normal(scale: Callable[[int, int], float]) -> _Draw:
    def draw(rng: np.random.Generator, fan_in: int, fan_out: int) -> NDArray[np.float64]:
        return rng.normal(0.0, scale(fan_in, fan_out), (fan_in, fan_out))

    return draw


# Weights by name; biases start at zero. The paper names none; Glorot's uniform was the default
# of the framework it used.
INITIALISATIONS: dict[str, _Draw] = {
    "glorot_uniform": _uniform(lambda fan_in, fan_out: (6 / (fan_in + fan_out)) ** 0.5),
    "glorot_normal": _normal(lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5),
    "he_uniform": _uniform(lambda fan_in, fan_out: (6 / fan_in) ** 0.5),
    "he_normal": _normal(lambda fan_in, fan_out: (2 / fan_in) ** 0.5),
    "lecun_uniform": _uniform(lambda fan_in, fan_out: (3 / fan_in) ** 0.5),
    "lecun_normal": _normal(lambda fan_in, fan_out: (1 / fan_in) ** 0.5),
    "zeros": _uniform(lambda fan_in, fan_out: 0.0),
}


@dataclass(frozen=True)
class DenseNetwork:
    """Fully connected layers with ReLU between them: ``DenseNetwork((784, 800, 10))``.

    Hashable, so that two runs of the same architecture share one compiled program.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        wanted = "two or more positive numbers, such as (784, 800, 10)"
        given = check_list("widths", self.widths, wanted)
        widths = tuple(check_whole("a layer's width", width, at_least=1) for width in given)
        if len(widths) < 2:
            raise InputError(f"widths must be {wanted}, got {shown(self.widths)}.")
        object.__setattr__(self, "widths", widths)

    def init(self, seed: int, initialisation: str = "glorot_uniform") -> LayerParams:
        """Parameters drawn by ``seed``: for each layer its weights ``w`` and its bias ``b``."""
        draw = INITIALISATIONS[check_choice("initialisation", initialisation, INITIALISATIONS)]
        rng = random_stream(seed, "initialisation")
        return tuple(
            {
                "w": jnp.asarray(draw(rng, fan_in, fan_out), jnp.float32),
                "b": jnp.zeros(fan_out, jnp.float32),
            }
            for fan_in, fan_out in pairwise(self.widths)
        )

    def __call__(self, params: LayerParams, x: jax.Array) -> jax.Array:
        """Logits, one row an example."""
        *hidden, last = params
        for layer in hidden:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ last["w"] + last["b"]

    def input_weights(self, params: LayerParams) -> jax.Array:
        """The matrix that multiplies the features, one row a feature."""
        try:
            return params[0]["w"]
        except (TypeError, LookupError):
            raise InputError(
                f"params must be those of a DenseNetwork, as its init gives, got {shown(params)}."
            ) from None

    def with_input_weights(self, params: LayerParams, weights: jax.Array) -> LayerParams:
        """The ``params`` with this matrix in its place."""
        return ({**params[0], "w": weights}, *params[1:])


def paper_network() -> DenseNetwork:
    """The network of sections 4 and 5: 784 pixels, 800 ReLU units, 10 classes."""
    return DenseNetwork((784, 800, 10))


def softmax_regression(n_features: int, n_classes: int) -> DenseNetwork:
    """A linear model with one logit a class, for ``likelihood='categorical'``."""
    return DenseNetwork((n_features, n_classes))


def logistic_regression(n_features: int) -> DenseNetwork:
    """A linear model with one logit, for two classes and ``likelihood='bernoulli'``."""
    return DenseNetwork((n_features, 1))
