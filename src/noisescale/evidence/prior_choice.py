"""The evidence as a function of the prior precision at fixed parameters, and where it is largest.

    ln P(lambda) = -nll - lambda/2 |w|^2 - 1/2 sum_i ln(1 + h_i/lambda) over h_i >= 0.

The parameters stay where training left them: for a network trained without this prior the result
says which prior would have made that point most credible, not what training under it would find.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

from noisescale.errors import InputError
from noisescale.evidence.compute import Accuracy, lanczos_quadrature, restricted_log
from noisescale.evidence.occam.dense import Array
from noisescale.evidence.problem import Problem

BOUNDS = (1e-4, 1e6)
_PER_DECADE = 4
_SWEEPS = 60  # of the fixed point for layers
_SMALLEST = 1e-6  # precision down to which the dual kernel keeps every row that matters
_EVALUATIONS = 10  # to find the maximum between two of a grid
_ROUGHLY = 0.1  # nats at the smallest precision, less by its ratio at others: for layers alone
_SETTLED = 1e-3  # in the logarithm of a precision
_FARTHEST = 3.0  # step of such a logarithm: extrapolation must not leave the region it rests on


@dataclass(frozen=True, eq=False)
class EvidenceCurve:
    """Log evidence against a single prior precision.

    Attributes:
        prior_precision: the grid, ascending.
        log_evidence: at each of its values.
        E: the paper's E there; None for a likelihood without classes.
        best: the precision of largest evidence.
        best_log_evidence: the log evidence there.
        edge: ``"lowest"`` or ``"highest"`` if the evidence was still rising there, else None.
        method: how the curvature was had.
    """

    prior_precision: Array
    log_evidence: Array
    E: Array | None
    best: float
    best_log_evidence: float
    edge: str | None
    method: str

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, arrays as lists."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        where = "" if self.edge is None else f", at the {self.edge} precision tried"
        return (
            f"EvidenceCurve: largest log evidence {self.best_log_evidence:.6g} at prior precision "
            f"{self.best:.3g}{where} ({self.method}, {len(self.prior_precision)} precisions)"
        )


def trace_curve(
    problem: Problem,
    method: str,
    curvature: str,
    accuracy: Accuracy,
    *,
    smallest: float,
    n_values: int,
) -> tuple[float, Callable[[float], float]]:
    """The summed nll, and the log Occam factor as a function of one precision.

    ``smallest`` is the smallest precision that matters, ``n_values`` how many will be asked for:
    few are factorised one by one, for many the eigenvalues are cheaper.
    """
    nll, _ = problem.nll_and_gradient()
    p = len(problem.w)
    if method == "dense":
        H, _ = problem.dense(curvature)
        nodes, weights = scipy.linalg.eigvalsh(H, overwrite_a=True), np.ones(p)
    elif method == "dual":
        K = _kernel(problem, smallest)
        # Eigenvalues cost about n/600 factorisations of n x n.
        if n_values < max(5, len(K) / 600):
            return nll, lambda precision: _log_occam(K, smallest / precision)
        nodes = smallest * scipy.linalg.eigvalsh(K, overwrite_a=True, check_finite=False)
        weights = np.ones(len(nodes))
    elif method == "lanczos":
        nodes, weights = lanczos_quadrature(problem, curvature, accuracy, smallest)
    else:
        raise InputError(
            f"method='{method}' has no curve over the prior precision: use 'dense', 'dual' or "
            "'lanczos'."
        )
    noise = p * np.finfo(float).eps * np.abs(nodes).max(initial=0.0)
    kept = nodes > noise
    nodes, weights = nodes[kept], weights[kept]

    def log_occam(precision: float) -> float:
        return -0.5 * float(weights @ restricted_log(nodes / precision))

    return nll, log_occam


def _kernel(problem: Problem, precision: float) -> Array:
    p = len(problem.w)
    kernel = problem.kernel(np.full(p, precision), np.zeros(p))
    if kernel is None:
        raise InputError("the nll is not convex in the outputs: use method='dense' or 'lanczos'.")
    return kernel.matrix


def _log_occam(K: Array, scale: float) -> float:
    """By Cholesky of I + scale K."""
    M = K * scale
    M[np.diag_indices(len(M))] += 1
    factor = scipy.linalg.cholesky(M.T, lower=False, overwrite_a=True, check_finite=False)
    return -float(np.log(np.diag(factor)).sum())


def scalar_curve(
    problem: Problem,
    method: str,
    curvature: str,
    accuracy: Accuracy,
    grid: Sequence[float] | NDArray[Any] | None,
    log_null: float | None,
) -> EvidenceCurve:
    """The evidence on a grid of precisions, and its maximum between them."""
    if grid is None:
        decades = math.log10(BOUNDS[1] / BOUNDS[0])
        values = np.geomspace(*BOUNDS, round(decades * _PER_DECADE) + 1)
    else:
        values = np.unique(np.asarray(grid, np.float64))
        if len(values) < 3 or not (np.isfinite(values).all() and values[0] > 0):
            raise InputError(
                "prior_precisions must be three or more finite numbers above 0, got "
                f"{str(grid)[:60]}."
            )
    nll, log_occam = trace_curve(
        problem,
        method,
        curvature,
        accuracy,
        smallest=max(float(values[0]), _SMALLEST),
        n_values=len(values) + _EVALUATIONS,
    )
    sq_norm = float(problem.w @ problem.w)

    def log_evidence(precision: float) -> float:
        return -nll - 0.5 * precision * sq_norm + log_occam(precision)

    logs = np.array([log_evidence(value) for value in values])
    k = int(np.argmax(logs))
    best, edge = float(values[k]), None
    if k in (0, len(values) - 1):
        edge = "lowest" if k == 0 else "highest"
    else:
        found = scipy.optimize.minimize_scalar(
            lambda t: -log_evidence(math.exp(t)),
            method="bounded",
            bounds=(math.log(values[k - 1]), math.log(values[k + 1])),
            options={"xatol": 1e-6},
        )
        best = math.exp(found.x)
    return EvidenceCurve(
        prior_precision=values,
        log_evidence=logs,
        E=None if log_null is None else log_null - logs,
        best=best,
        best_log_evidence=log_evidence(best),
        edge=edge,
        method=method,
    )


def layer_precisions_of_largest_evidence(
    problem: Problem, method: str, curvature: str
) -> dict[str, float]:
    """One precision a layer: the fixed point lambda = gamma/|w|^2 of MacKay (1992).

    gamma is the number of a layer's parameters that the data determine. At the fixed point the
    gradient of the log evidence in every ln lambda vanishes.
    """
    if curvature != "ggn" or method not in ("dense", "dual"):
        raise InputError(
            "prior_precision='per_layer' needs curvature='ggn' with method 'dense' or 'dual'."
        )
    squares = {
        name: float(problem.w[index] @ problem.w[index]) for name, index in problem.layers.items()
    }
    if empty := [name for name, square in squares.items() if square == 0]:
        raise InputError(
            f"layer {empty[0]} has only zeros, so the evidence grows without end in its "
            "precision: give precisions by hand."
        )
    determined = (_dense_gammas if method == "dense" else _dual_gammas)(problem)

    def steps(logs: Array) -> Array:
        gammas = determined(dict(zip(squares, np.exp(logs), strict=True)))
        after = [math.log(max(gammas[name], 1e-12) / squares[name]) for name in squares]
        return np.array(after) - logs

    logs = _fixed_point(steps, np.zeros(len(squares)))
    return {name: float(value) for name, value in zip(squares, np.exp(logs), strict=True)}


def _fixed_point(steps: Callable[[Array], Array], start: Array) -> Array:
    """Where the plain iteration stands still, by Anderson's extrapolation of it.

    The plain iteration contracts slowly, and every step of it costs a factorisation.
    """
    points, found = [start], [steps(start)]
    while np.abs(found[-1]).max() >= _SETTLED and len(found) < _SWEEPS:
        at, step = points[-1], found[-1]
        recent = slice(-len(start) - 2, None)
        moved, changed = np.diff(points[recent], axis=0), np.diff(found[recent], axis=0)
        if len(changed):
            weights = np.linalg.lstsq(changed.T, step, rcond=1e-10)[0]
            step = step - weights @ (moved + changed)
        points.append(at + np.clip(step, -_FARTHEST, _FARTHEST))
        found.append(steps(points[-1]))
    return points[-1] + found[-1]


Gammas = Callable[[dict[str, float]], dict[str, float]]


def _dense_gammas(problem: Problem) -> Gammas:
    H, _ = problem.dense("ggn")

    def gammas(precisions: dict[str, float]) -> dict[str, float]:
        L = np.empty(len(H))
        for name, index in problem.layers.items():
            L[index] = precisions[name]
        M = H + np.diag(L)
        spread = np.diag(scipy.linalg.inv(M, overwrite_a=True))
        return {
            name: float(len(index) - L[index] @ spread[index])
            for name, index in problem.layers.items()
        }

    return gammas


def _dual_gammas(problem: Problem) -> Gammas:
    """With a kernel for each layer: gamma = tr (I + K)^-1 K_layer."""
    p = len(problem.w)
    kernels: dict[str, Array] = {}
    whole = problem.kernel(np.full(p, BOUNDS[0]), np.zeros(p), negligible=_ROUGHLY)
    if whole is None:
        raise InputError("the nll is not convex in the outputs: use method='dense'.")
    for name, index in problem.layers.items():
        # Precisions beyond reach leave the other layers out.
        L = np.full(p, 1e300)
        L[index] = 1.0
        kernels[name] = np.tril(problem.kernel_of_rows(L, whole.rows))
    del whole

    def gammas(precisions: dict[str, float]) -> dict[str, float]:
        n = len(next(iter(kernels.values())))
        K = np.eye(n)
        for name, part in kernels.items():
            K += part / precisions[name]
        factor = scipy.linalg.cholesky(K.T, lower=False, overwrite_a=True, check_finite=False)
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=0, overwrite_c=1)
        # An entry below the diagonal stands for two; above it the parts are 0.
        return {
            name: float(2 * np.vdot(inverse.T, part) - np.diag(inverse) @ np.diag(part))
            / precisions[name]
            for name, part in kernels.items()
        }

    return gammas
