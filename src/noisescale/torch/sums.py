"""Sums over per-example gradients of a parameter, all in one go.

    squared norms |g_i|^2,   the total sum_i g_i,   squared entries sum_i g_i^2

Gradients over several positions must be formed for their squares, which then serve for all three,
few enough at a time to stay in the processor's cache. Others have them from their factors
(:mod:`noisescale.torch.factors`).
"""

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor

from noisescale.torch.factors import Factor, Formed, Lookup, Outer

Groups = list[tuple[list[str], Factor]]  # parameters' names, and their gradients side by side

_SMALL = 1 << 12  # numbers of gradients that are put together with others


@dataclass(frozen=True, eq=False)
class Sums:
    """Of a parameter's gradients: what :func:`sums` gives."""

    squared_norms: Tensor  # (n, k)
    total: Tensor  # (size,)
    squares: Tensor  # (size,)
    compact: Factor | None


def grouped(found: dict[str, Factor]) -> Groups:
    """Factors by parameter, those of biases and norms in one: a few operations serve them all."""
    formed = {name: factor.g for name, factor in found.items() if _is_small(factor)}
    groups: Groups = [([name], factor) for name, factor in found.items() if name not in formed]
    if formed:
        groups.append((list(formed), Formed(torch.cat(list(formed.values()), dim=2))))
    return groups


def _is_small(factor: Factor) -> TypeGuard[Formed]:
    return isinstance(factor, Formed) and factor.g.shape[2] <= _SMALL


def sums(factor: Factor, *, keep: bool = False) -> Sums:
    """Squared norms, the total and the squared entries' sum in one go.

    ``keep`` gives back the smallest factor that the gradients follow from.
    """
    if not isinstance(factor, Outer) or factor.b.shape[3] == 1:
        # Sums over positions are kept, not what they are of.
        kept = (Formed(factor.g) if isinstance(factor, Formed) else factor) if keep else None
        return Sums(factor.squared_norms(), factor.total(), factor.squares(), kept)
    n, k, g, _, o = factor.b.shape
    size = g * o * factor.width
    norms = factor.b.new_empty(n, k)
    total, squares = factor.b.new_zeros(size), factor.b.new_zeros(size)
    formed = factor.b.new_empty(n, k, size) if keep and _is_formed(factor) else None
    for part, G in factor.formed():
        if formed is not None:
            formed[part] = G
        rows = G.flatten(0, 1)
        every = rows.new_ones(len(rows))
        total.addmv_(rows.T, every)
        squares.addmv_(rows.square_().T, every)
        norms[part] = rows.sum(dim=1).reshape(-1, k)
    compact = factor if formed is None else Formed(formed)
    return Sums(norms, total, squares, compact if keep else None)


def compact_numbers(factor: Factor) -> int:
    """How many numbers an example's gradients take in the ``compact`` form of :func:`sums`."""
    if isinstance(factor, Formed):
        return int(factor.g[0].numel())
    if isinstance(factor, Lookup):
        return int(factor.b[0].numel())
    assert isinstance(factor, Outer)
    _, k, g, _, o = factor.b.shape
    return k * g * o * factor.width if _is_formed(factor) else factor.numbers


def _is_formed(factor: Outer) -> bool:
    """Whether gradients are smaller than inputs and output gradients at all positions are."""
    _, k, _, T, o = factor.b.shape
    return bool(k * o * factor.width < T * (factor.width + k * o))
