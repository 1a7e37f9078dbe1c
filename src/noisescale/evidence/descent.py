"""Descent of the regularised cost, full batch, in units of the prior: u = L^1/2 w.

    C(u) = nll(L^-1/2 u) + 1/2 |u|^2

L-BFGS goes most of the way in float32, then on in float64. Where the cost is smooth a few
Gauss-Newton steps by conjugate gradients finish it off. A network of rectifiers has its minima on
kinks, where the gradient jumps from one side to the other and never vanishes; there the mean
gradient over many steps about the minimum, a convex combination of the sides', is what does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

from noisescale.evidence.lbfgs import lbfgs, products
from noisescale.evidence.pace import stage, tick
from noisescale.evidence.problem import Precision, Problem

Array = NDArray[np.float64]

BLOCK = 100  # steps, by which the cost must fall by less than ENOUGH
ENOUGH = 0.1  # nats
_FIRST_SOLVE, _SOLVE = (
    30,
    300,
)  # products of a Gauss-Newton step: to see if it is worth it, and then
_NEWTON_STEPS = 12
_FINISHED = 1e-14  # half the decrement, in units of the cost, at which nothing is left to gain
_TRUSTED = 0.25  # share of the fall foretold that a Gauss-Newton step must bring
_HUGE = 1e150  # the cost where the model overflows: a line search turns back from it


@dataclass
class Cost:
    """The cost and its gradient in prior units, counted."""

    problem: Problem
    L: Array
    n_steps: int = 0
    n_evaluations: int = 0

    def __post_init__(self) -> None:
        self.root = np.sqrt(self.L)
        self._nll: dict[str, Callable[[Array], tuple[float, Array]]] = {}

    def __call__(self, u: Array, precision: Precision) -> tuple[float, Array]:
        """C and its gradient."""
        if precision not in self._nll:
            self._nll[precision] = self.problem.nll_function(precision)
        self.n_evaluations += 1
        nll, gradient = self._nll[precision](u / self.root)
        slope = gradient / self.root + u
        value = nll + 0.5 * float(products(u, u))
        if not (math.isfinite(value) and np.isfinite(slope).all()):
            return _HUGE, u.copy()
        return value, slope

    def curvature(self, u: Array) -> LinearOperator:
        """I + L^-1/2 G L^-1/2 with the Gauss-Newton matrix G there."""
        G = self.problem.at(u / self.root).operator("ggn", "float64")

        def product(v: Array) -> Array:
            v = np.ravel(v)
            return np.asarray(v + (G @ (v / self.root)) / self.root)

        return LinearOperator(G.shape, matvec=product, rmatvec=product, dtype=np.float64)


@dataclass(frozen=True)
class Round:
    """Where some steps of L-BFGS led.

    Attributes:
        u: the last point.
        value: C there.
        fall: of C over the last BLOCK of steps, or over all if there were fewer.
        settled: whether that is below ENOUGH.
        slopes: the sum of the gradients at the points it accepted.
        n: their number.
    """

    u: Array
    value: float
    fall: float
    settled: bool
    slopes: Array
    n: int


def descend(cost: Cost, u: Array, precision: Precision, max_steps: int, *, exactly: bool) -> Round:
    """L-BFGS until BLOCK steps lower the cost by less than ENOUGH, or for ``max_steps``.

    ``exactly`` takes all of ``max_steps``, while there is anything to gain.
    """
    value, slope = cost(u, precision)
    values, slopes = [value], slope.copy()

    def stopped() -> bool:
        settled = not exactly and len(values) > BLOCK and _fall(values) < ENOUGH
        return settled or len(values) > max_steps

    stage("descent")
    while not stopped():
        before = len(values)
        for there in lbfgs(lambda point: cost(point, precision), u, value, slope):
            u, value, slope = there
            values.append(value)
            slopes += slope
            cost.n_steps += 1
            tick(f"step {cost.n_steps}: cost {value:.6g} nats")
            if stopped():
                break
        # Once more with an empty memory where its line search gave up, unless nothing is left.
        if len(values) - before <= 1:
            break
    return Round(u, values[-1], _fall(values), _fall(values) < ENOUGH, slopes, len(values))


def _fall(values: list[float]) -> float:
    return values[-min(len(values), BLOCK + 1)] - values[-1]


def finish(cost: Cost, u: Array) -> Array:
    """Gauss-Newton steps as long as each brings what it foretells: at kinks none does."""
    value, slope = cost(u, "float64")
    for step in range(_NEWTON_STEPS):
        M = cost.curvature(u)
        direction, _ = cg(M, -slope, rtol=1e-8, maxiter=_SOLVE if step else _FIRST_SOLVE)
        half = -0.5 * float(slope @ direction)
        if not half > _FINISHED * max(1.0, abs(value)):
            return u
        after, after_slope = cost(u + direction, "float64")
        rounding = 1e-14 * len(u) ** 0.5 * abs(value)
        # Below rounding the cost says nothing, but the gradient does.
        tiny = half < rounding and float(after_slope @ after_slope) < 0.25 * float(slope @ slope)
        if not (value - after >= _TRUSTED * half or tiny):
            return u
        u, value, slope = u + direction, after, after_slope
        cost.n_steps += 1
    return u


def reach(cost: Cost, here: Array, there: Array) -> float:
    """How far apart two points are in nats, 1/2 d' (I + L^-1/2 G L^-1/2) d."""
    d = there - here
    return 0.5 * float(d @ (cost.curvature(here) @ d))
