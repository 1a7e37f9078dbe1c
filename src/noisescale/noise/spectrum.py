"""Where gradient noise points: leading eigenvalues of S, and their alignment with the curvature."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.problem import Precision, Problem
from noisescale.notebook import Displayed

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class NoiseSpectrum(Displayed):
    """The leading directions of the gradient noise beside those of the curvature.

    Attributes:
        eigenvalues: the largest of S, the covariance of per-example gradients, descending.
        curvature_eigenvalues: the largest of the curvature of the summed nll, descending.
        curvature: ``"ggn"`` or ``"hessian"``.
        cosines: of the principal angles between the two leading subspaces, descending; all 1 if
            they are the same subspace.
        overlap: the mean squared cosine: 1 for the same subspace, ``chance`` for unrelated ones.
        chance: k/p.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 1, 0, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> noise = ns.gradient_noise(model, model.init(0, "zeros"), (x, y), n_eigenvalues=1)
    >>> noise.spectrum.chance
    0.25
    """

    eigenvalues: Array
    curvature_eigenvalues: Array
    curvature: str
    cosines: Array
    overlap: float
    chance: float

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, arrays as lists."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        def shown(values: Array) -> str:
            more = ", ..." if len(values) > 5 else ""
            return ", ".join(f"{value:.3g}" for value in values[:5]) + more

        return (
            f"NoiseSpectrum: leading eigenvalues of S {shown(self.eigenvalues)}; of the "
            f"{self.curvature} {shown(self.curvature_eigenvalues)}\n"
            f"  overlap of the two subspaces of {len(self.eigenvalues)} directions "
            f"{self.overlap:.2f} (chance {self.chance:.1g})"
        )


def noise_spectrum(
    problem: Problem,
    mean: Array,
    *,
    n_eigenvalues: int,
    curvature: str = "ggn",
    precision: Precision = "float32",
) -> NoiseSpectrum:
    """The ``n_eigenvalues`` leading directions of S and of the curvature, matrix-free.

    ``precision`` is that of S, whose products cancel where its noise is small beside ``mean``.
    """
    check_choice("curvature", curvature, ("ggn", "hessian"))
    k, p = check_whole("n_eigenvalues", n_eigenvalues, at_least=1), len(problem.w)
    if k >= p:
        raise InputError(f"n_eigenvalues must be below {p}, the parameters, got {k}.")
    values, U = leading(covariance_operator(problem, mean, precision), k)
    curvatures, V = leading(problem.operator(curvature, "float32"), k)
    cosines = np.clip(np.linalg.svd(U.T @ V, compute_uv=False), 0, 1)
    return NoiseSpectrum(
        eigenvalues=values,
        curvature_eigenvalues=curvatures,
        curvature=curvature,
        cosines=cosines,
        overlap=float(np.mean(cosines**2)),
        chance=k / p,
    )


def covariance_operator(
    problem: Problem, mean: Array, precision: Precision = "float32"
) -> LinearOperator:
    """S = sum_i (g_i - mean)(g_i - mean)'/(N - 1), (p, p), with ``mean`` the mean gradient."""
    N = problem.n_train
    second_moments = problem.second_moments(precision)

    def matvec(v: Array) -> Array:
        v = np.ravel(v)
        return np.asarray((second_moments @ v - N * mean * (mean @ v)) / (N - 1))

    return LinearOperator(second_moments.shape, matvec=matvec, rmatvec=matvec, dtype=np.float64)
