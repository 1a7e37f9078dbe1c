"""Predictions averaged over the posterior (equations 2 and 3 of the paper).

The posterior is Gaussian around the MAP with covariance (H + L)^-1 and the model is taken as linear
in its parameters there, so the logits of a new input are Gaussian too. Their softmax is averaged
either by the probit approximation, sigmoid(z / sqrt(1 + pi s^2/8)), or by sampling.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from noisescale.arrays import check_inputs, forgets_constants, output_shape
from noisescale.checks import check_choice, check_memory
from noisescale.errors import InputError
from noisescale.evidence.averaging import average_probabilities
from noisescale.evidence.curvature.gauss_newton import dense_ggn, ggn_root, outputs_and_jacobian
from noisescale.evidence.curvature.model import Model
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.prior import prior_vector

Array = NDArray[np.float64]


@forgets_constants
def posterior_predict(
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    x_new: ArrayLike,
    *,
    prior_precision: Any,
    likelihood: str = "categorical",
    predictive: str = "probit",
    method: str = "auto",
    n_samples: int = 1000,
    seed: int = 0,
) -> Array:
    """Class probabilities of new inputs, averaged over the Gauss-Newton posterior of any model.

    Args:
        apply_fn: any JAX function ``(params, x) -> logits``.
        params: the MAP.
        data: the training pair ``(x, y)``.
        x_new: inputs to predict, one row each.
        prior_precision: as in :func:`noisescale.log_evidence`.
        likelihood: ``"categorical"`` or ``"bernoulli"``.
        predictive: ``"map"`` (no averaging), ``"probit"`` or ``"monte_carlo"``.
        method: ``"dense"``, ``"dual"`` or ``"auto"``.
        n_samples: draws for ``"monte_carlo"``.
        seed: decides those draws.

    Returns:
        Probabilities (n, K); K = 2 for the Bernoulli likelihood.
    """
    problem = jax_problem(apply_fn, params, data, likelihood)
    model = problem.model
    if problem.n_classes is None:
        raise InputError(
            "posterior_predict gives class probabilities: use a likelihood of classes."
        )
    L = prior_vector(prior_precision, problem)
    method = _choose_method(method, p=model.n_params, n=len(model.y) * model.n_outputs)
    inputs = check_inputs(x_new, "x_new", np.float64)
    if inputs.ndim != model.x.ndim:
        raise InputError(f"x_new must have one row an input, got shape {inputs.shape}.")
    with jax.enable_x64(True):
        output_shape(apply_fn, params, inputs)
    if predictive == "map":
        with jax.enable_x64(True):
            logits = np.asarray(model.architecture.outputs(model.w, inputs))
        spread = None
    else:
        logits, spread = _logits_and_covariance(model, L, inputs, method)
    if model.architecture.likelihood.name == "bernoulli":
        return average_probabilities(
            logits[:, 0],
            lambda: np.asarray(spread)[:, 0, 0],
            predictive=predictive,
            n_samples=n_samples,
            seed=seed,
        )
    return average_probabilities(
        logits, lambda: np.asarray(spread), predictive=predictive, n_samples=n_samples, seed=seed
    )


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


def _logits_and_covariance(
    model: Model, L: Array, x: NDArray[Any], method: str
) -> tuple[Array, Array]:
    """Logits (n, C) and J (H + L)^-1 J' (n, C, C) of new inputs."""
    root = np.sqrt(L)
    if method == "dual":
        whole = ggn_root(model)  # (N C, p)
        assert whole is not None  # likelihoods of classes are convex in their logits
        A = whole / root
        kernel = A @ A.T
        kernel[np.diag_indices(len(kernel))] += 1
        factor = scipy.linalg.cholesky(kernel, lower=True, overwrite_a=True)
    else:
        M = dense_ggn(model)[0] / np.outer(root, root)
        M[np.diag_indices(len(M))] += 1
        factor = scipy.linalg.cholesky(M, lower=True, overwrite_a=True)
    logits, covariances = [], []
    for outputs, J in outputs_and_jacobian(model, x):
        n, C, p = J.shape
        scaled = (J / root).reshape(n * C, p)
        if method == "dual":  # Woodbury
            half = scipy.linalg.solve_triangular(factor, A @ scaled.T, lower=True).T
            reduced = _products(half.reshape(n, C, -1))
            covariances.append(_products(scaled.reshape(n, C, p)) - reduced)
        else:
            half = scipy.linalg.solve_triangular(factor, scaled.T, lower=True).T
            covariances.append(_products(half.reshape(n, C, p)))
        logits.append(outputs)
    return np.concatenate(logits), np.concatenate(covariances)


def _products(rows: Array) -> Array:
    """For each of n blocks of C rows, their C x C inner products."""
    return np.asarray(rows @ np.swapaxes(rows, 1, 2))
