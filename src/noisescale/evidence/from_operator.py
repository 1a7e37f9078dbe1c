"""The evidence from a curvature that another framework computed, as a matrix or an operator."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from noisescale.checks import check_choice, check_memory, check_number, check_whole
from noisescale.errors import InputError
from noisescale.evidence.laplace import assemble
from noisescale.evidence.null import log_null_frequencies, log_null_uniform
from noisescale.evidence.occam.dense import occam_of_symmetric
from noisescale.evidence.occam.lanczos import operator_term
from noisescale.evidence.occam.term import Accuracy, Term
from noisescale.evidence.pace import spoken
from noisescale.evidence.prior import proper
from noisescale.evidence.result import Evidence
from noisescale.seeds import random_stream

_DENSE_OPERATOR = 4_000  # parameters up to which an operator is turned into a matrix


def log_evidence_from_operator(
    curvature: LinearOperator | ArrayLike,
    *,
    nll: float,
    penalty: float,
    prior_precision: float | ArrayLike,
    n_train: int,
    n_classes: int | None = None,
    class_counts: ArrayLike | None = None,
    gradient: ArrayLike | None = None,
    at: str = "check",
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
    method: str = "auto",
    tolerance: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Evidence:
    """The evidence from a curvature that another framework computed.

    Args:
        curvature: the symmetric p x p curvature of the *summed* nll *without* the prior, as a
            matrix or as a SciPy ``LinearOperator``.
        nll: the summed negative log-likelihood at the point.
        penalty: 1/2 sum of prior_precision w^2 there.
        prior_precision: one number, or one for each of the p parameters.
        n_train: the number of training examples.
        n_classes: for the null model that guesses them uniformly.
        class_counts: examples of each class, for the null model that knows their frequencies.
        gradient: the gradient of the whole cost, nll plus penalty; without it the distance from
            the minimum is not known, and the result is ``unchecked``.
        at: ``"check"`` or ``"point"``, as in :func:`log_evidence`.
        log_null: the null model's log evidence, in place of ``n_classes``.
        log_degeneracy: as in :func:`log_evidence`.
        method: ``"dense"``, ``"lanczos"``, or ``"auto"``: dense up to 4,000 parameters.
        tolerance, max_probes, seed, progress: as in :func:`log_evidence`.
    """
    operator = _square_operator(curvature)
    p = operator.shape[0]
    check_choice("method", method, ("auto", "dense", "lanczos"))
    accuracy = Accuracy(tolerance, max_probes, seed=seed, progress=progress)
    if method == "auto":
        method = "dense" if p <= _DENSE_OPERATOR else "lanczos"
    L = _vector("prior_precision", prior_precision)
    if L.shape not in ((), (p,)):
        raise InputError(f"prior_precision must be one number or {p}, got shape {L.shape}.")
    L = proper(np.broadcast_to(L, p))
    check_number("nll", nll, "", lambda v: True)
    check_number("penalty", penalty, ">= 0", lambda v: v >= 0)
    check_whole("n_train", n_train, at_least=1)
    check_choice("at", at, ("check", "point"))
    if sum(given is not None for given in (n_classes, class_counts, log_null)) > 1:
        raise InputError("give one of n_classes, class_counts and log_null alone.")
    details = {} if log_null is None else {"null_model": "the given null model"}
    if n_classes is not None:
        log_null = log_null_uniform(n_train, check_whole("n_classes", n_classes, at_least=2))
    if class_counts is not None:
        log_null = log_null_frequencies(class_counts)
        if (n := float(np.sum(np.asarray(class_counts, np.float64)))) != n_train:
            raise InputError(
                f"class_counts add up to {n:g}, but n_train is {n_train}: give the number of "
                "training examples of each class."
            )
        details["null_model"] = "the class frequencies"
    g = np.zeros(p) if gradient is None else _vector("gradient", gradient).ravel()
    if g.shape != (p,) or not np.isfinite(g).all():
        raise InputError(f"gradient must have {p} finite entries, got {len(g)} values.")
    # What is not finite is refused below.
    with spoken(progress), np.errstate(over="ignore", invalid="ignore"):
        if method == "dense":
            term = Term(occam_of_symmetric(_dense_operator(operator), L, g))
        else:
            _check_symmetry(operator, seed)
            term = operator_term(
                lambda _: operator,
                L,
                g,
                positive=False,
                accuracy=accuracy,
            )
        gradient_norm = None if gradient is None else float(np.linalg.norm(g))
    return assemble(
        term,
        nll=float(nll),
        penalty=float(penalty),
        gradient_norm=gradient_norm,
        n_train=n_train,
        n_params=p,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        method=method,
        curvature="operator",
        prior_precision=float(L[0]) if np.ptp(L) == 0 else None,
        at=at,
        linear=False,
        details=details,
    )


def _square_operator(curvature: Any) -> LinearOperator:
    """The curvature as an operator, if it can be one."""
    if not isinstance(curvature, LinearOperator) and not hasattr(curvature, "tocsr"):
        matrix = _vector("curvature", curvature)
        if matrix.ndim != 2:
            raise InputError(f"curvature must be a square matrix, got shape {matrix.shape}.")
        curvature = matrix
    operator = aslinearoperator(curvature)
    p = operator.shape[0]
    if operator.shape != (p, p) or p == 0:
        raise InputError(f"curvature must be square, got shape {operator.shape}.")
    return operator


def _vector(name: str, values: Any) -> NDArray[np.float64]:
    try:
        if np.asarray(values).dtype.kind in "bcSU":
            raise TypeError
        return np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be numbers, got {type(values).__name__}.") from None


def _dense_operator(operator: LinearOperator) -> NDArray[np.float64]:
    p = operator.shape[0]
    check_memory("method='dense'", 8.0 * 3 * p**2, "use method='lanczos'")
    H = np.asarray(operator @ np.eye(p), np.float64)
    if not np.isfinite(H).all():
        raise InputError("curvature holds NaN or infinite values.")
    asymmetry = np.abs(H - H.T).max(initial=0.0)
    if asymmetry > 1e-6 * np.abs(H).max(initial=0.0):
        raise InputError(f"curvature must be symmetric, but H and H' differ by {asymmetry:.2g}.")
    return np.asarray((H + H.T) / 2)


def _check_symmetry(operator: LinearOperator, seed: int) -> None:
    """u' H v = v' H u for random u and v; for what is too large to look at whole."""
    u, v = random_stream(seed, "symmetry").normal(size=(2, operator.shape[0]))
    Hu, Hv = operator @ u, operator @ v
    if not (np.isfinite(Hu).all() and np.isfinite(Hv).all()):
        raise InputError("curvature gives products that are NaN or infinite.")
    scale = np.linalg.norm(u) * np.linalg.norm(Hv) + np.linalg.norm(v) * np.linalg.norm(Hu)
    # Products may be in float32: their rounding is about 1e-6 of the scale.
    if abs(u @ Hv - v @ Hu) > 1e-4 * scale:
        raise InputError(
            f"curvature must be symmetric, but u' H v = {u @ Hv:.3g} and v' H u = {v @ Hu:.3g} for "
            "some u and v."
        )
