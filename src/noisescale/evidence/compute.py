"""From a problem and a prior to an evidence, by any of the methods."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.checks import check_number
from noisescale.errors import InputError
from noisescale.evidence.curvature.products import Precision
from noisescale.evidence.occam.dense import (
    Array,
    Occam,
    occam_of_kernel,
    occam_of_positive,
    occam_of_positive_root,
    occam_of_symmetric,
)
from noisescale.evidence.occam.lanczos import TraceEstimate, lanczos, resolution, trace_of_function
from noisescale.evidence.preflight import Preflight
from noisescale.evidence.prior import scalar_or_none
from noisescale.evidence.problem import Problem
from noisescale.evidence.result import Evidence, NotAMinimumWarning

_FLOAT32_NOISE = 1e-7  # of the largest curvature, on every eigenvalue of float32 products


@dataclass(frozen=True)
class Accuracy:
    """How a stochastic method goes about it.

    Attributes:
        tolerance: the standard error of the log evidence to reach, in nats; by default 1 % of the
            log Occam factor.
        max_probes: give up after so many.
        n_steps: Lanczos steps a probe.
        seed: decides the probes.
        progress: told after each probe.
    """

    tolerance: float | None = None
    max_probes: int = 64
    n_steps: int = 64
    seed: int = 0
    progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Term:
    """An Occam factor with its standard error and how it was got."""

    occam: Occam
    std: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


def compute_evidence(
    problem: Problem,
    L: Array,
    plan: Preflight,
    *,
    curvature: str,
    log_null: float | None,
    log_degeneracy: float,
    accuracy: Accuracy,
    details: dict[str, Any],
) -> Evidence:
    """The evidence under the prior precisions ``L`` by the method that was planned."""
    nll, gradient = problem.nll_and_gradient()
    slope = gradient + L * problem.w
    term = occam_term(problem, L, slope, plan.method, curvature, accuracy)
    n_train = problem.facts().N
    if log_null is None and problem.n_classes is not None:
        log_null = -n_train * math.log(problem.n_classes)
    return assemble(
        term,
        nll=nll,
        penalty=0.5 * float(L @ problem.w**2),
        gradient_norm=float(np.linalg.norm(slope)),
        n_train=n_train,
        n_params=len(L),
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        method=plan.method,
        curvature=curvature,
        prior_precision=scalar_or_none(L),
        preflight=plan,
        details=details,
    )


def occam_term(
    problem: Problem, L: Array, slope: Array, method: str, curvature: str, accuracy: Accuracy
) -> Term:
    """The Occam factor by one method; ``slope`` is the gradient of the whole cost."""
    if method == "dense":
        H, positive = problem.dense(curvature)
        return Term((occam_of_positive if positive else occam_of_symmetric)(H, L, slope))
    if method == "dual":
        root = problem.small_root()
        if root is not None:
            return Term(occam_of_positive_root(root, L, slope))
        kernel = problem.kernel(L, slope)
        if kernel is None:
            raise InputError(
                "the negative log-likelihood is not convex in the outputs, so its Gauss-Newton "
                "matrix has no square root: use method='dense' or 'lanczos'."
            )
        occam = occam_of_kernel(kernel.matrix, kernel.along_gradient, float(slope @ (slope / L)))
        return Term(occam, details={"kernel_rows": len(kernel.rows)})
    if method == "lanczos":
        return lanczos_term(
            lambda precision: problem.operator(curvature, precision),
            L,
            slope,
            positive=curvature == "ggn",
            accuracy=accuracy,
        )
    return Term(problem.approximation(method, L, slope))


def lanczos_term(
    operator: Callable[[Precision], LinearOperator],
    L: Array,
    slope: Array,
    *,
    positive: bool,
    accuracy: Accuracy,
) -> Term:
    """Stochastic Lanczos quadrature; in float64 where float32 products would bias it."""
    precision: Precision = "float32"
    # One short run shows the largest curvature, hence what rounding may do.
    first = lanczos(_in_prior_units(operator(precision), L), slope / np.sqrt(L), 8)
    bound = 0.5 * len(L) * _FLOAT32_NOISE * max(float(first.quadrature()[0][-1]), 0.0)
    goal = accuracy.tolerance if accuracy.tolerance is not None else 0.0
    estimate = None
    if bound <= max(goal, 1e-3):
        estimate = _estimate(operator(precision), L, accuracy)
    if estimate is None or bound > max(estimate.std / 2, 1e-3):
        precision, bound = "float64", bound * np.finfo(np.float64).eps / _FLOAT32_NOISE
        estimate = _estimate(operator(precision), L, accuracy)
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
        return np.asarray(operator @ (np.ravel(v) / root) / root)

    return LinearOperator(operator.shape, matvec=matvec, rmatvec=matvec, dtype=np.float64)


def _estimate(operator: LinearOperator, L: Array, accuracy: Accuracy) -> TraceEstimate:
    # Both tolerances are of the log evidence, which has half the trace.
    absolute = None if accuracy.tolerance is None else 2 * accuracy.tolerance
    return trace_of_function(
        _in_prior_units(operator, L),
        restricted_log,
        tolerance=absolute or 1e-6,
        relative=0.0 if absolute else 0.01,
        max_probes=accuracy.max_probes,
        n_steps=accuracy.n_steps,
        seed=accuracy.seed,
        progress=accuracy.progress,
    )


def lanczos_quadrature(
    problem: Problem, curvature: str, accuracy: Accuracy, smallest: float
) -> tuple[Array, Array]:
    """Nodes and weights of the curvature's spectrum, good for precisions from ``smallest`` on."""
    L = np.full(len(problem.w), smallest)
    estimate = _estimate(problem.operator(curvature, "float64"), L, accuracy)
    pairs = [probe.quadrature() for probe in estimate.probes]
    weights = [len(problem.w) / len(pairs) * share for _, share in pairs]
    return smallest * np.concatenate([nodes for nodes, _ in pairs]), np.concatenate(weights)


def restricted_log(mu: Array) -> Array:
    """ln(1 + mu) where mu >= 0, nothing elsewhere."""
    return np.log1p(np.maximum(mu, 0))


def _occam_of_quadrature(
    estimate: TraceEstimate,
    operator: LinearOperator,
    L: Array,
    slope: Array,
    positive: bool,
    accuracy: Accuracy,
) -> Occam:
    p = len(L)
    noise = 1e-6 * max(abs(estimate.largest), abs(estimate.smallest))
    counts, weights, fulls = [], [], []
    for probe in estimate.probes:
        nodes, share = probe.quadrature()
        counts.append(p * share[nodes < -resolution(nodes, len(nodes), p)].sum())
        weights.append(-p * (share * nodes)[nodes < -noise].sum())
        fulls.append(p * float(share @ np.log1p(np.maximum(nodes, noise - 1))))
    restricted = -0.5 * estimate.value
    if positive:
        full: float | None = restricted
    else:
        full = -0.5 * float(np.mean(fulls)) if estimate.smallest > -1 else None
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


def assemble(
    term: Term,
    *,
    nll: float,
    penalty: float,
    gradient_norm: float | None,
    n_train: int,
    n_params: int,
    log_null: float | None,
    log_degeneracy: float,
    method: str,
    curvature: str,
    prior_precision: float | None,
    preflight: Preflight | None = None,
    details: dict[str, Any] | None = None,
    stacklevel: int = 6,  # the user's line, seen from here
) -> Evidence:
    """The result from its parts, with a warning away from minima."""
    occam = term.occam
    if log_null is not None:
        check_number("log_null", log_null, "", lambda v: True)
    constant = -(nll + penalty) + check_number("log_degeneracy", log_degeneracy, "", lambda v: True)
    result = Evidence(
        log_evidence=constant + occam.restricted,
        log_evidence_full=None if occam.full is None else constant + occam.full,
        log_evidence_std=term.std,
        nll=nll,
        penalty=penalty,
        log_occam_factor=occam.restricted,
        log_occam_factor_full=occam.full,
        log_degeneracy=log_degeneracy,
        log_null=log_null,
        gradient_norm=gradient_norm,
        newton_decrement=None if gradient_norm is None else occam.newton_decrement,
        n_negative=occam.n_negative,
        negative_weight=occam.negative_weight,
        n_train=n_train,
        n_params=n_params,
        prior_precision=prior_precision,
        method=method,
        curvature=curvature,
        preflight=preflight,
        details=(details or {}) | term.details,
    )
    if not result.is_minimum:
        warnings.warn(
            " ".join(result.notes_on_the_minimum), NotAMinimumWarning, stacklevel=stacklevel
        )
    return result
