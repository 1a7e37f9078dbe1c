"""The leaves of a JAX model's params: their names, and models of which some alone are free."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from noisescale.evidence.select import Select, chosen_of

ApplyFn = Callable[[Any, jax.Array], jax.Array]


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
    names = [jax.tree_util.keystr(path, simple=True, separator="/") or "params" for path in named]
    if len(set(names)) == len(names):
        return names
    return [jax.tree_util.keystr(path) for path in paths]  # keys with a slash in them


@dataclass(frozen=True, eq=False)
class Selected:
    """A model in which some leaves are parameters and the others stay as they are.

    Hashable by identity, as compiled programs need it.
    """

    apply_fn: ApplyFn
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


def selected(
    apply_fn: ApplyFn, params: Any, names: list[str], select: Select
) -> tuple[ApplyFn, list[Any], list[str]]:
    """The model, params and names restricted to the leaves whose path is selected."""
    chosen = chosen_of(select, names, "/")

    def kept(values: Iterable[Any]) -> list[Any]:
        return [value for value, own in zip(values, chosen, strict=True) if own]

    return Selected(apply_fn, params, chosen), kept(jax.tree.leaves(params)), kept(names)
