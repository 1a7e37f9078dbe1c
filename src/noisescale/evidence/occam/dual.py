"""``dual``: the Gauss-Newton matrix as a kernel between rows, n x n with n at most N C; exact.

With Lambda_i the Hessian of an example's nll in its outputs and Lambda_i = R_i' R_i, the rows
A = (R_i J_i) give the Gauss-Newton matrix A' A, and for a prior precision L

    |L + A' A|/|L| = |I + K|,    K = A L^-1 A'.

A softmax leaves one row in C out (its Lambda has rank C - 1), and rows whose diagonal is negligible
add nothing. Where A is small it is held whole, else K is built block by block.
"""

from collections.abc import Callable

import numpy as np
import scipy.linalg

from noisescale.evidence.occam.cholesky import cholesky_of_lower
from noisescale.evidence.occam.dense import ROUNDING, occam_of_positive, resolved
from noisescale.evidence.occam.kernel import (
    HeldRows,
    dual_kernel,
    kernel_builder,
    output_rows,
    rows_fit,
)
from noisescale.evidence.occam.term import (
    ONLY_GGN,
    Accuracy,
    Array,
    Curve,
    Occam,
    Term,
    check_curvature,
    curve_of_eigenvalues,
    occam_of_eigenvalues,
)
from noisescale.evidence.pace import attended, stage, tick
from noisescale.evidence.problem import Facts, Problem

SMALL = 1 << 28  # bytes of a root that is worth holding whole, for its better accuracy
_EIGENVALUES = 5  # factorisations that all of them take about as long as
_ROUGHLY = 0.1  # nats at the smallest precision, less by its ratio at others: for layers alone
_LOWEST = 1e-4  # precision of a layer down to which rows matter to it
_BEYOND = 1e300  # a precision that leaves a layer out


def refusal(facts: Facts, curvature: str) -> str | None:
    """The Hessian has no root."""
    return None if curvature == "ggn" else ONLY_GGN


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """A kernel n x n, what it is made from, and its factorisation."""
    n, N, p, flops = facts.rows, facts.N, facts.p, facts.pass_flops
    if formed_when_wanted(facts):
        formed = sum(2.0 * n * w.positions * w.size for w in facts.weights)
        work = (N + 2 * n) * flops + formed + _products(facts) + n**3 / 3
        return 8.0 * (n**2 + n * facts.unformed), work
    if not rows_fit(n, facts.formed):
        return 8.0 * n**2, n * (3 * flops + N * flops) + n**3 / 3
    held = n * facts.formed + sum(
        w.groups * w.positions * (N * w.inputs + n * w.outputs) for w in facts.multiplied
    )
    if 8 * n * p <= SMALL:
        held = 3 * n * p
    return 8.0 * (n**2 + held), (N + 2 * n) * flops + _products(facts) + n**3 / 3


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From the root where it is small, else from the kernel."""
    every = output_rows(problem)
    if 8 * len(every) * len(L) <= SMALL:
        A = HeldRows(problem, np.ones(len(L)), every).A
        return Term(occam_of_root(check_curvature(A), L, slope))
    kernel = dual_kernel(problem, L, slope, every=every)
    occam = occam_of_kernel(kernel.matrix, kernel.along_gradient, float(slope @ (slope / L)))
    return Term(occam, details={"kernel_rows": int(kernel.kept.sum())})


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """Few precisions are factorised one by one; many share the kernel's eigenvalues."""
    p = len(problem.w)
    K = dual_kernel(problem, np.full(p, smallest), np.zeros(p)).matrix
    if n_values < _EIGENVALUES:
        return lambda precision: _log_occam(K, smallest / precision)
    h = smallest * attended(
        3.0 * len(K) ** 3, scipy.linalg.eigvalsh, K, overwrite_a=True, check_finite=False
    )
    return curve_of_eigenvalues(h, np.ones(len(h)), p)


def determined(problem: Problem) -> Callable[[dict[str, float]], dict[str, float]]:
    """gamma by layer, the parameters that the data determine, from its precisions.

    gamma = tr (I + K)^-1 K_layer, with a kernel K_layer for each layer.
    """
    p = len(problem.w)
    kernels: dict[str, Array] = {}
    every = output_rows(problem)
    whole = dual_kernel(problem, np.full(p, _LOWEST), np.zeros(p), negligible=_ROUGHLY, every=every)
    for name, index in problem.layers.items():
        L = np.full(p, _BEYOND)
        L[index] = 1.0
        kernels[name] = np.tril(kernel_builder(problem, L, every).matrix(whole.kept))
    del whole

    def gammas(precisions: dict[str, float]) -> dict[str, float]:
        n = len(next(iter(kernels.values())))
        K = np.eye(n)
        for name, part in kernels.items():
            K += part / precisions[name]
        factor = cholesky_of_lower(K)
        inverse, _ = attended(
            2 * n**3 / 3, scipy.linalg.lapack.dpotri, factor, lower=0, overwrite_c=1
        )
        # An entry below the diagonal stands for two; above it the parts are 0.
        return {
            name: float(2 * np.vdot(inverse.T, part) - np.diag(inverse) @ np.diag(part))
            / precisions[name]
            for name, part in kernels.items()
        }

    return gammas


def formed_when_wanted(facts: Facts) -> bool:
    """Whether layers' inputs and output gradients fit into memory, and rows do not."""
    n = facts.rows
    return rows_fit(n, facts.unformed) and not rows_fit(n, facts.formed)


def _products(facts: Facts) -> float:
    """Operations of the kernel's entries, half of n^2."""
    n, k = facts.rows, facts.rows_an_example
    entry = 2 * facts.formed + sum(w.kernel_flops(k) for w in facts.multiplied)
    return n**2 / 2 * (2 * facts.p if 8 * n * facts.p <= SMALL else entry)


def occam_of_root(A: Array, L: Array, gradient: Array) -> Occam:
    """For H = A' A with A (n, p): Cholesky on the smaller of the two sides."""
    scaled = check_curvature(A / np.sqrt(L))  # (n, p)
    n, p = scaled.shape
    g = gradient / np.sqrt(L)
    if n == 0:
        return Occam(0.0, 0.0, 0, 0.0, float(g @ g))
    if n >= p:
        return occam_of_positive(attended(float(n) * p**2, np.matmul, A.T, A), L, gradient)
    # |I + A A'| = |I + A' A|, and Woodbury for the solve.
    kernel = attended(float(n) ** 2 * p, np.matmul, scaled, scaled.T)
    if not resolved(kernel):
        # The nonzero eigenvalues are the squared singular values, in full relative accuracy.
        _, s, vt = attended(10.0 * n**2 * p, scipy.linalg.svd, scaled, full_matrices=False)
        return occam_of_eigenvalues(s**2, vt @ g, float(g @ g))
    kernel[np.diag_indices(n)] += 1
    factor = cholesky_of_lower(kernel)
    half = scipy.linalg.solve_triangular(factor, scaled @ g, trans="T")
    log_occam = -float(np.log(np.diag(factor)).sum())
    return Occam(log_occam, log_occam, 0, 0.0, max(float(g @ g - half @ half), 0.0))


def occam_of_kernel(K: Array, along: Array, length: float) -> Occam:
    """From the dual kernel K = A L^-1 A' (its lower triangle; overwritten).

    Args:
        K: (n, n), in units of the prior.
        along: A L^-1 gradient.
        length: gradient' L^-1 gradient.
    """
    n = len(K)
    if n == 0:
        return Occam(0.0, 0.0, 0, 0.0, length)
    if not _resolved_kernel(K):
        mu, vectors = attended(
            10.0 * n**3, scipy.linalg.eigh, K, overwrite_a=True, check_finite=False
        )
        noise = n * np.finfo(float).eps * mu[-1]
        mu = np.where(mu <= noise, 0.0, mu)
        # A vector's length in weight space is the root of its mu.
        known = np.where(mu > 0, (vectors.T @ along) / np.sqrt(np.where(mu > 0, mu, 1)), 0.0)
        return occam_of_eigenvalues(mu, known, length)
    K[np.diag_indices(n)] += 1
    stage("factorisation", n**3 / 3)
    factor = cholesky_of_lower(K)
    half = scipy.linalg.solve_triangular(factor, along, trans="T", check_finite=False)
    log_occam = -float(np.log(np.diag(factor)).sum())
    return Occam(log_occam, log_occam, 0, 0.0, max(length - float(half @ half), 0.0))


def _resolved_kernel(K: Array) -> bool:
    """Whether rounding in K, eps times its norm on each of n eigenvalues, is negligible."""
    v = np.ones(len(K)) / np.sqrt(len(K))
    for _ in range(8):
        w = scipy.linalg.blas.dsymv(1.0, K.T, v, lower=0)
        tick()
        size = float(np.linalg.norm(w))
        if size == 0:
            return True
        v = w / size
    return bool(len(K) * np.finfo(float).eps * size < ROUNDING)


def _log_occam(K: Array, scale: float) -> float:
    """By Cholesky of I + scale K."""
    M = K * scale
    M[np.diag_indices(len(M))] += 1
    factor = cholesky_of_lower(M)
    return -float(np.log(np.diag(factor)).sum())
