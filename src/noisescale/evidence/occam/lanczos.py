"""``lanczos``: an estimate for models of any size, from products with the curvature.

tr ln(I + M) of M = L^-1/2 H L^-1/2 by stochastic Lanczos quadrature
(:mod:`noisescale.evidence.occam.quadrature`), with its standard error.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError
from noisescale.evidence.occam.kept import Opener, keeping
from noisescale.evidence.occam.krylov import lanczos, resolution
from noisescale.evidence.occam.quadrature import (
    FEWEST_PROBES,
    Keeper,
    TraceEstimate,
    at_once,
    trace_of_function,
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
from noisescale.evidence.pace import advance, stage, timed
from noisescale.evidence.problem import Facts, Precision, Problem
from noisescale.seeds import random_stream

PRECISIONS: tuple[Precision, Precision] = ("float32", "float64")
PROBES, STEPS = FEWEST_PROBES, 64  # what an estimate to 1 % takes as a rule
_FLOAT32_NOISE = 1e-7  # of the largest curvature, on every eigenvalue of float32 products
_SEEN = 1e-6  # of the largest node: nodes nearer zero may be of either sign by rounding
_HARMLESS = 1e-3  # nats
_ROUGHLY = 16  # steps that show the size of the log Occam factor


def refusal(facts: Facts, curvature: str) -> str | None:
    """None: it knows every curvature of every model."""
    return None


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """The Lanczos vectors of probes that go together; a pass over the data a step."""
    p = facts.p
    work = PROBES * STEPS * (6 * facts.N * facts.pass_flops + 4 * STEPS * p)
    together = at_once(p, STEPS, PROBES // 2)
    return together * (4.0 * STEPS * p + 40.0 * p), work


def seconds(problem: Problem, facts: Facts, curvature: str, rate: float) -> float:
    """One product, measured; each is orthogonalised twice against those before it."""
    p, together = facts.p, at_once(facts.p, STEPS, PROBES // 2)
    operator = problem.operator(curvature, "float64")  # as nearly every estimate needs it
    products, _ = timed(lambda: operator @ np.ones((p, together)))
    product = products / together
    vectors = np.ones((STEPS // 2, p), np.float32 if p > 1 << 16 else np.float64)
    against, _ = timed(lambda: vectors.T @ (vectors @ vectors[0]))
    return (PROBES * STEPS + STEPS) * (product + 2 * against)


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From products with the curvature of the problem."""
    return operator_term(
        lambda precision: problem.operator(curvature, precision),
        L,
        slope,
        positive=curvature == "ggn",
        accuracy=accuracy,
        content=lambda: (curvature, *problem.content()),
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
    content: Callable[[], tuple[Any, ...]],
) -> Term:
    """Stochastic Lanczos quadrature; in float64 where float32 products would bias it.

    ``content`` is all that the operator depends on, as a store names it.
    """
    with keeping(accuracy, L, content) as kept:
        return _term(operator, L, slope, positive, accuracy, kept)


def _term(
    operator: Callable[[Precision], LinearOperator],
    L: Array,
    slope: Array,
    positive: bool,
    accuracy: Accuracy,
    kept: Opener | None,
) -> Term:
    precision: Precision = "float32"
    # One short run shows the largest curvature, hence what rounding may do at the worst.
    start = slope / np.sqrt(L)
    if not start.any():  # a gradient that is zero, or was not given, shows nothing
        start = np.random.default_rng(accuracy.seed).normal(size=len(L))
    first = lanczos(_in_prior_units(operator(precision), L), start, 8)
    worst = 0.5 * len(L) * _FLOAT32_NOISE * max(float(first.quadrature()[0][-1]), 0.0)
    bound, goal = worst, accuracy.tolerance or 0.0
    if positive and worst > max(goal, _HARMLESS):
        rough, goal_here = _rounding(operator, L, accuracy.seed)
        bound, goal = min(worst, rough), goal or goal_here
    estimate, keeper = None, None
    if bound <= max(goal / 2, _HARMLESS):
        keeper = kept and kept(precision)
        estimate = _estimate(operator(precision), L, accuracy, positive, keeper)
    if estimate is None or bound > max(estimate.std / 2, _HARMLESS):
        precision, bound = "float64", worst * np.finfo(np.float64).eps / _FLOAT32_NOISE
        keeper = kept and kept(precision)
        estimate = _estimate(operator(precision), L, accuracy, positive, keeper)
    occam = _occam_of_quadrature(estimate, operator(precision), L, slope, positive, accuracy)
    details = {
        "n_probes": estimate.n_probes,
        "n_steps": estimate.n_steps,
        "spread_left": estimate.spread_left,
        "quadrature_error": estimate.quadrature_error / 2,
        "rounding_bound": bound,
        "products": precision,
        "tolerance_reached": estimate.reached,
    }
    if keeper is not None:
        details["n_stored_probes"] = keeper.n_used
    return Term(occam, estimate.std / 2, details)


def _rounding(
    operator: Callable[[Precision], LinearOperator], L: Array, seed: int
) -> tuple[float, float]:
    """What float32 products may change the log Occam factor by, and 1 % of this, roughly.

    With E the error of a product with signs z, tr E = z' E z +- sqrt(2) |E|, and what it does to a
    sum of logarithms is that trace, less half the sum of squares, which is about |E z|^2.
    """
    z = random_stream(seed, "rounding").integers(0, 2, len(L)).astype(np.float64) * 2 - 1
    rough, fine = (_in_prior_units(operator(precision), L) for precision in PRECISIONS)
    E = np.asarray(rough @ z) - np.asarray(fine @ z)
    size = float(np.linalg.norm(E))
    trace = abs(float(z @ E)) + 2 * math.sqrt(2) * size
    value = len(L) * lanczos(rough, z, _ROUGHLY).integrate(_log_of_positive)
    return trace / 2 + size**2 / 4, 0.01 * value / 2


def _log_of_positive(nodes: Array) -> Array:
    """ln(1 + mu) of a curvature that is nowhere negative.

    Nodes that rounding put below zero count with their sign, as others count that it put above.
    """
    seen = _SEEN * float(np.abs(nodes).max(initial=0.0))
    return np.log1p(np.where(nodes > -min(seen, 0.5), nodes, 0.0))


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
    operator: LinearOperator,
    L: Array,
    accuracy: Accuracy,
    positive: bool,
    keeper: Keeper | None = None,
) -> TraceEstimate:
    if accuracy.tolerance == 0:
        raise InputError(
            "tolerance=0 asks for an exact value, which lanczos does not give: use method='dense' "
            "or 'dual', or a tolerance above 0."
        )
    stage("products", accuracy.n_steps * min(FEWEST_PROBES, accuracy.max_probes))
    # Both tolerances are of the log evidence, which has half the trace.
    absolute = None if accuracy.tolerance is None else 2 * accuracy.tolerance
    return trace_of_function(
        _in_prior_units(operator, L),
        _log_of_positive if positive else restricted_log,
        tolerance=absolute or 1e-6,
        relative=0.0 if absolute else 0.01,
        max_probes=accuracy.max_probes,
        n_steps=accuracy.n_steps,
        seed=accuracy.seed,
        progress=accuracy.progress,
        keeper=keeper,
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
    noise = _SEEN * max(abs(estimate.largest), abs(estimate.smallest))
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
    scaled = slope / np.sqrt(L)
    length = float(scaled @ scaled)
    decrement = 0.0
    if length > 0:
        nodes, share = lanczos(_in_prior_units(operator, L), scaled, accuracy.n_steps).quadrature()
        kept = nodes > noise - 1
        decrement = length * float((share[kept] / (1 + nodes[kept])).sum())
    return Occam(
        restricted=restricted,
        full=full,
        n_negative=0 if positive else round(float(np.mean(counts))),
        negative_weight=0.0 if positive else float(np.mean(weights)),
        newton_decrement=decrement,
    )
