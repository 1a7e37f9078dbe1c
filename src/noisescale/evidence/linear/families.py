"""Likelihoods of labels given linear outputs: nll, gradient, and Hessian in the coefficients.

Each keeps its relative accuracy where the fit is nearly perfect. With o the probabilities of the
other classes than the label l, the Hessian of a softmax's nll in its logits is

    sum_{j != l} o_j (e_j - e_l)(e_j - e_l)' - v v',    v = sum_{j != l} o_j (e_j - e_l),

in which nothing cancels when o is small; v is also the gradient. Summed over examples f_i, the
first part needs one matrix F' diag(o_j) F for each pair of classes, the second one symmetric
product.
"""

from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dsyrk
from scipy.special import expit, log_expit

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

_BLOCK = 1 << 22  # numbers in a temporary array


class Family(Protocol):
    """A likelihood of labels given C outputs an example."""

    n_outputs: int
    n_classes: int

    def nll(self, outputs: Array, labels: Labels) -> Array:
        """Nats per example (N,)."""

    def gradient(self, outputs: Array, labels: Labels) -> Array:
        """The gradient (N, C) of each example's nll in its outputs."""

    def hessian(self, features: Array, counts: Array, outputs: Array, labels: Labels) -> Array:
        """Of the summed nll in the coefficients, output by output: (C r, C r), lower triangle."""

    def logits(self, outputs: Array) -> Array:
        """Logits as users see them: (N,) for two classes, (N, K) for more."""


class Bernoulli:
    """Two classes, one logit."""

    n_outputs = 1
    n_classes = 2

    def nll(self, outputs: Array, labels: Labels) -> Array:
        """Minus ln sigmoid of the signed logit."""
        return np.asarray(-log_expit(_signed(outputs, labels)))

    def gradient(self, outputs: Array, labels: Labels) -> Array:
        """The probability of the other label, signed."""
        wrong = expit(-_signed(outputs, labels))
        return np.asarray(np.where(labels == 1, -wrong, wrong)[:, None])

    def hessian(self, features: Array, counts: Array, outputs: Array, labels: Labels) -> Array:
        """One symmetric product."""
        z = _signed(outputs, labels)
        curvature = expit(-z) * expit(z)
        weights = np.sqrt(counts * np.maximum(curvature, 0))
        return np.asarray(dsyrk(1.0, (weights[:, None] * features).T, lower=True))

    def logits(self, outputs: Array) -> Array:
        """The logit of class 1."""
        return outputs[:, 0]


def _signed(outputs: Array, labels: Labels) -> Array:
    return np.where(labels == 1, outputs[:, 0], -outputs[:, 0])


class Softmax:
    """K classes, K logits that sum to zero, written in K - 1 orthonormal contrasts.

    With the same prior on every class the sum of the logits' weights has no data gradient: at the
    MAP it is zero, and its directions keep their prior, so they add nothing to the evidence.
    """

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.n_outputs = n_classes - 1
        # Orthonormal columns that are orthogonal to (1, ..., 1).
        self.contrasts = scipy.linalg.helmert(n_classes).T  # (K, K - 1)

    def nll(self, outputs: Array, labels: Labels) -> Array:
        """Minus the log-softmax of the label."""
        logits = self.logits(outputs)
        # From the label's logit on: small where the label is all but certain, and accurate there.
        gaps = logits - logits[np.arange(len(labels)), labels][:, None]
        top = gaps.max(axis=1)
        return np.asarray(top + np.log(np.exp(gaps - top[:, None]).sum(axis=1)))

    def _others(self, outputs: Array, labels: Labels) -> Array:
        """The probabilities of the classes that are not the label, 0 for the label: (N, K)."""
        logits = self.logits(outputs)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(labels)), labels] = 0
        return np.asarray(p)

    def gradient(self, outputs: Array, labels: Labels) -> Array:
        """v in contrasts."""
        return self._gradient(self._others(outputs, labels), labels)

    def _gradient(self, others: Array, labels: Labels) -> Array:
        wrong = others.sum(axis=1)
        return np.asarray(product(others, self.contrasts) - wrong[:, None] * self.contrasts[labels])

    def hessian(self, features: Array, counts: Array, outputs: Array, labels: Labels) -> Array:
        """Pairs of classes, less the product of gradients."""
        r, C, K = features.shape[1], self.n_outputs, self.n_classes
        others = self._others(outputs, labels)
        slopes = np.sqrt(counts)[:, None] * self._gradient(others, labels)
        hessian = self._pairs(features, counts[:, None] * others, labels)
        n_rows = max(1, _BLOCK // max(1, K * r))
        for start in range(0, len(features), n_rows):
            rows = slice(start, start + n_rows)
            B = slopes[rows, :, None] * features[rows, None, :]  # (n, C, r)
            B = B.reshape(len(B), C * r)
            hessian = dsyrk(-1.0, B.T, beta=1.0, c=hessian, lower=True, overwrite_c=True)
        return np.asarray(hessian)

    def _pairs(self, features: Array, others: Array, labels: Labels) -> Array:
        """sum over pairs j != l of (q_j - q_l)(q_j - q_l)' x F_l' diag(o_j) F_l."""
        r, C, K = features.shape[1], self.n_outputs, self.n_classes
        grams = np.zeros((K, K, r * r))  # by class and label
        n_rows = max(1, _BLOCK // max(1, K * r))
        for label in range(K):
            mine = np.flatnonzero(labels == label)
            for start in range(0, len(mine), n_rows):
                rows = mine[start : start + n_rows]
                F = features[rows]  # (n, r)
                scaled = others[rows, :, None] * F[:, None, :]  # (n, K, r)
                between = product(F.T, scaled.reshape(len(rows), K * r))  # (r, K r)
                grams[:, label] += between.reshape(r, K, r).swapaxes(0, 1).reshape(K, r * r)
        j, l = np.tril_indices(K, -1)  # noqa: E741, as in the formula
        Q = self.contrasts
        d = Q[j] - Q[l]  # (pairs, C)
        outer = (d[:, :, None] * d[:, None, :]).reshape(len(d), C * C)
        blocks = product(outer.T, grams[j, l] + grams[l, j])  # (C C, r r)
        by_output = blocks.reshape(C, C, r, r).swapaxes(1, 2).reshape(C * r, C * r)
        return np.asfortranarray(by_output)

    def logits(self, outputs: Array) -> Array:
        """All K logits."""
        return np.asarray(outputs @ self.contrasts.T)


def family_of(n_classes: int) -> Family:
    """One logit for two classes, a softmax for more."""
    return Bernoulli() if n_classes == 2 else Softmax(n_classes)


def product(A: Array, B: Array) -> Array:
    """A @ B by SciPy's BLAS, which also factorises.

    NumPy brings a BLAS of its own, and where both take turns their threads wait for each other:
    measured, a path over the prior precision takes up to three times as long.
    """
    # BLAS wants column-major, so a row-major product is computed as (A B)' = B' A'.
    if A.flags.c_contiguous:
        return np.asarray(dgemm(1.0, B.T, A.T).T)
    return np.asarray(dgemm(1.0, B.T, A, trans_b=True).T)
