"""Targets that fit a model's outputs under a likelihood, or one sentence saying why not."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.arrays import check_labels, check_outputs
from noisescale.errors import InputError
from noisescale.likelihood import InShape, Likelihood


def check_targets(
    y: NDArray[Any], likelihood: Likelihood, shape: tuple[int, ...], model: str = "apply_fn"
) -> tuple[NDArray[Any], int | None]:
    """The targets as numbers of one kind, and the number of classes, if the likelihood has some.

    ``shape`` is that of the outputs for all examples, ``model`` what gives them.
    """
    n = len(y)
    if not shape or shape[0] != n:
        raise InputError(f"{model} must return one row an example, but returns shape {shape}.")
    if likelihood.function is None and likelihood.name == "categorical" and len(shape) == 3:
        return _sequences(y, likelihood.ignore_index, shape, model), shape[2]
    if likelihood.has_classes:
        n_classes = check_outputs(likelihood.name, shape, n, model)
        if likelihood.name == "categorical" and y.ndim == 2:
            raise InputError(
                f"labels of shape {y.shape} are those of sequences, whose outputs have shape "
                f"(examples, tokens, classes), but {model} returns shape {shape}."
            )
        return check_labels(y, likelihood.name, n_classes, "data labels"), n_classes
    if y.dtype.kind == "f":
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise InputError("data y holds NaN or infinite values.")
    elif y.dtype.kind not in "iub":
        raise InputError(f"data y must be numbers, got dtype {y.dtype}.")
    if likelihood.function is None:
        if math.prod(shape) != y.size:
            raise InputError(f"outputs of shape {shape} do not fit targets of shape {y.shape}.")
        if likelihood.name == "poisson" and not ((y >= 0) & (y == np.floor(y))).all():
            wrong = y[(y < 0) | (y != np.floor(y))].flat[0]
            raise InputError(f"the poisson likelihood counts: y must be 0, 1, 2, ..., got {wrong}.")
        y = y.astype(np.float64)
    return y, None


def fitted_to(likelihood: Likelihood, shape: tuple[int, ...]) -> Likelihood:
    """A user's own nll that sees an example's outputs in the ``shape`` the model gives them."""
    if likelihood.function is None:
        return likelihood
    function = likelihood.function
    plain = function.function if isinstance(function, InShape) else function
    return Likelihood(likelihood.name, InShape(plain, shape[1:] or (1,)))


def n_tokens(likelihood: Likelihood, observed: NDArray[Any]) -> int:
    """T of sequences, 1 for anything else."""
    sequences = likelihood.name == "categorical" and observed.ndim == 2
    return int(observed.shape[1]) if sequences else 1


def tokens_each(likelihood: Likelihood, observed: Sequence[NDArray[Any]]) -> float | None:
    """How many tokens of a sequence count, on average; None if examples have one label each."""
    if likelihood.name != "categorical" or any(y.ndim != 2 for y in observed):
        return None
    counted = sum(int((y != likelihood.ignore_index).sum()) for y in observed)
    return counted / sum(len(y) for y in observed)


def n_rows(likelihood: Likelihood, n_outputs: int, n_classes: int | None) -> int:
    """Rows an example has in the root of the Gauss-Newton matrix: a softmax leaves one in C out."""
    if likelihood.name != "categorical" or n_classes is None:
        return n_outputs
    return n_outputs // n_classes * (n_classes - 1)


def noise_notes(likelihood: Likelihood, at: str) -> tuple[str, ...]:
    """That the noise precision was estimated, if it was: at the point, or at the best fit."""
    if not likelihood.estimated:
        return ()
    where = "" if at == "map" else " at these parameters"
    return (
        f"noise precision {likelihood.noise_precision:.4g} is that of largest likelihood{where}, "
        "from the residuals of these very data; the null model's is from its own.",
    )


def _sequences(
    y: NDArray[Any], ignored: int, shape: tuple[int, ...], model: str
) -> NDArray[np.int32]:
    """The labels (N, T) of tokens, those that do not count as ``ignored``."""
    n, T, C = shape
    if C < 2:
        raise InputError(
            "the categorical likelihood needs a logit for each of two or more classes, but "
            f"{model} returns shape {shape}."
        )
    if y.shape != (n, T):
        raise InputError(
            f"outputs of shape {shape} need a label for each token, shape {(n, T)}, got {y.shape}."
        )
    if y.dtype.kind not in "iub":
        raise InputError(f"data labels must be whole numbers, got dtype {y.dtype}.")
    wrong = ((y < 0) | (y >= C)) & (y != ignored)
    if wrong.any():
        i, t = (int(k) for k in np.argwhere(wrong)[0])
        raise InputError(
            f"data labels must lie in 0..{C - 1}, or be {ignored} where a token does not count, "
            f"got {y[i, t]} at position {[i, t]}."
        )
    if not (y != ignored).any():
        raise InputError(f"data labels are all {ignored}: no token counts.")
    return y.astype(np.int32)
