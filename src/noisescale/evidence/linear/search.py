"""The prior precision of largest evidence in as few fits as its smoothness allows.

f(t) = ln P(y | X, lambda = 10^t) is smooth, and each value of it costs a MAP. So a coarse grid
finds the highest region (there may be several local maxima), and then the polynomial through the
five values known nearest to the best one says where to look next, between the best one's
neighbours. It ends when the polynomial's top is known already, to ``tolerance``, and so is a value
about a tenth of a decade away on either side: those give the variance -1/f''(t) of the posterior
over t.

:func:`noisescale.evidence.linear.path.maximise_evidence` brackets in place of interpolating,
and needs half as many fits again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from noisescale.checks import check_number
from noisescale.errors import InputError
from noisescale.evidence.linear.chord import approach
from noisescale.evidence.linear.design import Array
from noisescale.evidence.linear.families import product
from noisescale.evidence.linear.newton import Cost
from noisescale.evidence.linear.packed import PackedSoftmax, packed
from noisescale.evidence.linear.path import EvidenceMaximum
from noisescale.evidence.linear.regression import (
    DEFAULT_BOUNDS,
    LinearFit,
    LinearProblem,
    check_bounds,
    fit_map,
    starts_from,
)

_NODES = 5  # values that a polynomial goes through
_SIDE = 0.1  # decades from the top at which the width is seen, or between half and twice as many
_GOLDEN = (3 - math.sqrt(5)) / 2
_ENOUGH = 1e-17  # the decrement of a guess, a tenth of what ends Newton's method at once


@dataclass(frozen=True)
class Peak:
    """The best place that was looked at, f'' of the polynomial at its top, or the end it is at."""

    place: float
    second: float
    edge: Literal["lowest", "highest"] | None = None


def highest(
    f: Callable[[float], float], grid: Sequence[float], tolerance: float, max_looks: int = 40
) -> Peak:
    """The highest place of a smooth function, from its values on an ascending grid on."""
    values = {t: f(t) for t in reversed(grid)}
    best = max(values, key=lambda t: values[t])
    if best == grid[-1]:
        return Peak(best, math.nan, "highest")
    if best == grid[0]:
        return Peak(best, math.nan, "lowest")
    side = min(_SIDE, grid[1] - grid[0])
    for _ in range(max_looks):
        top, second = _top(values)
        place = _next(values, top, side, tolerance)
        if place is None:
            break
        values[place] = f(place)
    return Peak(max(values, key=lambda t: values[t]), second)


def _around(values: dict[float, float]) -> tuple[float, float, float]:
    """The best known place, which is at no end, between its neighbours."""
    places = sorted(values)
    k = max(range(len(places)), key=lambda k: values[places[k]])
    return places[k - 1], places[k], places[k + 1]


def _top(values: dict[float, float]) -> tuple[float, float]:
    """Where the polynomial is largest between the best place's neighbours, and f'' there."""
    low, best, high = _around(values)
    nodes = sorted(values, key=lambda t: abs(t - best))[:_NODES]
    unit = high - low  # so that the powers are of numbers about 1
    polynomial = np.polynomial.Polynomial.fit(
        [(t - best) / unit for t in nodes],
        [values[t] - values[best] for t in nodes],
        len(nodes) - 1,
        domain=[-1, 1],
    )
    roots = np.asarray(polynomial.deriv().roots(), np.complex128)
    real = roots.real[np.abs(roots.imag) < 1e-9]
    inside = [float(s) for s in real if low < best + unit * s < high]
    s = max(inside, key=lambda place: float(polynomial(place)), default=0.0)
    return best + unit * s, float(polynomial.deriv(2)(s)) / unit**2


def _next(values: dict[float, float], top: float, side: float, tolerance: float) -> float | None:
    """Where to look next, given the polynomial's ``top``; None if all is known."""
    low, best, high = _around(values)
    nearest = min(values, key=lambda t: abs(t - top))
    if abs(top - nearest) > side:
        return top
    if nearest != best and abs(top - nearest) <= tolerance:
        # The polynomial is no good here: a step by the golden section, as brackets do.
        return best + _GOLDEN * ((high if high - best > best - low else low) - best)
    for sign in (-1, 1):
        if not any(side / 2 <= sign * (t - top) <= 2 * side for t in values):
            return top + sign * side
    return top if abs(top - nearest) > tolerance else None


@dataclass(eq=False)
class Fits:
    """The MAPs over t = log10 lambda, each from the nearest one known."""

    problem: LinearProblem
    intercept_precision: float | None
    at: dict[float, LinearFit] = field(default_factory=dict)
    hessians: dict[float, Array] = field(default_factory=dict)  # packed, of small problems

    def log_evidence(self, t: float) -> float:
        """Of the MAP there, which is found and kept."""
        start = min(self.at, key=lambda other: abs(other - t)) if self.at else None
        settings = {"prior_precision": 10.0**t, "intercept_precision": self.intercept_precision}
        if isinstance(family := self.problem.family, PackedSoftmax):
            fit = fit_map(self.problem, **settings, guess=self._guess(t, start, family))
            self.hessians[t] = family.last
        else:
            near = None if start is None else self.at[start]
            fit = fit_map(self.problem, **settings, start=near)
        self.at[t] = fit
        return fit.log_evidence

    def _guess(self, t: float, start: float | None, family: PackedSoftmax) -> Array:
        """The MAP at ``t`` without its Hessian, to about the rounding of its evidence.

        Under another prior the probabilities change less than the prior does, so the Hessian of the
        nearest fit with the new prior in it is a good guess of the one that this fit will end with.
        """
        problem, lam, tau = self.problem, 10.0**t, self.intercept_precision
        F = problem.design.features
        precisions = problem.design.precisions(lam, lam if tau is None else tau)
        cost = Cost(family, F, problem.labels, problem.counts, precisions)
        starts, hessian = [np.zeros((F.shape[1], family.n_outputs))], family.last
        if start is not None:
            starts = starts_from(problem, self.at[start], precisions)
            hessian = self.hessians[start]
        tried = [(sum(cost.parts(V, product(F, V))), V) for V in starts]
        value, V = min(tried, key=lambda pair: pair[0])
        try:
            factor = cost.factor(family.unpacked(hessian))
        except InputError:  # the nearest fit's curvature swallows this prior; its own may not
            return V
        return approach(cost, V, factor, enough=_ENOUGH * min(1.0, value))


def evidence_peak(
    problem: LinearProblem,
    *,
    bounds: tuple[float, float] = DEFAULT_BOUNDS,
    intercept_precision: float | None = None,
    per_decade: int = 1,
    tolerance: float = 0.001,
) -> EvidenceMaximum:
    """The prior precision of largest evidence to ``tolerance`` decades, the MAP fitted at each.

    >>> from noisescale.evidence.linear.regression import linear_problem
    >>> x = np.array([[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]])
    >>> found = evidence_peak(linear_problem(x, [0, 0, 1, 0, 1, 1], fit_intercept=False))
    >>> 0.1 < found.fit.prior_precision < 10 and found.edge is None
    True
    """
    low, high = check_bounds(bounds)
    check_number("tolerance", tolerance, "above 0", lambda decades: decades > 0)
    grid = np.linspace(low, high, max(3, round((high - low) * per_decade) + 1)).tolist()
    fits = Fits(packed(problem), intercept_precision)
    peak = highest(fits.log_evidence, grid, tolerance)
    return EvidenceMaximum(
        fits.at[peak.place],
        tuple(fits.at[t] for t in sorted(fits.at)),
        peak.edge,
        1 / math.sqrt(-peak.second) if peak.second < 0 else None,
    )
