"""Leaving out the work on features that no training example uses.

In 1,000 MNIST images about 175 of the 784 pixels are zero in every image. The gradient of their
input weights is exactly zero, so training moves them by the L2 penalty alone, along a recurrence
with a closed form. Training the rest is the same computation on a smaller matrix: a fifth less.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.training.dense import as_dense
from noisescale.training.settings import Rates

# Widths are rounded up to this many features, so that runs on other subsets of the data, with a
# few live features more or less, share a compiled program.
_MULTIPLE = 16


def without_dead_features(
    apply_fn: object, x: NDArray[Any], params: Any
) -> tuple[NDArray[Any], Any, Callable[[Any, np.float32], Any]]:
    """Data and params without the features that are always zero, and what puts them back.

    ``restore(trained, factor)`` gives full params, the rows that were left out multiplied by
    ``factor``. Only a dense network is known to multiply its features by a matrix before
    anything else; other functions keep all features.
    """
    model = as_dense(apply_fn)
    if model is None or x.ndim != 2:
        return x, params, lambda trained, factor: trained
    live = live_features(x)
    weights = model.input_weights(params)

    def restore(trained: Any, factor: np.float32) -> Any:
        whole = (weights * factor).at[live].set(model.input_weights(trained))
        return model.with_input_weights(trained, whole)

    part = model.with_input_weights(params, weights[live])
    return np.ascontiguousarray(x[:, live]), part, restore


def live_features(x: NDArray[Any]) -> NDArray[np.intp]:
    """The features that some example uses, and a few others to fill up a round number."""
    n_features = x.shape[1]
    used = np.any(x != 0, axis=0)
    n_live = min(n_features, -(-max(int(used.sum()), 1) // _MULTIPLE) * _MULTIPLE)
    # A stable sort puts the used features first; both groups keep their order.
    return np.sort(np.argsort(~used, kind="stable")[:n_live])


def decay_factor(step: int, rates: Rates) -> np.float32:
    """What ``step`` updates without a gradient leave of a weight under L2.

    A <- m A + decay w, w <- w - epsilon A is linear in (w, A): the entry of its matrix power.
    """
    learning_rate, momentum, decay = rates
    update = np.array([[1 - learning_rate * decay, -learning_rate * momentum], [decay, momentum]])
    with np.errstate(all="ignore"):  # a penalty too strong for its learning rate diverges
        return np.float32(np.linalg.matrix_power(update, step)[0, 0])
