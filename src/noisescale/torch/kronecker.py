"""Kronecker factors of a module's Gauss-Newton matrix: KFAC, by hooks.

A weight that multiplies inputs a at positions t of an example has the block

    B x A,   A = mean of a a' over examples and positions,   B = sum of b b' over rows and positions

with b the gradients at its outputs of the rows R_i J_i of the Gauss-Newton matrix's root: every
class, none sampled. Positions count as further examples ("expand" in Eschenhagen et al. 2023); the
bias has a block of its own, B. Grouped convolutions have a block for each group. Parameters that
multiply nothing (tables, norms, what no rule follows) have their diagonal alone. Passes through the
module are in float32, sums over them in float64.
"""

import numpy as np
import torch

from noisescale.evidence.pace import advance, stage
from noisescale.evidence.problem import Array, Kronecker, KroneckerBlock, Rows
from noisescale.torch.factors import Factor, Outer
from noisescale.torch.rows import ExampleGradients, RowBlock, by_examples
from noisescale.torch.tensors import to_numpy

_TERMS = 256  # added up in float32


def kronecker_factors(gradients: ExampleGradients, rows: Rows, size: int) -> Kronecker | None:
    """The factors, ``size`` rows at a time; None if no layer multiplies."""
    biases = _biases(gradients)
    sums: dict[str, tuple[Array, Array]] = {}  # A and B of each weight, (g, i, i) and (g, o, o)
    counts: dict[str, int] = {}  # of inputs
    transposed: dict[str, bool] = {}
    diagonal = np.zeros(len(gradients.problem.w))
    stage("factors", len(rows))
    for block in by_examples(rows, size):
        shape = RowBlock.of(block)
        c = gradients.problem.tensor(shape.coefficients, gradients.precision)
        found = gradients.factors(shape.examples, c)
        for name, factor in found.items():
            if isinstance(factor, Outer):
                parts = _squares(factor)
                if name in sums:
                    for total, part in zip(sums[name], parts, strict=True):
                        total += part
                else:
                    sums[name] = parts
                counts[name] = counts.get(name, 0) + factor.a.shape[0] * factor.a.shape[2]
                transposed[name] = factor.transposed
            elif biases.get(name) not in found or not _multiplies(found, biases[name]):
                diagonal[gradients.columns[name]] += to_numpy(factor.squares())
        advance(len(block))
    if not sums:
        return None
    blocks = [
        own
        for name, (A, B) in sums.items()
        for own in _blocks(gradients, name, A / counts[name], B, biases, transposed[name])
    ]
    covered = np.zeros(len(diagonal), bool)
    for own in blocks:
        covered[own.weight] = True
        if own.bias is not None:
            covered[own.bias] = True
    rest = np.flatnonzero(~covered)
    names = [n for n, at in gradients.columns.items() if not covered[at.start]]
    return Kronecker(tuple(blocks), rest, diagonal[rest], tuple(names))


def _squares(factor: Outer) -> tuple[Array, Array]:
    """Sums of a a' (g, i, i) and of b b' (g, o, o): in float64, or rounding would be curvature."""
    groups = range(factor.a.shape[1])
    return (
        np.stack([_gram(factor.a[:, group]) for group in groups]),
        np.stack([_gram(factor.b[:, :, group].flatten(0, 1)) for group in groups]),
    )


def _gram(x: torch.Tensor) -> Array:
    """The sum of x x' over examples and positions (n, T, d): (d, d).

    Few terms are added up in float32, no more than leave its rounding at that of the passes.
    """
    n, T, d = x.shape
    if T == 1:  # fewer rows than columns leave exact zeros
        rows = to_numpy(x[:, 0])
        return rows.T @ rows
    together = max(1, _TERMS // T)
    whole = n // together * together
    parts = [x[:whole].reshape(-1, together * T, d)] if together > 1 else [x]
    parts += [x[whole:].reshape(1, -1, d)] if together > 1 and whole < n else []
    total = np.zeros((d, d))
    for part in parts:
        total += to_numpy(torch.bmm(part.mT, part).sum(dim=0, dtype=torch.float64))
    return total


def _multiplies(found: dict[str, Factor], weight: str) -> bool:
    return isinstance(found[weight], Outer)


def _biases(gradients: ExampleGradients) -> dict[str, str]:
    """Of each bias the weight of its layer, where it belongs to one layer alone."""
    held: dict[str, list[str]] = {}
    for layer in gradients.plan.layers:
        if "bias" in layer.parameters and "weight" in layer.parameters:
            held.setdefault(layer.parameters["bias"], []).append(layer.parameters["weight"])
    return {bias: weights[0] for bias, weights in held.items() if len(weights) == 1}


def _blocks(
    gradients: ExampleGradients,
    name: str,
    A: Array,
    B: Array,
    biases: dict[str, str],
    transposed: bool,
) -> list[KroneckerBlock]:
    """One for each group of a weight."""
    at = gradients.columns[name]
    g, i, o = len(A), A.shape[-1], B.shape[-1]
    index = np.arange(at.start, at.stop)
    weight = index.reshape(i, o).T[None] if transposed else index.reshape(g, o, i)
    bias = [b for b, of in biases.items() if of == name and b in gradients.columns]
    places = None
    if len(bias) == 1:
        own = gradients.columns[bias[0]]
        places = np.arange(own.start, own.stop).reshape(g, o)
    return [
        KroneckerBlock(
            name,
            A[group],
            B[group],
            weight[group],
            None if places is None else places[group],
        )
        for group in range(g)
    ]
