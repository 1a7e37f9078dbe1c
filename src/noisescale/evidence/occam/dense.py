"""``dense``: the whole p x p curvature, exactly.

|I + M| of M = L^-1/2 H L^-1/2 by Cholesky where H is known to be positive, else by all eigenvalues.
"""

from collections.abc import Callable

import numpy as np
import scipy.linalg

from noisescale.evidence.occam.cholesky import cholesky_of_lower
from noisescale.evidence.occam.term import (
    Accuracy,
    Array,
    Curve,
    Occam,
    Term,
    check_curvature,
    curve_of_eigenvalues,
    occam_of_eigenvalues,
)
from noisescale.evidence.pace import attended
from noisescale.evidence.problem import Facts, Problem

# Rounding in the eigenvalues of M adds up to p eps trace(M) nats, which a Cholesky factorisation of
# I + M would count as curvature. Beyond this many nats the eigenvalues are computed and cut off.
ROUNDING = 1e-6


def refusal(facts: Facts, curvature: str) -> str | None:
    """None: it knows every curvature of every model."""
    return None


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """Three matrices p x p; a factorisation, or all eigenvalues."""
    p, N, flops = facts.p, facts.N, facts.pass_flops
    if curvature == "ggn":
        return 8.0 * 3 * p**2, N * facts.C * (3 * flops + p**2) + p**3 / 3
    return 8.0 * 3 * p**2, 6 * p * N * flops + 9 * p**3


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """By Cholesky or eigenvalues of the whole matrix."""
    H, positive = problem.dense(curvature)
    check_curvature(H)
    return Term((occam_of_positive if positive else occam_of_symmetric)(H, L, slope))


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """From all eigenvalues."""
    H, _ = problem.dense(curvature)
    check_curvature(H)
    h = attended(3.0 * len(H) ** 3, scipy.linalg.eigvalsh, H, overwrite_a=True)
    return curve_of_eigenvalues(h, np.ones(len(h)), len(h))


def determined(problem: Problem) -> Callable[[dict[str, float]], dict[str, float]]:
    """gamma by layer, the parameters that the data determine, from its precisions.

    gamma = n - lambda tr (H + L)^-1 over the layer's n parameters.
    """
    H, _ = problem.dense("ggn")
    check_curvature(H)

    def gammas(precisions: dict[str, float]) -> dict[str, float]:
        L = np.empty(len(H))
        for name, index in problem.layers.items():
            L[index] = precisions[name]
        inverse = attended(2.0 * len(L) ** 3, scipy.linalg.inv, H + np.diag(L), overwrite_a=True)
        spread = np.diag(inverse)
        return {
            name: float(len(index) - L[index] @ spread[index])
            for name, index in problem.layers.items()
        }

    return gammas


def occam_of_positive(H: Array, L: Array, gradient: Array) -> Occam:
    """For a curvature known to have no negative eigenvalue: one Cholesky factorisation."""
    M = _scaled(H, L)
    if not resolved(M):
        return occam_of_symmetric(H, L, gradient)
    M[np.diag_indices(len(M))] += 1
    factor = cholesky_of_lower(M)
    half = scipy.linalg.solve_triangular(factor, gradient / np.sqrt(L), trans="T")
    log_occam = -float(np.log(np.diag(factor)).sum())
    return Occam(log_occam, log_occam, 0, 0.0, float(half @ half))


def occam_of_symmetric(H: Array, L: Array, gradient: Array) -> Occam:
    """For any symmetric curvature: all its eigenvalues."""
    mu, vectors = attended(10.0 * len(L) ** 3, scipy.linalg.eigh, _scaled(H, L), overwrite_a=True)
    g = gradient / np.sqrt(L)
    return occam_of_eigenvalues(mu, vectors.T @ g, float(g @ g))


def resolved(M: Array) -> bool:
    """Whether rounding in a positive matrix is negligible against the identity added to it."""
    return bool(len(M) * np.finfo(float).eps * np.trace(M) < ROUNDING)


def _scaled(H: Array, L: Array) -> Array:
    root = np.sqrt(L)
    return check_curvature(np.asarray(H / np.outer(root, root)))
