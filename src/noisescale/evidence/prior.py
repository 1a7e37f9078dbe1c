"""The prior precision: one number, one a parameter, one a layer; and which parameters have one."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError

Array = NDArray[np.float64]
CHOICES = ("auto", "per_layer")


def prior_vector(prior_precision: Any, params: Any) -> Array:
    """One proper precision for each parameter, in the order of the flattened ``params``."""
    leaves, tree = jax.tree.leaves(params), jax.tree.structure(params)
    sizes = [np.shape(leaf) for leaf in leaves]
    given: list[Any]
    if (
        prior_precision is None
        or getattr(prior_precision, "ndim", None) == 0
        or isinstance(prior_precision, (int, float))
    ):
        given = [prior_precision] * len(leaves)
    else:
        given = jax.tree.leaves(prior_precision, is_leaf=lambda leaf: leaf is None)
        given_tree = jax.tree.structure(prior_precision, is_leaf=lambda leaf: leaf is None)
        if str(given_tree) != str(tree):
            raise InputError(
                "prior_precision must be a number, 'auto', 'per_layer', or have the structure of "
                f"params, got {given_tree} for {tree}."
            )
    if any(leaf is None for leaf in given):
        raise InputError(
            "prior_precision is None for some parameters: an unpenalised parameter has no "
            "evidence, give it a small precision of its own."
        )
    parts = []
    for precision, shape in zip(given, sizes, strict=True):
        try:
            parts.append(np.broadcast_to(np.asarray(precision, np.float64), shape).ravel())
        except (TypeError, ValueError):
            raise InputError(
                f"prior_precision {str(precision)[:40]} (shape {np.shape(precision)}) does not fit "
                f"parameters of shape {shape}: give numbers."
            ) from None
    return proper(np.concatenate(parts))


def proper(L: Array) -> Array:
    """``L`` if every precision is finite and above 0."""
    wrong = ~(np.isfinite(L) & (L > 0))
    if wrong.any():
        raise InputError(
            f"prior_precision must be finite and above 0 for every parameter, got {L[wrong][0]:g}: "
            "an improper prior has no evidence."
        )
    return np.ascontiguousarray(L)


def scalar_or_none(L: Array) -> float | None:
    """The one precision of all parameters, None if they differ."""
    return float(L[0]) if np.ptp(L) == 0 else None


def leaf_names(params: Any) -> list[str]:
    """A path for each leaf, such as ``0/w``, in the order of the flattened ``params``.

    A leaf that is all there is of an object, under its attribute ``value``, has the object's path:
    flax.nnx keeps every array in such a wrapper.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    siblings = Counter(path[:-1] for path in paths)
    wrapped = jax.tree_util.GetAttrKey("value")
    named = [
        path[:-1] if path and path[-1] == wrapped and siblings[path[:-1]] == 1 else path
        for path in paths
    ]
    return [jax.tree_util.keystr(path, simple=True, separator="/") or "params" for path in named]


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


@dataclass(frozen=True, eq=False)
class Selected:
    """A model in which some leaves are parameters and the others stay as they are.

    Hashable by identity, as compiled programs need it.
    """

    apply_fn: Callable[[Any, jax.Array], jax.Array]
    params: Any
    chosen: tuple[bool, ...]

    def __call__(self, leaves: Any, x: jax.Array) -> jax.Array:
        """``apply_fn`` with the chosen ``leaves`` in their places."""
        free, precision = iter(leaves), leaves[0].dtype
        fixed, tree = jax.tree.flatten(self.params)
        whole = [
            next(free) if own else np.array(leaf, precision)  # a copy: JAX remembers constants
            for own, leaf in zip(self.chosen, fixed, strict=True)
        ]
        return self.apply_fn(jax.tree.unflatten(tree, whole), x)


def select_parameters(
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    select: Callable[[str], bool] | None,
) -> tuple[Callable[[Any, jax.Array], jax.Array], Any]:
    """The model and params restricted to the leaves whose path is selected."""
    if select is None:
        return apply_fn, params
    names = leaf_names(params)
    chosen = tuple(bool(select(name)) for name in names)
    if not any(chosen):
        raise InputError(f"select chooses none of the parameters: {', '.join(names)}.")
    leaves = {
        name: leaf
        for name, leaf, own in zip(names, jax.tree.leaves(params), chosen, strict=True)
        if own
    }
    # A list keeps the order of the leaves; a mapping would sort them.
    return Selected(apply_fn, params, chosen), list(leaves.values())
