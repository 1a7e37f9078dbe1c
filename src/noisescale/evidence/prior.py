"""The prior precision: one number, one a layer, one an array, one a parameter."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import shown
from noisescale.errors import InputError

if TYPE_CHECKING:
    from noisescale.evidence.problem import Problem

Array = NDArray[np.float64]
CHOICES = ("auto", "per_layer")
RANGE = (1e-100, 1e100)  # beyond it, products of precisions and curvatures overflow


def prior_vector(prior_precision: Any, problem: "Problem") -> Array:
    """One proper precision for each parameter.

    ``prior_precision`` is a number, a mapping by the names of layers or of arrays, or structured
    like the parameters, with a number or an array for each of theirs.
    """
    if isinstance(prior_precision, str):
        raise InputError(
            f"prior_precision must be given here, got {shown(prior_precision)}: log_evidence and "
            "posterior_predict choose it ('auto', 'per_layer')."
        )
    names = list(problem.shapes)
    mapping = prior_precision if isinstance(prior_precision, Mapping) else {}
    if set(mapping) == set(names):
        given = [mapping[name] for name in names]
    elif set(mapping) == set(problem.layers) and all(map(_is_scalar, mapping.values())):
        L = np.empty(len(problem.w))
        for layer, index in problem.layers.items():
            L[index] = _spread(mapping[layer], layer, index.shape)
        return proper(L)
    elif _is_scalar(prior_precision):
        given = [prior_precision] * len(names)
    else:
        given = problem.leaves(prior_precision)
    parts = zip(given, problem.shapes.items(), strict=True)
    return proper(np.concatenate([_spread(part, *array).ravel() for part, array in parts]))


def _is_scalar(value: Any) -> bool:
    """None counts; so do arrays without an axis, of whatever framework."""
    return value is None or bool(np.isscalar(value)) or getattr(value, "ndim", None) == 0


def _spread(precision: Any, name: str, shape: tuple[int, ...]) -> Array:
    """The precision of each entry of an array or layer."""
    if precision is None:
        raise InputError(
            f"prior_precision is None for {name}: an unpenalised parameter has no evidence, give "
            "it a small precision of its own."
        )
    try:
        if np.asarray(precision).dtype.kind in "bcSU":
            raise TypeError
        return np.broadcast_to(np.asarray(precision, np.float64), shape)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"prior_precision {shown(precision)} (shape {np.shape(precision)}) does not fit "
            f"parameters of shape {shape} ({name}): give numbers."
        ) from None


def proper(L: Array) -> Array:
    """``L`` if every precision is finite and above 0, and not absurd."""
    low, high = RANGE
    wrong = ~(np.isfinite(L) & (L > 0))
    if wrong.any():
        raise InputError(
            f"prior_precision must be finite and above 0 for every parameter, got {L[wrong][0]:g}: "
            "an improper prior has no evidence."
        )
    beyond = (low > L) | (high < L)
    if beyond.any():
        raise InputError(
            f"prior_precision must lie between {low:g} and {high:g}, got {L[beyond][0]:g}: rescale "
            "the parameters."
        )
    return np.ascontiguousarray(L)


def describe_prior(
    L: Array, layers: Mapping[str, NDArray[np.int64]]
) -> float | dict[str, float] | None:
    """The one precision of all parameters, or one a layer; None if they differ within a layer."""
    if np.ptp(L) == 0:
        return float(L[0])
    if any(np.ptp(L[index]) for index in layers.values()):
        return None
    return {layer: float(L[index[0]]) for layer, index in layers.items()}


def layers_of(
    shapes: Mapping[str, tuple[int, ...]], separator: str = "/", root: str | None = None
) -> dict[str, NDArray[np.int64]]:
    """The flat indices of each layer: arrays that share all of their name but its last part.

    ``shapes`` come in the order of the flat parameters. An array whose name has one part alone
    belongs to the layer ``root``, or is a layer of its own.
    """
    layers: dict[str, list[NDArray[np.int64]]] = {}
    start = 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        layer = name.rpartition(separator)[0] or root or name
        layers.setdefault(layer, []).append(np.arange(start, stop))
        start = stop
    return {layer: np.concatenate(parts) for layer, parts in layers.items()}
