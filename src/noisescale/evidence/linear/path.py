"""The path of MAPs over the prior precision, and where along it the evidence is largest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from noisescale.evidence.linear.regression import (
    DEFAULT_BOUNDS,
    LinearFit,
    LinearProblem,
    check_bounds,
    fit_map,
)


def lambda_path(
    problem: LinearProblem,
    prior_precisions: Sequence[float] | NDArray[np.float64],
    *,
    intercept_precision: float | None = None,
) -> list[LinearFit]:
    """Fits in the order given, each refitted from its more strongly regularised neighbour."""
    fits: dict[int, LinearFit] = {}
    previous = None
    for k in np.argsort(-np.asarray(prior_precisions, np.float64)):
        previous = fits[int(k)] = fit_map(
            problem,
            prior_precision=prior_precisions[k],
            intercept_precision=intercept_precision,
            start=previous,
        )
    return [fits[k] for k in range(len(fits))]


@dataclass(frozen=True)
class EvidenceMaximum:
    """Where the evidence is largest: the fit there, the path that led to it, and how sharp it is.

    ``log10_std`` is the posterior standard deviation of log10(prior_precision) under a flat prior
    on it, from the curvature of the log evidence; None at an edge. ``edge`` says at which end of
    the searched range the evidence was still rising, None for a true maximum.
    """

    fit: LinearFit
    path: tuple[LinearFit, ...] = field(repr=False)
    edge: Literal["lowest", "highest"] | None
    log10_std: float | None


def maximise_evidence(
    problem: LinearProblem,
    *,
    bounds: tuple[float, float] = DEFAULT_BOUNDS,
    intercept_precision: float | None = None,
    per_decade: int = 2,
    tolerance: float = 1e-3,
) -> EvidenceMaximum:
    """The prior precision of largest evidence, the MAP refitted at every value tried.

    A grid finds the highest region (the evidence may have several local maxima), a bounded search
    refines it to ``tolerance`` decades.
    """
    low, high = check_bounds(bounds)
    grid = np.linspace(low, high, max(3, round((high - low) * per_decade) + 1))
    path = lambda_path(problem, 10.0**grid, intercept_precision=intercept_precision)
    best = int(np.argmax([fit.log_evidence for fit in path]))
    if best in (0, len(grid) - 1):
        return EvidenceMaximum(path[best], tuple(path), "highest" if best else "lowest", None)

    tried: dict[float, LinearFit] = {}

    def minus_log_evidence(log10: float) -> float:
        nearest = min(tried, key=lambda other: abs(other - log10), default=None)
        tried[log10] = fit_map(
            problem,
            prior_precision=10.0**log10,
            intercept_precision=intercept_precision,
            start=path[best] if nearest is None else tried[nearest],
        )
        return -tried[log10].log_evidence

    found = scipy.optimize.minimize_scalar(
        minus_log_evidence,
        bounds=(grid[best - 1], grid[best + 1]),
        method="bounded",
        options={"xatol": tolerance},
    )
    centre = float(found.x)
    h = 0.1
    second = (
        minus_log_evidence(centre + h) + minus_log_evidence(centre - h) - 2 * float(found.fun)
    ) / h**2
    fit = max(tried.values(), key=lambda fit: fit.log_evidence)
    everything = sorted([*path, *tried.values()], key=lambda fit: fit.prior_precision)
    std = 1 / math.sqrt(second) if second > 0 else None
    return EvidenceMaximum(fit, tuple(everything), None, std)
