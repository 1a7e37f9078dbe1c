"""The softmax Hessian of a small problem as one matrix product.

With A_i the Hessian of example i's nll in its C outputs,

    H = sum_i c_i A_i x f_i f_i',    A_i = sum_{j != l} o_j (q_j - q_l)(q_j - q_l)' - v_i v_i',

in the notation of :mod:`noisescale.evidence.linear.families`. Both factors are symmetric: A_i has
C(C+1)/2 numbers and f_i f_i' has r(r+1)/2, which no fit changes. With the latter kept, all blocks
of H are one product (C(C+1)/2, N) (N, r(r+1)/2), with a third of the work of forming H from its
square roots; they need N r(r+1)/2 numbers of memory, so that this is for small problems.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from noisescale.evidence.linear.families import Array, Labels, Softmax, product
from noisescale.evidence.linear.regression import LinearProblem

_LARGEST = 1 << 24  # numbers kept: 128 MiB


class PackedSoftmax(Softmax):
    """:class:`Softmax` for one set of features (N, r), whose products it keeps.

    ``last`` is the last Hessian that it computed, packed; before any, that at zero.
    """

    def __init__(self, n_classes: int, features: Array, counts: Array) -> None:
        super().__init__(n_classes)
        self.features = features
        r, C = features.shape[1], self.n_outputs
        a, b = np.tril_indices(r)
        self.products = features[:, a] * features[:, b]  # (N, r(r+1)/2)
        self._square = _positions(r)  # (r, r) into the packed products
        self._outputs = np.tril_indices(C)
        gaps = self.contrasts[:, None, :] - self.contrasts[None, :, :]  # (K, K, C): q_j - q_l
        a, b = self._outputs
        self._outer = gaps[..., a] * gaps[..., b]  # (K, K, C(C+1)/2), by class and label
        # At zero A_i = I/K.
        self.last = np.zeros((len(a), self.products.shape[1]))
        self.last[a == b] = counts @ self.products / n_classes

    def hessian(self, features: Array, counts: Array, outputs: Array, labels: Labels) -> Array:
        """As :meth:`Softmax.hessian`, to rounding."""
        if features is not self.features:
            raise ValueError("a PackedSoftmax knows the features that it was made with only.")
        others = self._others(outputs, labels)
        v = self._gradient(others, labels)  # (N, C)
        A = np.empty((len(labels), len(self._outputs[0])))
        for label in range(self.n_classes):
            mine = labels == label
            A[mine] = others[mine] @ self._outer[:, label]
        A -= v[:, self._outputs[0]] * v[:, self._outputs[1]]
        A *= counts[:, None]
        self.last = product(A.T, self.products)  # (C(C+1)/2, r(r+1)/2)
        return self.unpacked(self.last)

    def unpacked(self, blocks: Array) -> Array:
        """The lower triangle of (C r, C r) from its (C(C+1)/2, r(r+1)/2) numbers."""
        r, C = self.features.shape[1], self.n_outputs
        hessian = np.zeros((C * r, C * r), order="F")
        for block, a, b in zip(blocks, *self._outputs, strict=True):
            hessian[a * r : (a + 1) * r, b * r : (b + 1) * r] = block.take(self._square)
        return hessian


def _positions(n: int) -> NDArray[np.intp]:
    """Where a symmetric matrix's elements lie in its packed lower triangle: (n, n)."""
    positions = np.empty((n, n), np.intp)
    a, b = np.tril_indices(n)
    positions[a, b] = positions[b, a] = np.arange(len(a))
    return positions


def packed(problem: LinearProblem) -> LinearProblem:
    """The same problem with its Hessians computed this way, if it is a softmax and small."""
    n, r = problem.design.features.shape
    if problem.family.n_outputs == 1 or n * r * (r + 1) // 2 > _LARGEST:
        return problem
    family = PackedSoftmax(problem.family.n_classes, problem.design.features, problem.counts)
    return dataclasses.replace(problem, family=family)
