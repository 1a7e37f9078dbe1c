"""Stochastic Lanczos quadrature: tr f(M) of a symmetric operator from products with it.

A random sign vector z has E[z' f(M) z] = tr f(M), which m steps of Lanczos from z give by a Gauss
quadrature (:mod:`noisescale.evidence.occam.krylov`). Probes go in blocks, whose products are made
together.

Two errors, both reported: the spread over probes, and what the last quarter of the steps changed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse.linalg import LinearOperator

from noisescale.evidence.occam.krylov import (
    Array,
    Function,
    Tridiagonal,
    lanczos_together,
    width_of,
)
from noisescale.evidence.pace import say, stage
from noisescale.seeds import random_stream

FEWEST_PROBES = 8  # a standard error from fewer is not worth much
_BYTES = 1 << 30  # of the vectors of probes that go together
_Z = float(stats.norm.ppf(0.975))


@dataclass(frozen=True, eq=False)
class TraceEstimate:
    """tr f(M) with its errors.

    Attributes:
        value: the mean over probes.
        std: a standard error such that +-1.96 of it cover as Student's t says for so few probes,
            the quadrature error added in.
        quadrature_error: what the last quarter of the Lanczos steps changed, on average.
        n_steps: of the longest run.
        reached: whether the tolerance was.
        largest, smallest: extreme Ritz values seen.
        probes: the quadratures themselves.
        p: the operator's size.
    """

    value: float
    std: float
    quadrature_error: float
    n_steps: int
    reached: bool
    largest: float
    smallest: float
    probes: tuple[Tridiagonal, ...]
    p: int

    @property
    def n_probes(self) -> int:
        """How many there are."""
        return len(self.probes)

    def trace(self, f: Function) -> float:
        """tr f(M) of another function by the same quadratures."""
        return float(np.mean(_values(self.probes, f, self.p)))

    def nodes(self) -> tuple[Array, Array]:
        """Nodes and weights whose sum is :meth:`trace` for every f."""
        parts = [probe.quadrature() for probe in self.probes]
        nodes = np.concatenate([t for t, _ in parts])
        return nodes, np.concatenate([self.p / self.n_probes * share for _, share in parts])


def standard_error(spread: float, n: int) -> float:
    """Of the mean of n values with this standard deviation, such that +-1.96 cover as t says."""
    if n < 2:
        return math.inf
    return spread / math.sqrt(n) * float(stats.t.ppf(0.975, n - 1)) / _Z


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
) -> TraceEstimate:
    """tr f(M) until its standard error is below ``tolerance`` or ``relative`` of the value.

    Probes are added in doublings, because a rule that looks after each of them stops when the
    spread happens to look small.
    """
    p = operator.shape[0]
    probes: list[Tridiagonal] = []
    look = min(FEWEST_PROBES, max_probes)
    together = at_once(p, n_steps, look)
    while True:
        stage("products", min(n_steps, p) * (look - len(probes)))
        while len(probes) < look:
            block = range(len(probes), min(len(probes) + together, look))
            starts = np.stack([probe_signs(seed, probe, p) for probe in block]).astype(np.float64)
            for run in lanczos_together(operator, starts, n_steps, f):
                probes.append(run)
                say(f"probe {len(probes)} of at most {max_probes}")
        estimate = _summary(probes, f, p)
        goal = max(tolerance, relative * abs(estimate.value))
        if estimate.std <= goal or look >= max_probes:
            return replace(estimate, reached=estimate.std <= goal)
        look = min(2 * look, max_probes)


def probe_signs(seed: int, probe: int, p: int) -> NDArray[np.int8]:
    """The signs z of one probe, whatever the others are."""
    bits = random_stream(seed, f"lanczos probe {probe}").integers(0, 2, p, dtype=np.int8)
    return bits * np.int8(2) - np.int8(1)


def _values(probes: Sequence[Tridiagonal], f: Function, p: int) -> Array:
    """z' f(M) z of every probe."""
    return np.array([p * probe.integrate(f) for probe in probes])


def _summary(probes: Sequence[Tridiagonal], f: Function, p: int) -> TraceEstimate:
    values, n = _values(probes, f, p), len(probes)
    # The quadrature's own error: what the last quarter of the steps still changed.
    steps = [len(t.alpha) for t in probes]
    changed = [
        t.integrate(f) - t.integrate(f, max(1, 3 * m // 4))
        for t, m in zip(probes, steps, strict=True)
    ]
    quadrature = 0.0 if min(steps) >= p else p * abs(float(np.mean(changed)))
    widened = standard_error(float(np.std(values, ddof=1)), n) if n > 1 else math.inf
    nodes = np.concatenate([t.quadrature()[0] for t in probes])
    return TraceEstimate(
        value=float(values.mean()),
        std=math.hypot(widened, quadrature),
        quadrature_error=quadrature,
        n_steps=max(steps),
        reached=False,
        largest=float(nodes.max()),
        smallest=float(nodes.min()),
        probes=tuple(probes),
        p=p,
    )
