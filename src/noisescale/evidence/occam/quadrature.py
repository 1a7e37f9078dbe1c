"""Stochastic Lanczos quadrature: tr f(M) of a symmetric operator from products with it.

A random sign vector z has E[z' f(M) z] = tr f(M), and m steps of Lanczos from z give a Gauss
quadrature of z' f(M) z: nodes theta (Ritz values) and weights. Every step is orthogonalised against
all before it, twice, so that no eigenvalue is counted again.

Two errors, both reported: the spread over probes, and what the last quarter of the steps changed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError
from noisescale.evidence.pace import stage
from noisescale.seeds import random_stream

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

FEWEST_PROBES = 8  # a standard error from fewer is not worth much
LOOK = 8  # steps between two looks at the quadrature
SETTLED = 1e-4  # of its value: far below the spread over probes
_WIDE = 1 << 16  # parameters from which on vectors are kept in float32
_BYTES = 1 << 30  # of the vectors of probes that go together
_Z = float(stats.norm.ppf(0.975))


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


@dataclass(frozen=True)
class TraceEstimate:
    """tr f(M) with its errors.

    Attributes:
        value: the mean over probes.
        std: a standard error such that +-1.96 of it cover as Student's t says for so few probes,
            the quadrature error added in.
        quadrature_error: what the last quarter of the Lanczos steps changed, on average.
        n_probes, n_steps: how much work it took; the steps of the longest run.
        reached: whether the tolerance was.
        largest, smallest: extreme Ritz values seen.
        probes: the quadratures themselves.
    """

    value: float
    std: float
    quadrature_error: float
    n_probes: int
    n_steps: int
    reached: bool
    largest: float
    smallest: float
    probes: tuple[Tridiagonal, ...]


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
    run = _Run(start, min(max_steps, operator.shape[0]), f)
    while not run.ended and not run.settled:
        run.take(np.asarray(operator @ run.q, np.float64))
    return run.tridiagonal, run.Q[: run.steps]


def lanczos_together(
    operator: LinearOperator, starts: Array, max_steps: int, f: Function | None = None
) -> list[Tridiagonal]:
    """:func:`lanczos` from each of several starts (b, p), whose products are made in one pass.

    All go on until the last has settled: a product with fewer vectors would hardly be quicker.
    """
    runs = [_Run(start, min(max_steps, operator.shape[0]), f) for start in starts]
    while not all(run.ended or run.settled for run in runs):
        W = np.asarray(operator @ np.stack([run.q for run in runs], axis=1), np.float64)
        for run, w in zip(runs, W.T, strict=True):
            if not run.ended:
                run.take(w.copy())
    return [run.tridiagonal for run in runs]


class _Run:
    """Lanczos from one start, a product at a time.

    Attributes:
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
        if not np.isfinite(w).all():
            raise InputError(
                "products with the curvature are not finite: scale the inputs or the parameters "
                "down."
            )
        j, Q = self.steps, self.Q
        Q[j] = self.q
        self.alpha[j] = self.q @ w
        for _ in range(2):
            w -= Q[: j + 1].T @ (Q[: j + 1] @ w.astype(Q.dtype))
        self.beta[j] = np.linalg.norm(w)
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


def width_of(p: int) -> int:
    """Bytes of a number of the vectors that are kept."""
    return 4 if p > _WIDE else 8


def standard_error(spread: float, n: int) -> float:
    """Of the mean of n values with this standard deviation, such that +-1.96 cover as t says."""
    if n < 2:
        return math.inf
    return spread / math.sqrt(n) * float(stats.t.ppf(0.975, n - 1)) / _Z


def expected_probes(spread: float, goal: float, most: int) -> float:
    """How many probes a tolerance takes on average, which are this far apart.

    They are doubled until their standard error is small enough, and what n of them say of their
    spread is itself spread like a chi^2 of n - 1.

    >>> [round(expected_probes(spread, 1.0, 64), 1) for spread in (0.5, 3.0, 9.0)]
    [8.0, 15.1, 64.0]
    """
    n, expected, going = min(FEWEST_PROBES, most), 0.0, 1.0
    while n < most:
        ratio = goal / max(standard_error(spread, n), 1e-300)
        ends = float(stats.chi2.cdf((n - 1) * ratio**2, n - 1))
        expected, going, n = expected + going * ends * n, going * (1 - ends), min(2 * n, most)
    return expected + going * most


def at_once(p: int, n_steps: int, n_probes: int) -> int:
    """How many probes go together: as many as memory holds the vectors of, in even parts.

    >>> at_once(636_010, 64, 8), at_once(10_000_000, 64, 8)
    (4, 1)
    """
    fitting = max(1, _BYTES // (width_of(p) * max(p, 1) * min(n_steps, p)))
    return math.ceil(n_probes / math.ceil(n_probes / min(fitting, n_probes)))


def trace_of_function(
    operator: LinearOperator,
    f: Function,
    *,
    tolerance: float,
    relative: float = 0.0,
    max_probes: int = 64,
    n_steps: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> TraceEstimate:
    """tr f(M) until its standard error is below ``tolerance`` or ``relative`` of the value.

    Probes are added in doublings, because a rule that looks after each of them stops when the
    spread happens to look small.
    """
    p = operator.shape[0]
    rng = random_stream(seed, "lanczos probes")
    probes: list[Tridiagonal] = []
    look = min(FEWEST_PROBES, max_probes)
    while True:
        stage("products", min(n_steps, p) * (look - len(probes)))
        together = at_once(p, n_steps, min(look - len(probes), FEWEST_PROBES))
        while len(probes) < look:
            b = min(together, look - len(probes))
            signs = rng.integers(0, 2, (b, p)).astype(np.float64) * 2 - 1
            for probe in lanczos_together(operator, signs, n_steps, f):
                probes.append(probe)
                if progress is not None:
                    progress(f"probe {len(probes)} of at most {max_probes}")
        estimate = _summary(probes, f, p)
        goal = max(tolerance, relative * abs(estimate.value))
        if estimate.std <= goal or look >= max_probes:
            reached = estimate.std <= goal
            return TraceEstimate(**vars(estimate) | {"reached": reached})
        look = min(2 * look, max_probes)


def _summary(probes: list[Tridiagonal], f: Function, p: int) -> TraceEstimate:
    values = p * np.array([t.integrate(f) for t in probes])
    # The quadrature's own error: what the last quarter of the steps still changed.
    earlier = p * np.array([t.integrate(f, max(1, 3 * len(t.alpha) // 4)) for t in probes])
    exhausted = [len(t.alpha) for t in probes]
    quadrature = abs(float(np.mean(values - earlier)))
    if min(exhausted) >= p:
        quadrature = 0.0
    n = len(values)
    widened = standard_error(float(np.std(values, ddof=1)), n) if n > 1 else math.inf
    nodes = np.concatenate([t.quadrature()[0] for t in probes])
    return TraceEstimate(
        value=float(values.mean()),
        std=math.hypot(widened, quadrature),
        quadrature_error=quadrature,
        n_probes=n,
        n_steps=max(exhausted),
        reached=False,
        largest=float(nodes.max()),
        smallest=float(nodes.min()),
        probes=tuple(probes),
    )
