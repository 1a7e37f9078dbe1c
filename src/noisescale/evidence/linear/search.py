"""The prior precision of largest evidence in as few fits as its smoothness allows.

ln P(y | X, lambda) is smooth in t = log10 lambda, and each value of it costs a MAP. So a coarse grid
finds the highest region (there may be several local maxima), and then the polynomial through the
five values known nearest to the best one says where to look next, between the best one's neighbours.
It ends when the polynomial's top is known already, to ``tolerance``, and so is a value about a tenth
of a decade away on either side: those give the width -1/f''(t) of the posterior over t.

:func:`noisescale.evidence.linear.regression.maximise_evidence` brackets in place of interpolating,
and needs half as many fits again.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from noisescale.errors import InputError
from noisescale.evidence.linear.chord import approach
from noisescale.evidence.linear.design import Array
from noisescale.evidence.linear.families import product
from noisescale.evidence.linear.newton import Cost
from noisescale.evidence.linear.packed import PackedSoftmax, packed
from noisescale.evidence.linear.regression import (
    DEFAULT_BOUNDS,
    EvidenceMaximum,
    LinearFit,
    LinearProblem,
    check_bounds,
    fit_map,
    starts_from,
)

_NODES = 5  # values that a polynomial goes through
_SIDE = 0.1  # decades from the top at which the width is seen, or between half and twice as many
_MAX_FITS = 40  # after the grid; four or five do
_NEAR = 0.3  # decades within which a fit's own factor serves better than that of another Hessian
_ENOUGH = 1e-17  # the decrement of a guess, a tenth of what ends Newton's method at once
_GOLDEN = (3 - math.sqrt(5)) / 2


@dataclass(eq=False)
class Curve:
    """What is known of the log evidence over t = log10 lambda."""

    problem: LinearProblem
    intercept_precision: float | None
    fits: dict[float, LinearFit] = field(default_factory=dict)

    def add(self, t: float) -> None:
        """Fit there too, from the nearest fit."""
        start = self.fits[self.nearest(t)] if self.fits else None
        small = isinstance(self.problem.family, PackedSoftmax)
        self.fits[t] = fit_map(
            self.problem,
            prior_precision=10.0**t,
            intercept_precision=self.intercept_precision,
            start=None if small else start,
            guess=self._guess(t, start) if small else None,
        )

    def _guess(self, t: float, start: LinearFit | None) -> Array:
        """The MAP at ``t`` without its Hessian, to about the rounding of its evidence."""
        lam, tau = 10.0**t, self.intercept_precision
        problem, family = self.problem, self.problem.family
        F, counts = problem.design.features, problem.counts
        precisions = problem.design.precisions(lam, lam if tau is None else tau)
        cost = Cost(family, F, problem.labels, counts, precisions)
        starts = [np.zeros((F.shape[1], family.n_outputs))]
        if start is not None:
            starts = starts_from(problem, start, precisions)
        tried = [(sum(cost.parts(V, product(F, V))), V) for V in starts]
        value, V = min(tried, key=lambda pair: pair[0])
        last = start is None or start is self.fits[next(reversed(self.fits))]
        if start is not None and not last and abs(t - self.nearest(t)) < _NEAR:
            factor = start.optimum.factor
        else:
            factor = cost.factor(family.last_hessian())
        return approach(cost, V, factor, enough=_ENOUGH * min(1.0, value))

    def path(self) -> tuple[LinearFit, ...]:
        """All fits, ascending in the prior precision."""
        return tuple(self.fits[t] for t in sorted(self.fits))

    def nearest(self, t: float) -> float:
        """The known place nearest to ``t``."""
        return min(self.fits, key=lambda other: abs(other - t))

    @property
    def best(self) -> float:
        """The known place of largest evidence."""
        return max(self.fits, key=lambda t: self.fits[t].log_evidence)

    def neighbours(self) -> tuple[float, float]:
        """The known places next to the best one, which is at no end."""
        places, best = sorted(self.fits), self.best
        k = places.index(best)
        return places[k - 1], places[k + 1]

    def top(self) -> tuple[float, float]:
        """Where the polynomial is largest between the best place's neighbours, and f'' there."""
        best = self.best
        low, high = self.neighbours()
        nodes = sorted(self.fits, key=lambda t: abs(t - best))[:_NODES]
        values = [self.fits[t].log_evidence - self.fits[best].log_evidence for t in nodes]
        unit = high - low  # so that the powers are of numbers about 1
        f = np.polynomial.Polynomial.fit(
            np.subtract(nodes, best) / unit, values, len(nodes) - 1, domain=[-1, 1]
        )
        roots = f.deriv().roots()
        inside = [
            float(root.real)
            for root in roots
            if abs(root.imag) < 1e-9 and low < best + unit * root.real < high
        ]
        s = max(inside, key=f, default=0.0)
        return best + unit * s, float(f.deriv(2)(s)) / unit**2


def evidence_peak(
    problem: LinearProblem,
    *,
    bounds: tuple[float, float] = DEFAULT_BOUNDS,
    intercept_precision: float | None = None,
    per_decade: int = 1,
    tolerance: float = 0.01,
) -> EvidenceMaximum:
    """The prior precision of largest evidence to ``tolerance`` decades, the MAP fitted at each."""
    low, high = check_bounds(bounds)
    if not 0 < tolerance < math.inf:
        raise InputError(f"tolerance must be decades above 0, got {tolerance}.")
    grid = np.linspace(low, high, max(3, round((high - low) * per_decade) + 1)).tolist()
    curve = Curve(packed(problem), intercept_precision)
    for t in reversed(grid):  # each from its more strongly regularised neighbour
        curve.add(t)
    if curve.best in (grid[0], grid[-1]):
        edge: Literal["highest", "lowest"] = "highest" if curve.best == grid[-1] else "lowest"
        return EvidenceMaximum(curve.fits[curve.best], curve.path(), edge, None)
    side = min(_SIDE, grid[1] - grid[0])
    second = 0.0
    for _ in range(_MAX_FITS):
        t, second = curve.top()
        if abs(t - curve.nearest(t)) <= tolerance:  # known: are its sides?
            t = _next(curve, t, side)
            if math.isnan(t):
                break
        curve.add(t)
    std = 1 / math.sqrt(-second) if second < 0 else None
    return EvidenceMaximum(curve.fits[curve.best], curve.path(), None, std)


def _next(curve: Curve, top: float, side: float) -> float:
    """Where to look next if the polynomial's ``top`` is known already; NaN if there is no need."""
    if curve.nearest(top) != curve.best:
        # The polynomial is no good here: a step by the golden section, as brackets do.
        low, high = curve.neighbours()
        further = high if high - curve.best > curve.best - low else low
        return curve.best + _GOLDEN * (further - curve.best)
    for sign in (-1, 1):
        if not any(side / 2 <= sign * (t - top) <= 2 * side for t in curve.fits):
            return top + sign * side
    return math.nan
