"""The Laplace evidence of a model at a point, for any JAX function.

    ln P(y | x) = -(nll + penalty) + ln Occam,    ln Occam = -1/2 sum_i ln(1 + mu_i)

with mu_i the eigenvalues of the nll's curvature in units of the prior precision (equations 8 to 10
of the paper). E, the paper's log evidence ratio, compares with the null model that gives each of n
classes the probability 1/n: E = -ln P(y | x) - N ln n, above 0 in favour of the null model.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from noisescale.arrays import check_inputs, check_params, count_examples, output_shape
from noisescale.checks import check_choice, check_memory, check_number, check_whole, memory_limit
from noisescale.errors import InputError
from noisescale.evidence.curvature import (
    Model,
    dense_ggn,
    dense_hessian,
    ggn_root,
    nll_and_gradient,
)
from noisescale.evidence.logdet import (
    Array,
    Occam,
    occam_of_positive,
    occam_of_positive_root,
    occam_of_symmetric,
)
from noisescale.evidence.result import Evidence, NotAMinimumWarning
from noisescale.likelihood import Likelihood, check_labels, check_outputs, resolve_likelihood

METHODS = ("auto", "dense", "dual")
CURVATURES = ("ggn", "hessian")


def log_evidence(
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precision: Any,
    likelihood: str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array] = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
) -> Evidence:
    """The evidence of ``apply_fn`` at ``params``, from the training data alone.

    Args:
        apply_fn: any JAX function ``(params, x) -> outputs``.
        params: where to evaluate it: a minimum of the cost, or close to one.
        data: the training pair ``(x, y)``.
        prior_precision: lambda > 0, or a pytree like ``params`` with a number or an array for each
            leaf. Every parameter needs one: an unpenalised parameter has no evidence.
        likelihood: ``"categorical"``, ``"bernoulli"``, ``"gaussian"`` (``ns.gaussian(precision)``
            for a noise precision other than 1), or a function ``(outputs, y) -> nats`` an example.
        curvature: ``"ggn"`` (Gauss-Newton, never negative) or ``"hessian"``.
        method: ``"dense"`` works on p x p matrices, ``"dual"`` on N C x N C (Gauss-Newton alone);
            ``"auto"`` takes the cheaper.
        log_null: the null model's log evidence, where the likelihood has no classes.
        log_degeneracy: log of the number of equivalent minima to count, 0 for this one alone; see
            :func:`permutation_degeneracy`.
    """
    check_choice("curvature", curvature, CURVATURES)
    check_choice("method", method, METHODS)
    if method == "dual" and curvature == "hessian":
        raise InputError(
            "method='dual' needs curvature='ggn': the Hessian is not a product of Jacobians, so "
            "it has no small N C x N C form; use method='dense'."
        )
    model, y, n_classes = build_model(apply_fn, params, data, likelihood)
    L = prior_vector(prior_precision, params)
    method = choose_method(method, curvature, p=model.n_params, n=len(y) * model.n_outputs)

    nll, gradient = nll_and_gradient(model)
    penalty = 0.5 * float(L @ model.w**2)
    slope = gradient + L * model.w
    if method == "dual":
        occam = occam_of_positive_root(ggn_root(model), L, slope)
    elif curvature == "ggn":
        H, convex = dense_ggn(model)
        occam = (occam_of_positive if convex else occam_of_symmetric)(H, L, slope)
    else:
        occam = occam_of_symmetric(dense_hessian(model), L, slope)
    if log_null is None and n_classes is not None:
        log_null = -len(y) * math.log(n_classes)
    return _evidence(
        occam, nll=nll, penalty=penalty, gradient_norm=float(np.linalg.norm(slope)),
        n_train=len(y), n_params=model.n_params, log_null=log_null, log_degeneracy=log_degeneracy,
        method=method, curvature=curvature, prior_precision=_scalar_or_none(L),
    )  # fmt: skip


def log_evidence_from_operator(
    curvature: LinearOperator | ArrayLike,
    *,
    nll: float,
    penalty: float,
    prior_precision: float | ArrayLike,
    n_train: int,
    n_classes: int | None = None,
    gradient: ArrayLike | None = None,
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
) -> Evidence:
    """The evidence from a curvature that another framework computed.

    Args:
        curvature: the symmetric p x p curvature of the *summed* nll *without* the prior, as a
            matrix or as a SciPy ``LinearOperator``.
        nll: the summed negative log-likelihood at the point.
        penalty: 1/2 sum of prior_precision w^2 there.
        prior_precision: one number, or one for each of the p parameters.
        n_train: the number of training examples.
        n_classes: for the null model; without it ``log_null`` may be given instead.
        gradient: the gradient of the whole cost, nll plus penalty; without it the distance from
            the minimum is not known and not reported.
        log_null: the null model's log evidence, in place of ``n_classes``.
        log_degeneracy: as in :func:`log_evidence`.
    """
    operator = aslinearoperator(curvature)
    p = operator.shape[0]
    if operator.shape != (p, p):
        raise InputError(f"curvature must be square, got shape {operator.shape}.")
    _check_memory("dense", p=p, n=0)
    H = np.asarray(operator @ np.eye(p), np.float64)
    if not np.isfinite(H).all():
        raise InputError("curvature holds NaN or infinite values.")
    asymmetry = np.abs(H - H.T).max(initial=0.0)
    if asymmetry > 1e-6 * np.abs(H).max(initial=0.0):
        raise InputError(f"curvature must be symmetric, but H and H' differ by {asymmetry:.2g}.")
    try:
        L = np.asarray(prior_precision, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"prior_precision must be numbers, got {prior_precision!r}.") from None
    if L.shape not in ((), (p,)):
        raise InputError(f"prior_precision must be one number or {p}, got shape {L.shape}.")
    L = _proper(np.broadcast_to(L, p))
    check_number("nll", nll, "", lambda v: True)
    check_number("penalty", penalty, ">= 0", lambda v: v >= 0)
    check_whole("n_train", n_train, at_least=1)
    if n_classes is not None and log_null is not None:
        raise InputError("give n_classes or log_null, not both.")
    if n_classes is not None:
        log_null = -n_train * math.log(check_whole("n_classes", n_classes, at_least=2))
    g = np.zeros(p) if gradient is None else np.asarray(gradient, np.float64).ravel()
    if g.shape != (p,) or not np.isfinite(g).all():
        raise InputError(f"gradient must have {p} finite entries, got {len(g)} values.")
    return _evidence(
        occam_of_symmetric((H + H.T) / 2, L, g), nll=float(nll), penalty=float(penalty),
        gradient_norm=None if gradient is None else float(np.linalg.norm(g)), n_train=n_train,
        n_params=p, log_null=log_null, log_degeneracy=log_degeneracy, method="dense",
        curvature="operator", prior_precision=_scalar_or_none(L),
    )  # fmt: skip


def permutation_degeneracy(hidden_units: list[int] | tuple[int, ...]) -> float:
    """Log of the number of networks that differ by the order of their hidden units alone.

    For ``log_degeneracy``: each layer of h units can be permuted in h! ways. It counts minima, so
    it belongs to the model's whole evidence, not to the evidence of the minimum that was found.
    """
    return sum(math.lgamma(check_whole("hidden_units", h, at_least=1) + 1) for h in hidden_units)


def prior_vector(prior_precision: Any, params: Any) -> Array:
    """One proper precision for each parameter, in the order of the flattened ``params``."""
    leaves, tree = jax.tree.leaves(params), jax.tree.structure(params)
    sizes = [np.shape(leaf) for leaf in leaves]
    given: list[Any]
    if (
        prior_precision is None
        or getattr(prior_precision, "ndim", None) == 0
        or isinstance(prior_precision, (int, float))
    ):
        given = [prior_precision] * len(leaves)
    else:
        given = jax.tree.leaves(prior_precision, is_leaf=lambda leaf: leaf is None)
        given_tree = jax.tree.structure(prior_precision, is_leaf=lambda leaf: leaf is None)
        if str(given_tree) != str(tree):
            raise InputError(
                "prior_precision must be one number or have the structure of params, "
                f"got {given_tree} for {tree}."
            )
    if any(leaf is None for leaf in given):
        raise InputError(
            "prior_precision is None for some parameters: an unpenalised parameter has no "
            "evidence, give it a small precision of its own."
        )
    parts = []
    for precision, shape in zip(given, sizes, strict=True):
        try:
            parts.append(np.broadcast_to(np.asarray(precision, np.float64), shape).ravel())
        except (TypeError, ValueError):
            raise InputError(
                f"prior_precision {str(precision)[:40]} (shape {np.shape(precision)}) does not fit "
                f"parameters of shape {shape}: give numbers."
            ) from None
    return _proper(np.concatenate(parts))


def _proper(L: Array) -> Array:
    wrong = ~(np.isfinite(L) & (L > 0))
    if wrong.any():
        raise InputError(
            f"prior_precision must be finite and above 0 for every parameter, got {L[wrong][0]:g}: "
            "an improper prior has no evidence."
        )
    return np.ascontiguousarray(L)


def build_model(
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    likelihood: str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[Model, NDArray[Any], int | None]:
    """The model at its params with checked data, the targets, and the number of classes if any."""
    chosen = resolve_likelihood(likelihood)
    count_examples(data, "data")
    x, y = check_inputs(data[0], "data x", np.float64), np.asarray(data[1])
    shape = output_shape(apply_fn, check_params(params), x)
    n_classes = None
    if chosen.correct is not None:
        n_classes = check_outputs(chosen, shape, len(y))
        y = check_labels(y, n_classes, "data labels")
    else:
        if y.dtype.kind == "f":
            y = y.astype(np.float64)
            if not np.isfinite(y).all():
                raise InputError("data y holds NaN or infinite values.")
        elif y.dtype.kind not in "iub":
            raise InputError(f"data y must be numbers, got dtype {y.dtype}.")
        if chosen.name == "gaussian" and math.prod(shape) != y.size:
            raise InputError(f"outputs of shape {shape} do not fit targets of shape {y.shape}.")
    model = Model.at(apply_fn, params, x, y, chosen)
    _check_nll(model)
    return model, y, n_classes


def _check_nll(model: Model) -> None:
    """A user's nll must give one number an example: a broadcast would pass unnoticed."""
    for n in {1, len(model.y)}:
        with jax.enable_x64(True):
            outputs = jax.eval_shape(model.architecture.outputs, model.w, model.x[:n])
            try:
                shape = jax.eval_shape(
                    model.architecture.likelihood.nll, outputs, model.y[:n]
                ).shape
            except (TypeError, ValueError, IndexError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(
                    f"likelihood does not accept outputs of shape {outputs.shape} with y of shape "
                    f"{model.y[:n].shape}: {reason}"
                ) from error
        if shape != (n,):
            raise InputError(
                f"likelihood must return one number an example, shape ({n},), but returns shape "
                f"{shape} for outputs of shape {outputs.shape} and y of shape {model.y[:n].shape}."
            )


def choose_method(method: str, curvature: str, *, p: int, n: int) -> str:
    """The method to use, once it is known to fit into memory."""
    if method == "auto":
        dual = curvature == "ggn" and n < p and _memory("dual", p=p, n=n) <= memory_limit()
        method = "dual" if dual else "dense"
    _check_memory(method, p=p, n=n)
    return method


def _memory(method: str, *, p: int, n: int) -> float:
    """Bytes that a method holds at once: its square matrices, and for dual the root itself."""
    return 8.0 * (3 * p**2 if method == "dense" else 2 * n**2 + 2 * n * p)


def _check_memory(method: str, *, p: int, n: int) -> None:
    other = "dual" if method == "dense" else "dense"
    instead = f"method='{other}' would take {_memory(other, p=p, n=n) / 2**30:.3g} GiB" if n else ""
    check_memory(f"method='{method}'", _memory(method, p=p, n=n), instead)


def _scalar_or_none(L: Array) -> float | None:
    return float(L[0]) if np.ptp(L) == 0 else None


def _evidence(
    occam: Occam,
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
) -> Evidence:
    if log_null is not None:
        check_number("log_null", log_null, "", lambda v: True)
    constant = -(nll + penalty) + check_number("log_degeneracy", log_degeneracy, "", lambda v: True)
    result = Evidence(
        log_evidence=constant + occam.restricted,
        log_evidence_full=None if occam.full is None else constant + occam.full,
        log_evidence_std=0.0,
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
    )
    if not result.is_minimum:
        warnings.warn(" ".join(result.notes), NotAMinimumWarning, stacklevel=3)
    return result
