"""Variance reduction: what Lanczos runs found of the leading curvature, taken off other probes.

z' f(M) z of signs z has the variance 2 |f(M)|^2 (off the diagonal, Frobenius), most of which a few
leading eigenvalues make. For any fixed B = sum_i g_i u_i u_i' the mean of z' B z is its trace, so

    z' f(M) z - sum_i g_i ((u_i' z)^2 - |u_i|^2)

is as unbiased as before, with the variance 2 |f(M) - B|^2: Hutch++ as a control variate. The u are
the Ritz vectors of the union of the Krylov spaces that other probes, independent of z, have been
through anyway, so that it takes no product with M: with V (p, r + b) the vectors of b runs,
M W = V C for the first r of them, W, where C holds the tridiagonal matrices.

The g are Gauss-Radau quadratures of u' f(M) u with a node at 0: with theta = u' M u and residual
|M u - theta u|^2 = rho,

    g = w f(nu),    nu = theta + rho/theta,    w = theta^2/(theta^2 + rho).

Where M is nowhere negative and f = ln(1 + mu), whose third derivative is positive, 0 <= g <=
u' f(M) u, and |f(M) - B|^2 <= |f(M)|^2 - sum_i g_i^2: vectors that are far from converged do no
harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noisescale.evidence.occam.krylov import Function, Run
from noisescale.evidence.occam.term import Array

_COLUMNS = 1 << 14  # of all vectors looked at together: sums of so many float32, then of float64
_INDEPENDENT = 1e-3  # eigenvalues of the vectors' Gram matrix: below lie copies of one another
_CONVERGED = 0.5  # the weight w below which a vector is not worth keeping


@dataclass(frozen=True, eq=False)
class Leading:
    """Ritz vectors u of some runs, as other probes see them.

    Attributes:
        nodes, weights: nu and w, (k,) each.
        probes: the numbers of the probes z that it is for.
        excess: (u' z)^2 - |u|^2, of mean 0: (probes, k).
    """

    nodes: Array
    weights: Array
    probes: tuple[int, ...]
    excess: Array

    def correction(self, f: Function, at: int) -> float:
        """What z' f(M) z of one of the probes has beyond its mean, as far as is known."""
        return float(self.excess[at] @ (self.weights * f(self.nodes)))


def leading(runs: Sequence[Run], probes: Sequence[int], signs: NDArray[np.int8]) -> Leading:
    """The Ritz vectors of the runs' union, for other ``probes`` with these ``signs`` (n, p)."""
    C, r = _tridiagonals(runs)
    scale = float(np.abs(C).max()) or 1.0  # squares of curvatures may overflow
    C /= scale
    G, P = np.zeros((len(C), len(C))), np.zeros((len(C), len(signs)))
    for start in range(0, signs.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        width = runs[0].Q.dtype
        V = np.concatenate(
            [run.Q[: run.steps, part] for run in runs]
            + [run.beyond[None, part].astype(width) for run in runs]
        )
        G += V @ V.T
        P += V @ signs[:, part].T.astype(width)
    g, X = np.linalg.eigh(G[:r, :r])
    X = X[:, g > _INDEPENDENT] / np.sqrt(g[g > _INDEPENDENT])  # W X is orthonormal
    T = X.T @ (G[:r] @ C) @ X
    theta, S = np.linalg.eigh((T + T.T) / 2)
    S = (X @ S)[:, theta > 0]  # W S are the Ritz vectors
    theta = theta[theta > 0]
    residuals = C @ S
    residuals[:r] -= theta * S
    rho = np.maximum(np.einsum("vk,vk->k", residuals, G @ residuals), 0.0)
    weights = theta**2 / (theta**2 + rho)
    kept = weights >= _CONVERGED
    S, lengths = S[:, kept], np.einsum("rk,rk->k", S, G[:r, :r] @ S)[kept]
    excess = (P[:r].T @ S) ** 2 - lengths
    nodes = scale * (theta[kept] + rho[kept] / theta[kept])
    return Leading(nodes, weights[kept], tuple(probes), excess)


def _tridiagonals(runs: Sequence[Run]) -> tuple[Array, int]:
    """C (r + b, r) with M W = V C, V being W and then each run's vector beyond its last; and r."""
    r = sum(run.steps for run in runs)
    C = np.zeros((r + len(runs), r))
    start = 0
    for k, run in enumerate(runs):
        stop = start + run.steps
        alpha, beta = run.alpha[: run.steps], run.beta[: run.steps]
        C[start:stop, start:stop] = np.diag(alpha) + np.diag(beta[:-1], 1) + np.diag(beta[:-1], -1)
        C[r + k, stop - 1] = beta[-1]
        start = stop
    return C, r
