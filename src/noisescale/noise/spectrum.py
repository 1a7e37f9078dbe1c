"""Where gradient noise points: leading eigenvalues of S, and their alignment with the curvature."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError
from noisescale.evidence.curvature.model import Architecture, Model
from noisescale.evidence.curvature.products import curvature_operator, streamed

Array = NDArray[np.float64]

_TOLERANCE = 1e-5  # of an eigenvalue; products in float32 are good to about 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class NoiseSpectrum:
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
        def told(values: Array) -> str:
            more = ", ..." if len(values) > 5 else ""
            return ", ".join(f"{value:.3g}" for value in values[:5]) + more

        return (
            f"NoiseSpectrum: leading eigenvalues of S {told(self.eigenvalues)}; of the "
            f"{self.curvature} {told(self.curvature_eigenvalues)}\n"
            f"  overlap of the two subspaces of {len(self.eigenvalues)} directions "
            f"{self.overlap:.2f} (chance {self.chance:.1g})"
        )


def noise_spectrum(
    model: Model, mean: Array, *, n_eigenvalues: int, curvature: str = "ggn"
) -> NoiseSpectrum:
    """The ``n_eigenvalues`` leading directions of S and of the curvature, matrix-free."""
    check_choice("curvature", curvature, ("ggn", "hessian"))
    k = check_whole("n_eigenvalues", n_eigenvalues, at_least=1)
    if k >= model.n_params:
        raise InputError(f"n_eigenvalues must be below {model.n_params}, the parameters, got {k}.")
    values, U = leading(covariance_operator(model, mean), k)
    curvatures, V = leading(curvature_operator(model, curvature), k)
    cosines = np.clip(np.linalg.svd(U.T @ V, compute_uv=False), 0, 1)
    return NoiseSpectrum(
        eigenvalues=values,
        curvature_eigenvalues=curvatures,
        curvature=curvature,
        cosines=cosines,
        overlap=float(np.mean(cosines**2)),
        chance=k / model.n_params,
    )


def covariance_operator(model: Model, mean: Array) -> LinearOperator:
    """S = sum_i (g_i - mean)(g_i - mean)'/(N - 1), (p, p), with ``mean`` the mean gradient."""
    N = len(model.x)
    second_moments = streamed(model, _second_moment_product, "float32")

    def matvec(v: Array) -> Array:
        v = np.ravel(v)
        return np.asarray((second_moments @ v - N * mean * (mean @ v)) / (N - 1))

    return LinearOperator(second_moments.shape, matvec=matvec, rmatvec=matvec, dtype=np.float64)


def leading(operator: LinearOperator, k: int) -> tuple[Array, Array]:
    """The ``k`` largest eigenvalues, descending, and their vectors (p, k)."""
    start = np.random.default_rng(0).normal(size=operator.shape[0])
    values, vectors = eigsh(operator, k, which="LA", v0=start, tol=_TOLERANCE)
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


@partial(jax.jit, static_argnums=0)
def _second_moment_product(
    architecture: Architecture, w: jax.Array, x: jax.Array, y: jax.Array, V: jax.Array
) -> jax.Array:
    """sum_i g_i (g_i' v): the slope of every example along v, pulled back."""

    def nll(w: jax.Array) -> jax.Array:
        return architecture.likelihood.nll(architecture.outputs(w, x), y)

    _, pull_back = jax.vjp(nll, w)
    along = jax.vmap(lambda v: jax.jvp(nll, (w,), (v,))[1])(V)  # (k, n)
    return jax.vmap(lambda s: jnp.asarray(pull_back(s)[0]))(along)
