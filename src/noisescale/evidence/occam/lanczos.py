"""``lanczos``: an estimate for models of any size, from products with the curvature.

tr ln(I + M) of M = L^-1/2 H L^-1/2 by stochastic Lanczos quadrature
(:mod:`noisescale.evidence.occam.quadrature`), with its standard error.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError
from noisescale.evidence.occam.krylov import lanczos, resolution, width_of
from noisescale.evidence.occam.quadrature import (
    FEWEST_PROBES,
    TraceEstimate,
    at_once,
    trace_of_function,
)
from noisescale.evidence.occam.rounding import (
    FLOAT32_NOISE,
    HARMLESS,
    ROUGHLY,
    SEEN,
    log_of_positive,
    rounding_of,
)
from noisescale.evidence.occam.term import (
    Accuracy,
    Array,
    Curve,
    Occam,
    Term,
    curve_of_eigenvalues,
    restricted_log,
)
from noisescale.evidence.pace import advance, stage
from noisescale.evidence.problem import Facts, Precision, Problem

PROBES, STEPS = FEWEST_PROBES, 64  # what an estimate to 1 % takes as a rule
_FIRST = 8  # steps that show the largest curvature


def refusal(facts: Facts, curvature: str) -> str | None:
    """None: it knows every curvature of every model."""
    return None


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """The Lanczos vectors of probes that go together; a pass over the data a step."""
    p = facts.p
    work = PROBES * STEPS * (6 * facts.N * facts.pass_flops + 4 * STEPS * p)
    together = at_once(p, STEPS, PROBES)
    return together * p * (min(STEPS, p) * width_of(p) + 40.0), work


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From products with the curvature of the problem."""
    return operator_term(
        lambda precision: problem.operator(curvature, precision),
        L,
        slope,
        positive=curvature == "ggn",
        accuracy=accuracy,
    )


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """From the quadrature at the smallest precision, whose nodes serve all larger ones."""
    p = len(problem.w)
    operator = problem.operator(curvature, "float64")
    estimate = _estimate(operator, np.full(p, smallest), accuracy, curvature == "ggn")
    nodes, weights = estimate.nodes()
    return curve_of_eigenvalues(smallest * nodes, weights, p)


def operator_term(
    operator: Callable[[Precision], LinearOperator],
    L: Array,
    slope: Array,
    *,
    positive: bool,
    accuracy: Accuracy,
) -> Term:
    """Stochastic Lanczos quadrature; in float64 where float32 products would bias it."""
    counted = Counted(operator)
    term = _term(counted, L, slope, positive, accuracy)
    return replace(term, details=term.details | {"n_products": counted.n_products})


class Counted:
    """Operators by precision whose products are counted, each column of several for one."""

    def __init__(self, operator: Callable[[Precision], LinearOperator]) -> None:
        self.operator, self.n_products = operator, 0

    def __call__(self, precision: Precision) -> LinearOperator:
        """The one of a precision."""
        H = self.operator(precision)

        def product(V: Array) -> Array:
            self.n_products += V.shape[1] if V.ndim == 2 else 1
            return np.asarray(H @ V)

        return LinearOperator(
            H.shape, matvec=product, rmatvec=product, matmat=product, dtype=np.float64
        )


def _term(
    operator: Callable[[Precision], LinearOperator],
    L: Array,
    slope: Array,
    positive: bool,
    accuracy: Accuracy,
) -> Term:
    precision: Precision = "float32"
    # One short run shows the largest curvature, hence what rounding may do at the worst.
    start = slope / np.sqrt(L)
    if not start.any():  # a gradient that is zero, or was not given, shows nothing
        start = np.random.default_rng(accuracy.seed).normal(size=len(L))
    stage("largest curvature", _FIRST)
    first = lanczos(_in_prior_units(operator(precision), L), start, _FIRST)
    worst = 0.5 * len(L) * FLOAT32_NOISE * max(float(first.quadrature()[0][-1]), 0.0)
    bound, goal = worst, accuracy.tolerance or 0.0
    if positive and worst > max(goal, HARMLESS):
        stage("rounding", ROUGHLY + 2)
        rough, run = rounding_of(
            lambda precision: _in_prior_units(operator(precision), L), len(L), accuracy.seed
        )
        bound = min(worst, rough)
        goal = goal or 0.01 * len(L) * run.integrate(log_of_positive) / 2
    estimate = None
    if bound <= max(goal / 2, HARMLESS):
        estimate = _estimate(operator(precision), L, accuracy, positive)
    if estimate is None or bound > max(estimate.std / 2, HARMLESS):
        precision, bound = "float64", worst * np.finfo(np.float64).eps / FLOAT32_NOISE
        estimate = _estimate(operator(precision), L, accuracy, positive)
    occam = _occam_of_quadrature(estimate, operator(precision), L, slope, positive, accuracy)
    details = {
        "n_probes": estimate.n_probes,
        "n_steps": estimate.n_steps,
        "quadrature_error": estimate.quadrature_error / 2,
        "rounding_bound": bound,
        "products": precision,
        "tolerance_reached": estimate.reached,
    }
    return Term(occam, estimate.std / 2, details)


def _in_prior_units(operator: LinearOperator, L: Array) -> LinearOperator:
    """L^-1/2 H L^-1/2."""
    root = np.sqrt(L)

    def matvec(v: Array) -> Array:
        product = np.asarray(operator @ (np.ravel(v) / root) / root)
        advance(1)
        return product

    def matmat(V: Array) -> Array:
        products = np.asarray(operator @ (V / root[:, None]) / root[:, None])
        advance(V.shape[1])
        return products

    return LinearOperator(
        operator.shape, matvec=matvec, rmatvec=matvec, matmat=matmat, dtype=np.float64
    )


def _estimate(
    operator: LinearOperator, L: Array, accuracy: Accuracy, positive: bool
) -> TraceEstimate:
    if accuracy.tolerance == 0:
        raise InputError(
            "tolerance=0 asks for an exact value, which lanczos does not give: use method='dense' "
            "or 'dual', or a tolerance above 0."
        )
    # Both tolerances are of the log evidence, which has half the trace.
    absolute = None if accuracy.tolerance is None else 2 * accuracy.tolerance
    return trace_of_function(
        _in_prior_units(operator, L),
        log_of_positive if positive else restricted_log,
        tolerance=absolute or 1e-6,
        relative=0.0 if absolute else 0.01,
        max_probes=accuracy.max_probes,
        n_steps=accuracy.n_steps,
        seed=accuracy.seed,
    )


def _occam_of_quadrature(
    estimate: TraceEstimate,
    operator: LinearOperator,
    L: Array,
    slope: Array,
    positive: bool,
    accuracy: Accuracy,
) -> Occam:
    p = len(L)
    noise = SEEN * max(abs(estimate.largest), abs(estimate.smallest))
    counts, weights = [], []
    for probe in estimate.probes:
        nodes, share = probe.quadrature()
        counts.append(p * share[nodes < -resolution(nodes, len(nodes), p)].sum())
        weights.append(-p * (share * nodes)[nodes < -noise].sum())
    restricted = -0.5 * estimate.value
    if positive:
        full: float | None = restricted
    elif estimate.smallest > -1:
        full = -0.5 * estimate.trace(lambda nodes: np.log1p(np.maximum(nodes, noise - 1)))
    else:
        full = None
    return Occam(
        restricted=restricted,
        full=full,
        n_negative=0 if positive else round(float(np.mean(counts))),
        negative_weight=0.0 if positive else float(np.mean(weights)),
        newton_decrement=decrement(operator, L, slope, accuracy.n_steps, noise),
    )


def decrement(
    operator: LinearOperator, L: Array, slope: Array, n_steps: int, noise: float = 0.0
) -> float:
    """slope' (H + L)^-1 slope over directions of positive curvature, by steps of Lanczos alone."""
    scaled = slope / np.sqrt(L)
    if not scaled.any():
        return 0.0
    stage("decrement", n_steps)

    def inverse(nodes: Array) -> Array:
        return np.divide(1, 1 + nodes, out=np.zeros(len(nodes)), where=nodes > noise - 1)

    run = lanczos(_in_prior_units(operator, L), scaled, n_steps, inverse)
    return float(scaled @ scaled) * run.integrate(inverse)
