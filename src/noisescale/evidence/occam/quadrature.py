"""Stochastic Lanczos quadrature: tr f(M) of a symmetric operator from products with it.

A random sign vector z has E[z' f(M) z] = tr f(M), which m steps of Lanczos from z give by a Gauss
quadrature (:mod:`noisescale.evidence.occam.krylov`). Probes go in blocks, whose products are made
together, and what some found of the leading curvature is taken off the spread of others
(:mod:`noisescale.evidence.occam.deflation`): three groups, the halves of the first block and the
second block, learn from one another in a ring, later blocks from the one before. Of two groups at
most one has learnt from the other, so that its probes are unbiased whatever the other's are:
all are uncorrelated, and the spread over probes is an honest error. Where learning makes the spread
no smaller (f(M) nearly diagonal, of which signs see the trace exactly), it is left out.

Two errors, both reported: the spread over probes, and what the last quarter of the steps changed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.sparse.linalg import LinearOperator

from noisescale.evidence.occam.deflation import Leading, leading
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
class Block:
    """Probes whose products were made together, and what each group of them found for others."""

    first: int  # the number of the first probe
    probes: tuple[Tridiagonal, ...]
    leading: tuple[Leading, ...]


class Keeper(Protocol):
    """Where finished blocks are kept, so that an estimate that was killed goes on."""

    def get(self, first: int, stop: int) -> Block | None:
        """The block of these probes, if it is there."""
        ...

    def add(self, block: Block) -> None:
        """Keep a block, all of it or nothing."""
        ...


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
        spread_left: the spread over probes, by what it would be had none learnt of another; 1 where
            that is what was used.
        blocks: the quadratures themselves.
        p: the operator's size.
    """

    value: float
    std: float
    quadrature_error: float
    n_steps: int
    reached: bool
    largest: float
    smallest: float
    spread_left: float
    blocks: tuple[Block, ...]
    p: int

    @property
    def probes(self) -> tuple[Tridiagonal, ...]:
        """Of all blocks."""
        return tuple(probe for block in self.blocks for probe in block.probes)

    @property
    def n_probes(self) -> int:
        """How many there are."""
        return len(self.probes)

    def trace(self, f: Function) -> float:
        """tr f(M) of another function by the same quadratures."""
        return float(np.mean(_values(self.blocks, f, self.p, deflated=self.spread_left < 1)))

    def nodes(self) -> tuple[Array, Array]:
        """Nodes and weights, some of them negative, whose sum is :meth:`trace` for every f."""
        n = self.n_probes
        parts = [probe.quadrature() for probe in self.probes]
        nodes, weights = [t for t, _ in parts], [self.p / n * share for _, share in parts]
        for probe in range(n) if self.spread_left < 1 else ():
            found, at = _teacher(self.blocks, probe)
            nodes.append(found.nodes)
            weights.append(-found.weights * found.excess[at] / n)
        return np.concatenate(nodes), np.concatenate(weights)


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
    keeper: Keeper | None = None,
) -> TraceEstimate:
    """tr f(M) until its standard error is below ``tolerance`` or ``relative`` of the value.

    Probes are added in doublings, because a rule that looks after each of them stops when the
    spread happens to look small.
    """
    p = operator.shape[0]
    blocks: list[Block] = []
    look, n_probes = min(FEWEST_PROBES, max_probes), 0
    together = at_once(p, n_steps, look // 2)  # two blocks at least
    while True:
        stage("products", min(n_steps, p) * (look - n_probes))
        while n_probes < look:
            stop = min(n_probes + together, look)
            block = None if keeper is None else keeper.get(n_probes, stop)
            if block is None:
                own = range(n_probes, stop)
                block = _block(operator, f, own, _groups(own, together), n_steps, seed)
                if keeper is not None:
                    keeper.add(block)
            blocks.append(block)
            for _ in block.probes:
                n_probes += 1
                say(f"probe {n_probes} of at most {max_probes}")
        estimate = _summary(blocks, f, p)
        goal = max(tolerance, relative * abs(estimate.value))
        if estimate.std <= goal or look >= max_probes:
            reached = estimate.std <= goal
            return TraceEstimate(**vars(estimate) | {"reached": reached})
        look = min(2 * look, max_probes)


def probe_signs(seed: int, probe: int, p: int) -> NDArray[np.int8]:
    """The signs z of one probe, whatever the others are."""
    bits = random_stream(seed, f"lanczos probe {probe}").integers(0, 2, p, dtype=np.int8)
    return bits * np.int8(2) - np.int8(1)


def _groups(own: range, together: int) -> list[tuple[range, list[int]]]:
    """The groups of a block, each with the probes that will learn from it.

    >>> for block in (range(4), range(4, 8), range(8, 12)):
    ...     _groups(block, 4)
    [(range(0, 2), [4, 5, 6, 7]), (range(2, 4), [0, 1])]
    [(range(4, 8), [2, 3, 8, 9, 10, 11])]
    [(range(8, 12), [12, 13, 14, 15])]
    """
    half = together // 2
    ring = (
        [range(half), range(half, together), range(together, 2 * together)]
        if half
        else [range(1), range(1, 2), range(2, 3)]
    )
    after = list(range(own.stop, own.stop + together))
    learners = {
        ring[0].start: list(ring[2]),
        ring[1].start: list(ring[0]),
        ring[2].start: [*ring[1], *after],
    }
    parts = ring[:2] if own == range(together) and half else [own]
    return [(part, learners.get(part.start, after)) for part in parts]


def _block(
    operator: LinearOperator,
    f: Function,
    own: range,
    groups: list[tuple[range, list[int]]],
    n_steps: int,
    seed: int,
) -> Block:
    p = operator.shape[0]
    starts = np.stack([probe_signs(seed, probe, p) for probe in own]).astype(np.float64)
    runs = lanczos_together(operator, starts, n_steps, f)
    found = []
    for part, learners in groups:
        teachers = [runs[probe - own.start] for probe in part]
        signs = np.stack([probe_signs(seed, probe, p) for probe in learners])
        found.append(leading(teachers, learners, signs))
    return Block(own.start, tuple(run.tridiagonal for run in runs), tuple(found))


def _teacher(blocks: Sequence[Block], probe: int) -> tuple[Leading, int]:
    """What was found for a probe, and its place therein."""
    return next(
        (found, found.probes.index(probe))
        for block in blocks
        for found in block.leading
        if probe in found.probes
    )


def _values(blocks: Sequence[Block], f: Function, p: int, *, deflated: bool) -> Array:
    """z' f(M) z of every probe, less what is known of its deviation."""
    plain = np.array([p * probe.integrate(f) for block in blocks for probe in block.probes])
    if not deflated:
        return plain
    teachers = [_teacher(blocks, probe) for probe in range(len(plain))]
    return np.asarray(plain - [found.correction(f, at) for found, at in teachers])


def _summary(blocks: list[Block], f: Function, p: int) -> TraceEstimate:
    values, left = _values(blocks, f, p, deflated=False), 1.0
    if len(values) > 2:  # two are no ring
        deflated = _values(blocks, f, p, deflated=True)
        shorter = float(np.std(deflated)) / max(float(np.std(values)), 1e-300)
        if shorter < 1:
            values, left = deflated, shorter
    probes = [probe for block in blocks for probe in block.probes]
    # The quadrature's own error: what the last quarter of the steps still changed.
    steps = [len(t.alpha) for t in probes]
    changed = [
        t.integrate(f) - t.integrate(f, max(1, 3 * m // 4))
        for t, m in zip(probes, steps, strict=True)
    ]
    quadrature = 0.0 if min(steps) >= p else p * abs(float(np.mean(changed)))
    n = len(values)
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
        spread_left=left,
        blocks=tuple(blocks),
        p=p,
    )
