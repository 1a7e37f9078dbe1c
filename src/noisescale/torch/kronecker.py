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

from noisescale.arrays import one_blas_thread
from noisescale.evidence.pace import advance, stage
from noisescale.evidence.problem import Array, Kronecker, KroneckerBlock
from noisescale.evidence.rows import Rows, by_slots
from noisescale.torch.factors import Factor, Outer
from noisescale.torch.rows import ExampleGradients, RowBlock
from noisescale.torch.tensors import to_numpy

_TERMS = 1024  # added up in float32


def kronecker_factors(gradients: ExampleGradients, rows: Rows, size: int) -> Kronecker | None:
    """The factors, ``size`` rows at a time; None if no layer multiplies."""
    biases = _biases(gradients)
    sums: dict[str, list[tuple[Gram, Gram]]] = {}  # of each weight's groups
    counts: dict[str, int] = {}  # of inputs
    transposed: dict[str, bool] = {}
    diagonal = np.zeros(len(gradients.problem.w))
    stage("factors", len(rows))
    for new, block in by_slots(rows, size):
        shape = RowBlock.of(block)
        c = gradients.problem.tensor(shape.coefficients, gradients.precision)
        found = gradients.factors(shape.examples, c)
        for name, factor in found.items():
            if isinstance(factor, Outer):
                groups = range(factor.b.shape[2])
                for group, (_, B) in zip(
                    groups, sums.setdefault(name, [(Gram(), Gram()) for _ in groups]), strict=True
                ):
                    B.add(factor.b[:, :, group].flatten(0, 1))
                transposed[name] = factor.transposed
                if not new:
                    continue
                for inputs in factor.inputs(_TERMS):
                    for group, (A, _) in zip(groups, sums[name], strict=True):
                        A.add(inputs[:, group])
                counts[name] = counts.get(name, 0) + len(factor.b) * factor.b.shape[3]
            elif biases.get(name) not in found or not _multiplies(found, biases[name]):
                diagonal[gradients.columns[name]] += to_numpy(factor.squares())
        advance(len(block))
    if not sums:
        return None
    blocks = [
        own
        for name, each in sums.items()
        for own in _blocks(
            gradients,
            name,
            [A.matrix() / counts[name] for A, _ in each],
            [B.matrix() for _, B in each],
            biases,
            transposed[name],
        )
    ]
    covered = np.zeros(len(diagonal), bool)
    for own in blocks:
        covered[own.weight] = True
        if own.bias is not None:
            covered[own.bias] = True
    rest = np.flatnonzero(~covered)
    names = [n for n, at in gradients.columns.items() if not covered[at.start]]
    return Kronecker(tuple(blocks), rest, diagonal[rest], tuple(names))


class Gram:
    """The sum of x x' over examples and positions, (d, d) in float64, block by block.

    Few terms are added up in float32, no more than leave its rounding at that of the passes, or
    rounding would be curvature. Where there is one position an example, all is in float64: fewer
    rows than columns leave exact zeros. Their product waits for as many rows as there are columns,
    because adding up the matrices of small blocks would take longer than multiplying.

    >>> gram = Gram()
    >>> gram.add(torch.ones(3, 1, 2))
    >>> gram.add(torch.ones(3, 4, 2))
    >>> gram.matrix()
    array([[15., 15.],
           [15., 15.]])
    """

    def __init__(self) -> None:
        self._total: Array | None = None
        self._waiting: list[torch.Tensor] = []  # (n, d) each

    def add(self, x: torch.Tensor) -> None:
        """Another block (n, T, d)."""
        _, T, d = x.shape
        if T == 1:
            self._waiting.append(x[:, 0])
            if sum(map(len, self._waiting)) >= max(d, _TERMS):
                self._multiply()
            return
        if d <= T:
            self._include(to_numpy(torch.bmm(x.mT, x).sum(dim=0, dtype=torch.float64)))
            return
        # Adding up matrices takes long where they are larger than what they are products of.
        for part in x.split(max(1, _TERMS // T)):
            self._include(_product(part))

    def matrix(self) -> Array:
        """The sum so far."""
        self._multiply()
        assert self._total is not None
        return self._total

    def _multiply(self) -> None:
        if self._waiting:
            rows = torch.cat(self._waiting).double()
            self._waiting = []
            self._include(_square(rows))

    def _include(self, product: Array) -> None:
        if self._total is None:
            self._total = np.zeros(product.shape)
        self._total += product


def _product(x: torch.Tensor) -> Array:
    """The sum of x x' over the examples and positions of (n, T, d), in its own precision."""
    if x.stride(-1) == 1:
        flat = x.reshape(-1, x.shape[-1])
    else:  # patches, whose positions lie side by side
        flat = x.mT.transpose(0, 1).reshape(x.shape[-1], -1).T
    return _square(flat)


def _square(x: torch.Tensor) -> Array:
    """x' x. NumPy sees the symmetry and does half of the work, but has threads of its own.

    Threads of two pools that take turns wait for each other, ten times as long as they work: so it
    gets one, which is as fast as two of PyTorch's.
    """
    if x.device.type != "cpu" or torch.get_num_threads() > 2:
        return to_numpy(x.T @ x)
    rows = x.numpy()
    with one_blas_thread():
        return np.asarray(rows.T @ rows)


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
    A: list[Array],
    B: list[Array],
    biases: dict[str, str],
    transposed: bool,
) -> list[KroneckerBlock]:
    """One for each group of a weight."""
    at = gradients.columns[name]
    g, i, o = len(A), len(A[0]), len(B[0])
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
