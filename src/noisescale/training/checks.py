"""Data and parameters that ``train`` refuses, each with one sentence."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisescale.errors import InputError
from noisescale.likelihood import Likelihood, check_labels, check_outputs


def check_inputs(x: ArrayLike, what: str) -> NDArray[np.generic]:
    """Features as float32 (whole numbers stay as they are), all finite."""
    array = np.asarray(x)
    if array.dtype.kind in "iub":
        return array
    if array.dtype.kind != "f":
        raise InputError(f"{what} must be numbers, got dtype {array.dtype}.")
    array = array.astype(np.float32, copy=False)
    finite = np.isfinite(array)
    if not finite.all():
        at = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InputError(
            f"{what} holds {array[at]} at {list(at)}: remove or fill the {(~finite).sum():,} "
            "values that are not finite float32 numbers."
        )
    return array


def check_params(params: Any) -> Any:
    """A float32 copy of ``params`` that the engine may overwrite."""
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise InputError("params holds no arrays: there is nothing to train.")
    for leaf in leaves:
        array = np.asarray(leaf)
        if array.dtype.kind != "f":
            raise InputError(f"params must be floating-point arrays, got dtype {array.dtype}.")
        if not np.isfinite(array).all():
            raise InputError("params holds values that are not finite: initialise it again.")
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), params)


def count_examples(data: tuple[ArrayLike, ArrayLike], what: str) -> int:
    """The number of examples in the pair ``data``, the same in both its parts."""
    try:
        x, y = data
        n_inputs, n_labels = len(x), len(y)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(
            f"{what} must be a pair of arrays (x, y), got {type(data).__name__}."
        ) from None
    if n_inputs != n_labels:
        raise InputError(f"{what} has {n_inputs} examples in x but {n_labels} labels in y.")
    if n_inputs == 0:
        raise InputError(f"{what} holds no examples.")
    return n_inputs


def check_data(
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    likelihood: Likelihood,
    what: str,
) -> tuple[NDArray[np.generic], NDArray[np.int32], int]:
    """Features, labels and the number of classes, once all three are known to fit together."""
    count_examples(data, what)
    features, labels = check_inputs(data[0], f"{what} x"), np.asarray(data[1])
    try:
        outputs = jax.eval_shape(apply_fn, params, features)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"apply_fn does not accept these params with x of shape {features.shape}: {reason}"
        ) from error
    n_classes = check_outputs(likelihood, outputs.shape, len(features))
    return features, check_labels(labels, n_classes, f"{what} labels"), n_classes
