"""Predictions averaged over the posterior (equations 2 and 3 of the paper).

The posterior is Gaussian around the MAP with covariance (H + L)^-1 and the model is taken as linear
in its parameters there, so the logits of a new input are Gaussian too. Their softmax is averaged
either by the probit approximation, sigmoid(z / sqrt(1 + pi s^2/8)), or by sampling.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from noisescale.arrays import forgets_constants
from noisescale.checks import check_choice, check_memory
from noisescale.errors import InputError
from noisescale.evidence.averaging import average_probabilities
from noisescale.evidence.occam.cholesky import cholesky_of_lower
from noisescale.evidence.occam.kernel import output_rows, row_blocks
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.prior_choice import resolve_prior
from noisescale.evidence.problem import Problem
from noisescale.evidence.rows import Rows
from noisescale.evidence.select import Select

if TYPE_CHECKING:
    from noisescale.evidence.jax_leaves import ApplyFn
    from noisescale.evidence.jax_problem import LikelihoodLike

Array = NDArray[np.float64]

_BLOCK_BYTES = 1 << 28  # of Jacobian held at once


@forgets_constants
def posterior_predict(
    apply_fn: "ApplyFn",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    x_new: ArrayLike,
    *,
    prior_precision: Any,
    likelihood: "LikelihoodLike" = "categorical",
    predictive: str = "probit",
    method: str = "auto",
    select: Select | None = None,
    n_samples: int = 1000,
    seed: int = 0,
) -> Array:
    """Class probabilities of new inputs, averaged over the Gauss-Newton posterior of any model.

    Args:
        apply_fn: any JAX function ``(params, x) -> logits``.
        params: the MAP.
        data: the training pair ``(x, y)``.
        x_new: inputs to predict, one row each.
        prior_precision: as in :func:`noisescale.log_evidence`, at these params.
        likelihood: ``"categorical"`` or ``"bernoulli"``.
        predictive: ``"map"`` (no averaging), ``"probit"`` or ``"monte_carlo"``.
        method: ``"dense"``, ``"dual"`` or ``"auto"``.
        select: as in :func:`noisescale.log_evidence`.
        n_samples: draws for ``"monte_carlo"``.
        seed: decides those draws.

    Returns:
        Probabilities (n, K), or (n, T, K) for sequences; K = 2 for the Bernoulli likelihood.
    """
    from noisescale.evidence.jax_problem import jax_problem

    return predictions_of(
        jax_problem(apply_fn, params, data, likelihood, select),
        x_new,
        prior_precision=prior_precision,
        predictive=predictive,
        method=method,
        n_samples=n_samples,
        seed=seed,
    )


def predictions_of(
    problem: Problem,
    x_new: Any,
    *,
    prior_precision: Any,
    predictive: str = "probit",
    method: str = "auto",
    n_samples: int = 1000,
    seed: int = 0,
) -> Array:
    """The predictions of a problem of any framework; see :func:`posterior_predict`."""
    if problem.n_classes is None:
        raise InputError(
            "posterior_predict gives class probabilities: use a likelihood of classes."
        )
    new = problem.with_inputs(x_new)
    outputs = new.outputs(slice(None))  # (n, C)
    n, C = outputs.shape
    method = _choose_method(method, p=len(problem.w), n=problem.facts().rows)
    L, _ = resolve_prior(problem, prior_precision, method, "ggn", Accuracy())
    settings: dict[str, Any] = {"predictive": predictive, "n_samples": n_samples, "seed": seed}
    K = problem.n_classes  # C = T K for sequences of T tokens
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        if problem.likelihood.name == "bernoulli":
            averaged = average_probabilities(
                outputs[:, 0],
                lambda: _covariances(problem, new, L, method, (n, 1))[:, 0, 0],
                **settings,
            )
        else:
            averaged = average_probabilities(
                outputs.reshape(-1, K),
                lambda: _covariances(problem, new, L, method, (n * C // K, K)),
                **settings,
            )
    if not np.isfinite(averaged).all():
        raise InputError("the predictions at x_new are not finite: scale x_new as data was.")
    return averaged if len(averaged) == n else averaged.reshape(n, C // K, K)


def _choose_method(method: str, *, p: int, n: int) -> str:
    """The method that holds less, or the one asked for if it fits."""
    check_choice("method", method, ("auto", "dense", "dual"))
    memory = {"dense": 8.0 * 3 * p**2, "dual": 8.0 * (2 * n**2 + 2 * n * p)}
    if method == "auto":
        method = min(memory, key=memory.__getitem__)
    other = "dual" if method == "dense" else "dense"
    instead = f"method='{other}' would take {memory[other] / 2**30:.3g} GiB"
    check_memory(f"method='{method}'", memory[method], instead)
    return method


def _covariances(
    problem: Problem, new: Problem, L: Array, method: str, shape: tuple[int, int]
) -> Array:
    """J (H + L)^-1 J' of the new outputs, within each of ``shape[0]`` groups of ``shape[1]``."""
    root, (_, K) = np.sqrt(L), shape
    if method == "dual":  # Woodbury
        A = np.concatenate(list(row_blocks(problem, output_rows(problem)))) / root
        kernel = A @ A.T
        kernel[np.diag_indices(len(kernel))] += 1
        factor = cholesky_of_lower(kernel)
    else:
        M = problem.dense("ggn")[0] / np.outer(root, root)
        M[np.diag_indices(len(M))] += 1
        factor = cholesky_of_lower(M)
    parts = []
    for J in _jacobian(new, shape):
        scaled = J / root  # (b K, p)
        towards = A @ scaled.T if method == "dual" else scaled.T
        half = scipy.linalg.solve_triangular(factor, towards, trans="T").T
        within = _products(half.reshape(-1, K, half.shape[1]))
        if method == "dual":
            within = _products(scaled.reshape(-1, K, len(L))) - within
        parts.append(within)
    return np.concatenate(parts)


def _jacobian(new: Problem, shape: tuple[int, int]) -> Iterator[Array]:
    """The derivatives of all outputs, some groups of them at a time."""
    n, (groups, K) = new.n_train, shape
    C = groups * K // n  # outputs an example
    size = max(1, _BLOCK_BYTES // (8 * K * len(new.w))) * K
    for start in range(0, n * C, size):
        outputs = np.arange(start, min(start + size, n * C))
        yield new.rows(Rows(outputs // C, np.eye(C)[outputs % C]))


def _products(rows: Array) -> Array:
    """For each of n blocks of C rows, their C x C inner products."""
    return np.asarray(rows @ np.swapaxes(rows, 1, 2))
