"""Newton's method for a generalised linear model with a Gaussian prior, in float64.

The cost is C(V) = sum_i c_i nll(f_i V, y_i) + 1/2 sum_j L_j |V_j|^2 with features f_i, coefficients
V of shape (r, C), counts c_i and prior precisions L_j. It is strictly convex, so there is one
minimum; Newton's steps with backtracking reach it from anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.linalg.blas import dgemm, dsyrk
from scipy.linalg.lapack import dpotrf
from scipy.special import expit, log_expit, logsumexp

from noisescale.errors import InputError

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

_MAX_STEPS = 500
_BLOCK = 1 << 22  # numbers in a temporary array


class Family(Protocol):
    """A likelihood of labels given C outputs an example."""

    n_outputs: int
    n_classes: int

    def nll(self, outputs: Array, labels: Labels) -> Array:
        """Nats per example (N,)."""

    def slopes(self, outputs: Array, labels: Labels) -> tuple[Array, Array]:
        """Gradient (N, C) and Hessian (N, C, C) of each example's nll in its outputs."""

    def logits(self, outputs: Array) -> Array:
        """Logits as users see them: (N,) for two classes, (N, K) for more."""


class Bernoulli:
    """Two classes, one logit."""

    n_outputs = 1
    n_classes = 2

    def nll(self, outputs: Array, labels: Labels) -> Array:
        """Minus ln sigmoid of the signed logit."""
        return np.asarray(-log_expit(_signed(outputs, labels)))

    def slopes(self, outputs: Array, labels: Labels) -> tuple[Array, Array]:
        """The residual keeps its relative accuracy where the fit is nearly perfect."""
        z = _signed(outputs, labels)
        wrong = expit(-z)  # probability of the other label
        gradient = np.where(labels == 1, -wrong, wrong)
        return gradient[:, None], (wrong * expit(z))[:, None, None]

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
        return np.asarray(logsumexp(logits, axis=1) - logits[np.arange(len(labels)), labels])

    def slopes(self, outputs: Array, labels: Labels) -> tuple[Array, Array]:
        """Residuals and curvatures, without cancellation where the fit is nearly perfect."""
        logits = self.logits(outputs)
        p = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))  # (N, K)
        rows = np.arange(len(labels))
        others = p.copy()
        others[rows, labels] = 0
        wrong = others.sum(axis=1)  # 1 - p[label]
        gradient = others
        gradient[rows, labels] = -wrong
        curvature = -p[:, :, None] * p[:, None, :]
        not_p = 1 - p
        not_p[rows, labels] = wrong
        diagonal = np.arange(self.n_classes)
        curvature[:, diagonal, diagonal] = p * not_p
        Q = self.contrasts
        return np.asarray(gradient @ Q), np.asarray(Q.T @ curvature @ Q)

    def logits(self, outputs: Array) -> Array:
        """All K logits."""
        return np.asarray(outputs @ self.contrasts.T)


def family_of(n_classes: int) -> Family:
    """One logit for two classes, a softmax for more."""
    return Bernoulli() if n_classes == 2 else Softmax(n_classes)


@dataclass(frozen=True, eq=False)
class Optimum:
    """The minimum of the cost: coefficients (r, C), and the curvature there.

    ``factor`` is the lower Cholesky factor of the Hessian of the whole cost, prior included, over
    the coefficients in C-major order (output by output).
    """

    coefficients: Array
    nll: float
    penalty: float
    factor: Array
    gradient_norm: float
    newton_decrement: float
    n_steps: int


@dataclass(frozen=True, eq=False)
class Cost:
    """The cost as a function of coefficients V (r, C) and the outputs (N, C) they give."""

    family: Family
    features: Array  # (N, r)
    labels: Labels  # (N,)
    counts: Array  # (N,)
    precisions: Array  # (r,)

    def parts(self, V: Array, outputs: Array) -> tuple[float, float]:
        """The nll and the penalty."""
        nll = self.counts @ self.family.nll(outputs, self.labels)
        return float(nll), float(0.5 * (self.precisions[:, None] * V**2).sum())

    def gradient(self, V: Array, outputs: Array) -> tuple[Array, Array]:
        """The gradient, output by output, and the examples' curvatures (N, C, C)."""
        slope, curvature = self.family.slopes(outputs, self.labels)
        gradient = _product(self.features.T, self.counts[:, None] * slope)  # (r, C)
        return (gradient + self.precisions[:, None] * V).T.ravel(), curvature

    def gradient_and_factor(self, V: Array, outputs: Array) -> tuple[Array, Array]:
        """The gradient, and the lower Cholesky factor of the Hessian (its lower triangle)."""
        gradient, curvature = self.gradient(V, outputs)
        r, C = V.shape
        if C == 1:
            # Rounding may leave a vanishing curvature just below zero.
            weights = np.sqrt(self.counts * np.maximum(curvature[:, 0, 0], 0))
            hessian = dsyrk(1.0, (weights[:, None] * self.features).T, lower=True)
        else:
            hessian = self._block_hessian(r, C, self.counts[:, None, None] * curvature)
        hessian[np.diag_indices(C * r)] += np.tile(self.precisions, C)
        factor, failed = dpotrf(hessian, lower=True, clean=False, overwrite_a=True)
        if failed:
            raise InputError(
                f"the prior (smallest precision {self.precisions.min():.2g}) is lost in the "
                "rounding of the curvature: rescale the features or choose a larger precision."
            )
        return gradient, factor

    def _block_hessian(self, r: int, C: int, weights: Array) -> Array:
        """Blocks (a, b) for b <= a, the sum over examples of weights[a, b] f f'."""
        hessian = np.zeros((C * r, C * r), order="F")
        n_rows = max(1, _BLOCK // max(1, C * r))
        for start in range(0, len(self.features), n_rows):
            F, w = self.features[start : start + n_rows], weights[start : start + n_rows]
            for a in range(C):  # all b <= a in one product
                scaled = (w[:, a, : a + 1, None] * F[:, None, :]).reshape(len(F), -1)
                hessian[a * r : (a + 1) * r, : (a + 1) * r] += _product(F.T, scaled)
        return hessian


def minimise(cost: Cost, *, starts: Sequence[Array] = (), tolerance: float = 1e-10) -> Optimum:
    """Newton from the best of ``starts`` (or zero) until the decrement is at most ``tolerance``.

    (In nats, or in units of the cost where that is below one nat.)

    The determinant, unlike the cost, feels the distance from the minimum to first order, about
    the root of the decrement: one more step follows unless that is below 1e-8 already.
    """
    r, C = cost.features.shape[1], cost.family.n_outputs
    tried = [(V, _product(cost.features, V)) for V in (starts or [np.zeros((r, C))])]
    V, outputs = min(tried, key=lambda point: sum(cost.parts(*point)))
    nll, penalty = cost.parts(V, outputs)
    polished = False
    for n_steps in range(_MAX_STEPS):
        gradient, factor = cost.gradient_and_factor(V, outputs)
        step, decrement = _newton_step(gradient, factor, C)
        # On separable data under a weak prior the whole cost is a millionth of a nat: what counts
        # for the determinant is the decrement in proportion to it.
        scale = min(1.0, nll + penalty)
        close = decrement <= tolerance * scale
        if close and (polished or decrement <= 1e-16 * scale):
            return Optimum(
                V, nll, penalty, factor, float(np.linalg.norm(gradient)), decrement, n_steps
            )
        polished = close
        along = _product(cost.features, step)
        size = 1.0
        while True:
            new_V, new_outputs = V + size * step, outputs + size * along
            gain = nll + penalty - sum(cost.parts(new_V, new_outputs))
            # Close to the minimum the gain drowns in rounding, and there Newton needs no search.
            if gain >= 1e-4 * size * decrement or decrement < 1e-6 or size < 1e-12:
                break
            size /= 2
        V, outputs = new_V, new_outputs
        if decrement < 1:
            V, outputs = _chord_steps(cost, V, outputs, factor, decrement, 1e-18 * scale)
        nll, penalty = cost.parts(V, outputs)
    raise RuntimeError(
        f"Newton's method did not converge in {_MAX_STEPS} steps (decrement {decrement:.1e})."
    )


def _newton_step(gradient: Array, factor: Array, n_outputs: int) -> tuple[Array, float]:
    """The step (r, C) that a factorised Hessian suggests, and its decrement."""
    direction = -scipy.linalg.cho_solve((factor, True), gradient, check_finite=False)
    return direction.reshape(n_outputs, -1).T, float(-gradient @ direction)


def _chord_steps(
    cost: Cost, V: Array, outputs: Array, factor: Array, decrement: float, enough: float
) -> tuple[Array, Array]:
    """Steps with the Hessian of the last point, while each divides the decrement by ten or more.

    Near the minimum the Hessian hardly changes, and building and factorising it is nine tenths of
    a Newton step: this finishes the job at a tenth of the price.
    """
    while True:
        gradient, _ = cost.gradient(V, outputs)
        last = decrement
        step, decrement = _newton_step(gradient, factor, V.shape[1])
        if not enough < decrement < 0.1 * last:
            return V, outputs
        V, outputs = V + step, outputs + _product(cost.features, step)


def _product(A: Array, B: Array) -> Array:
    """A @ B by SciPy's BLAS, which also factorises.

    NumPy brings a BLAS of its own, and where both take turns their threads wait for each other:
    measured, a path over the prior precision takes up to three times as long.
    """
    # BLAS wants column-major, so a row-major product is computed as (A B)' = B' A'.
    if A.flags.c_contiguous:
        return np.asarray(dgemm(1.0, B.T, A.T).T)
    return np.asarray(dgemm(1.0, B.T, A, trans_b=True).T)
