"""Lanczos from given vectors: a symmetric operator as tridiagonal matrices, products alone needed.

m steps from z give a Gauss quadrature of z' f(M) z: nodes theta (Ritz values) and weights. Every
step is orthogonalised against all before it, twice, so that no eigenvalue is counted again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

_WIDE = 1 << 16  # parameters from which on vectors are kept in float32
LOOK = 8  # steps between two looks at the quadrature
SETTLED = 1e-4  # of its value: far below the spread over probes


@dataclass(frozen=True)
class Tridiagonal:
    """What m steps of Lanczos from one probe leave: the diagonal and the off-diagonal."""

    alpha: Array  # (m,)
    beta: Array  # (m - 1,)

    def quadrature(self, steps: int | None = None) -> tuple[Array, Array]:
        """Nodes and weights after so many steps (all by default); the weights sum to 1."""
        m = len(self.alpha) if steps is None else min(steps, len(self.alpha))
        nodes, vectors = scipy.linalg.eigh_tridiagonal(self.alpha[:m], self.beta[: m - 1])
        return nodes, vectors[0] ** 2

    def integrate(self, f: Function, steps: int | None = None) -> float:
        """z' f(M) z/p."""
        nodes, weights = self.quadrature(steps)
        return float(weights @ f(nodes))


def width_of(p: int) -> int:
    """Bytes of a number of the vectors that are kept."""
    return 4 if p > _WIDE else 8


def resolution(nodes: Array, n_steps: int, p: int) -> float:
    """How near zero m steps of Lanczos can tell eigenvalues from it: about the norm over m^2.

    With as many steps as parameters, rounding alone is left.
    """
    return float(np.abs(nodes).max(initial=0.0)) * (1e-10 if n_steps >= p else 1 / n_steps**2)


def lanczos(
    operator: LinearOperator, start: Array, max_steps: int, f: Function | None = None
) -> Tridiagonal:
    """At most ``max_steps`` of Lanczos from ``start``.

    Fewer if the space is exhausted, or if the last quarter of the steps no longer changes the
    quadrature of ``f``.
    """
    return lanczos_basis(operator, start, max_steps, f)[0]


def lanczos_basis(
    operator: LinearOperator, start: Array, max_steps: int, f: Function | None = None
) -> tuple[Tridiagonal, NDArray[np.floating]]:
    """:func:`lanczos` with the orthonormal vectors (m, p) it went through."""
    run = Run(start, min(max_steps, operator.shape[0]), f)
    while not run.ended and not run.settled:
        run.take(np.asarray(operator @ run.q, np.float64))
    return run.tridiagonal, run.Q[: run.steps]


def lanczos_together(
    operator: LinearOperator, starts: Array, max_steps: int, f: Function | None = None
) -> list[Tridiagonal]:
    """:func:`lanczos` from each of several starts (b, p), whose products are made in one pass.

    All go on until the last has settled: a product with fewer vectors would hardly be quicker.
    """
    runs = [Run(start, min(max_steps, operator.shape[0]), f) for start in starts]
    while not all(run.ended or run.settled for run in runs):
        W = np.asarray(operator @ np.stack([run.q for run in runs], axis=1), np.float64)
        for run, w in zip(runs, W.T, strict=True):
            if not run.ended:
                run.take(w.copy())
    return [run.tridiagonal for run in runs]


class Run:
    """Lanczos from one start, a product at a time.

    Attributes:
        Q: the orthonormal vectors so far, of which ``steps`` are filled.
        q: the vector to multiply next; zeros at the end.
        settled: whether the last quarter of the steps no longer changes the quadrature of ``f``.
        ended: whether the space or the number of steps is exhausted.
    """

    def __init__(self, start: Array, max_steps: int, f: Function | None) -> None:
        p = len(start)
        self.Q = np.empty((max_steps, p), np.float32 if width_of(p) == 4 else np.float64)
        self.alpha, self.beta = np.zeros(max_steps), np.zeros(max_steps)
        self.q, self.f = start / np.linalg.norm(start), f
        self.steps, self.settled, self.ended = 0, False, max_steps == 0

    @property
    def tridiagonal(self) -> Tridiagonal:
        """Of all steps so far."""
        return Tridiagonal(self.alpha[: self.steps], self.beta[: max(self.steps - 1, 0)])

    def take(self, w: Array) -> None:
        """A step, with w the product of ``q``."""
        j, Q = self.steps, self.Q
        Q[j] = self.q
        self.alpha[j] = self.q @ w
        for _ in range(2):
            w -= Q[: j + 1].T @ (Q[: j + 1] @ w.astype(Q.dtype))
        self.beta[j] = scipy.linalg.norm(w, check_finite=False)  # whose squares do not overflow
        if not np.isfinite((self.alpha[j], self.beta[j])).all():
            raise InputError(
                "products with the curvature are not finite: scale the inputs or the parameters "
                "down."
            )
        self.steps = j + 1
        scale = max(np.abs(self.alpha[: j + 1]).max(), self.beta[: j + 1].max())
        # An invariant subspace: the rest is exact.
        exhausted = self.beta[j] <= 1e-10 * scale or scale == 0
        self.ended = exhausted or self.steps == len(self.alpha)
        self.q = np.zeros_like(w) if self.ended else w / self.beta[j]
        if self.f is not None and not self.ended and j % LOOK == LOOK - 1:
            value = self.tridiagonal.integrate(self.f)
            before = self.tridiagonal.integrate(self.f, 3 * self.steps // 4)
            self.settled = abs(value - before) <= SETTLED * abs(value)
