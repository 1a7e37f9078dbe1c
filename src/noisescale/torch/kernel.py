"""The dual kernel of a module, by layer rules where they are cheaper.

    K = sum over parameters of (1/lambda) G G',   G (rows, size) the parameter's gradients.

For a weight G G' is either a product of formed gradients (2 i o operations an entry) or, from Gram
matrices of inputs and output gradients, T^2 (o + i/k^2): whichever counts fewer. Formed gradients
of all rows are held where they fit into memory. Where they do not, inputs and output gradients may,
which are fewer numbers where positions are few: then they are formed a parameter at a time.
"""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from noisescale.evidence.occam.kernel import LEFT_OUT, add_products, rows_fit
from noisescale.evidence.pace import advance, stage, tick
from noisescale.evidence.problem import Array
from noisescale.evidence.rows import Rows, by_examples
from noisescale.torch.factors import Factor, Formed
from noisescale.torch.rows import ExampleGradients, RowBlock
from noisescale.torch.tensors import to_numpy


class FactorKernel:
    """K from factors of gradients: formed and held, formed when wanted, or multiplied as they are.

    ``hold`` the formed ones, or form them each time.
    """

    def __init__(
        self, gradients: ExampleGradients, L: Array, rows: Rows, size: int, *, hold: bool = True
    ) -> None:
        self.gradients, self.n_rows = gradients, len(rows)
        used = {name: at for name, at in gradients.columns.items() if L[at].min() < LEFT_OUT}
        self.precisions: dict[str, float] = {}  # of what is multiplied as it is
        self.factors: list[dict[str, Factor]] = []
        self.places: list[NDArray[np.int64]] = []
        self.formed: dict[str, slice] = {}  # columns of A
        self.late: dict[str, Array] = {}  # roots of the precisions of what is formed when wanted
        stage("rows", len(rows))
        start = 0
        for block in by_examples(rows, size):
            shape = RowBlock.of(block)
            c = gradients.problem.tensor(shape.coefficients, gradients.precision)
            found = gradients.factors(shape.examples, c)
            if start == 0:
                self._choose({name: found[name] for name in used}, L, hold)
            stop = start + len(block)
            for name, into in self.formed.items():
                g = found[name].gradients().flatten(0, 1)
                root = self.root[into]
                self.A[start:stop, into] = to_numpy(g)[shape.places] / root
            self.factors.append({name: found[name] for name in (*self.precisions, *self.late)})
            self.places.append(shape.places)
            start = stop
            advance(len(block))

    def _choose(self, found: dict[str, Factor], L: Array, hold: bool) -> None:
        """What is formed, in which columns of A, and what is not, or not yet."""
        parts, start = [np.zeros(0)], 0
        for name, factor in found.items():
            own = L[self.gradients.columns[name]]
            alike = bool((own == own[0]).all()) and not isinstance(factor, Formed)
            if alike and factor.kernel_flops() < 2 * len(own):
                self.precisions[name] = float(own[0])
            elif not hold and not isinstance(factor, Formed):
                self.late[name] = np.sqrt(own)
            else:
                self.formed[name] = slice(start, start + len(own))
                parts.append(np.sqrt(own))
                start += len(own)
        self.root = np.concatenate(parts)
        self.A = np.empty((self.n_rows, start))

    def diagonal(self) -> Array:
        """The diagonal of K."""
        total = np.einsum("rp,rp->r", self.A, self.A)
        start = 0
        for factors, places in zip(self.factors, self.places, strict=True):
            for name, factor in factors.items():
                if name in self.late:
                    G = self._now(name, factor, places)
                    total[start : start + len(places)] += np.einsum("rp,rp->r", G, G)
                    continue
                norms = to_numpy(factor.squared_norms()).ravel()[places]
                total[start : start + len(places)] += norms / self.precisions[name]
            start += len(places)
        return np.asarray(total)

    def _now(self, name: str, factor: Factor, places: NDArray[np.int64]) -> Array:
        """Rows of what is formed when wanted, in the units of the prior."""
        return to_numpy(factor.gradients().flatten(0, 1))[places] / self.late[name]

    def matrix(self, kept: NDArray[np.bool_]) -> Array:
        """K, its lower triangle."""
        n = int(kept.sum())
        K = np.zeros((n, n))
        if self.A.shape[1]:
            add_products(K, self.A if kept.all() else self.A[kept], multiply=_matmul)
        ends = np.cumsum([0, *(len(places) for places in self.places)])
        own = [kept[a:b] for a, b in pairwise(ends)]
        ends = np.cumsum([0, *(int(mask.sum()) for mask in own)])
        for k, (name, root) in enumerate(self.late.items(), 1):
            G = np.empty((n, len(root)))
            for i, mask in enumerate(own):
                at = self.places[i][mask]
                G[ends[i] : ends[i + 1]] = self._now(name, self.factors[i][name], at)
                tick()
            add_products(K, G, multiply=_matmul, of=f"kernel, {k} of {len(self.late)}")
        if not self.precisions:
            return K
        stage("kernel of layers", n**2)
        for i, mask in enumerate(own):
            at = self.places[i][mask]
            for j in range(i + 1):
                part = self._between(i, j)[at][:, self.places[j][own[j]]]
                K[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] += part
                tick()
            advance(float(ends[i + 1] ** 2 - ends[i] ** 2))
        return K

    def _between(self, i: int, j: int) -> Array:
        """Products of two blocks' gradients, in the units of the prior."""
        first, second = self.factors[i], self.factors[j]
        total: torch.Tensor | None = None
        for name, precision in self.precisions.items():
            part = first[name].kernel(second[name]) / precision
            total = part if total is None else total.add_(part)
        assert total is not None
        return to_numpy(total)

    @property
    def numbers_a_row(self) -> int:
        """What a row takes: its formed gradients, and its share of the factors.

        Those of the largest parameter too that is formed when wanted.
        """
        factors = (f for block in self.factors for f in block.values())
        held: int = sum(
            tensor.numel()
            for factor in factors
            for tensor in vars(factor).values()
            if isinstance(tensor, torch.Tensor)
        )
        largest = max(map(len, self.late.values()), default=0)
        return int(self.A.shape[1]) + largest + -(-held // max(self.n_rows, 1))

    def along(self, direction: Array) -> Array:
        """The product of every row with a direction."""
        columns = self.gradients.columns
        own = np.concatenate([np.zeros(0), *(direction[columns[name]] for name in self.formed)])
        total = self.A @ (own * self.root)
        start = 0
        for factors, places in zip(self.factors, self.places, strict=True):
            for name, factor in factors.items():
                v = self.gradients.problem.tensor(
                    direction[columns[name]], self.gradients.precision
                )
                total[start : start + len(places)] += to_numpy(factor.along(v)).ravel()[places]
            start += len(places)
        return np.asarray(total)


def _matmul(a: Array, b: Array) -> Array:
    """By PyTorch's threads: those of NumPy would wait for them, and they for those."""
    return np.asarray((torch.from_numpy(a) @ torch.from_numpy(b)).numpy())


def factor_kernel(
    gradients: ExampleGradients, L: Array, rows: Rows, size: int
) -> FactorKernel | None:
    """The kernel by rules, ``size`` rows at a time; None if its rows would not fit into memory."""
    if rows_fit(len(rows), int((L < LEFT_OUT).sum())):
        return FactorKernel(gradients, L, rows, size)
    one = int((rows.examples == rows.examples[0]).sum())  # example, of thousands of rows maybe
    block = rows[: min(one, size)]
    for hold in (True, False):  # unless layers are not formed, or not yet: of one block we know
        columns = FactorKernel(gradients, L, block, size, hold=hold).numbers_a_row
        if rows_fit(len(rows), columns):
            return FactorKernel(gradients, L, rows, size, hold=hold)
    return None
