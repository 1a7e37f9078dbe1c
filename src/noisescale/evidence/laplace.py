"""The Laplace evidence of a model at a point.

    ln P(y | x) = -(nll + penalty) + ln Occam,    ln Occam = -1/2 sum_i ln(1 + mu_i)

with mu_i the eigenvalues of the nll's curvature in units of the prior precision (equations 8 to 10
of the paper). E, the paper's log evidence ratio, compares with the null model that gives each of n
classes the probability 1/n: E = -ln P(y | x) - N ln n, above 0 in favour of the null model.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from noisescale.arrays import forgets_constants
from noisescale.checks import check_choice, check_memory, check_number, check_whole
from noisescale.errors import InputError
from noisescale.evidence.null import log_null_of
from noisescale.evidence.occam.dense import occam_of_symmetric
from noisescale.evidence.occam.lanczos import operator_term
from noisescale.evidence.occam.term import Accuracy, Term
from noisescale.evidence.pace import speaks
from noisescale.evidence.preflight import METHODS, Preflight, preflight
from noisescale.evidence.prior import CHOICES, describe_prior, prior_vector, proper
from noisescale.evidence.prior_choice import choose_prior
from noisescale.evidence.problem import Problem
from noisescale.evidence.result import Evidence, NotAMinimumWarning, warn_user
from noisescale.evidence.select import Select
from noisescale.seeds import random_stream

if TYPE_CHECKING:
    from noisescale.evidence.jax_problem import ApplyFn, LikelihoodLike

_DENSE_OPERATOR = 4_000  # parameters up to which an operator is turned into a matrix


@speaks
def evidence_of(
    problem: Problem,
    *,
    prior_precision: Any,
    curvature: str = "ggn",
    method: str = "auto",
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
    accuracy: Accuracy | None = None,
) -> Evidence:
    """The evidence of a problem, whatever framework is behind it; see :func:`log_evidence`."""
    accuracy = accuracy or Accuracy()
    plan = preflight(problem.facts(), method, curvature, problem)
    details: dict[str, Any] = {"model_notes": problem.notes} if problem.notes else {}
    if isinstance(prior_precision, str):
        check_choice("prior_precision", prior_precision, CHOICES)
        L, details["prior_note"] = choose_prior(
            problem, plan.method, curvature, accuracy, by_layer=prior_precision == "per_layer"
        )
    else:
        L = prior_vector(prior_precision, problem)
    nll, gradient = problem.nll_and_gradient()
    slope = gradient + L * problem.w
    if log_null is None:
        log_null = log_null_of(problem, L)
        if problem.n_classes is None and log_null is not None:
            details["null_model"] = "the best constant"
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        return assemble(
            METHODS[plan.method].term(problem, L, slope, curvature, accuracy),
            nll=nll,
            penalty=0.5 * float(L @ problem.w**2),
            gradient_norm=float(np.linalg.norm(slope)),
            n_train=problem.n_train,
            n_params=len(L),
            log_null=log_null,
            log_degeneracy=log_degeneracy,
            method=plan.method,
            curvature=curvature,
            prior_precision=describe_prior(L, problem.layers),
            preflight=plan,
            details=details,
        )


@forgets_constants
def log_evidence(
    apply_fn: "ApplyFn",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precision: Any,
    likelihood: "LikelihoodLike" = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    select: Select | None = None,
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
    tolerance: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Evidence:
    """The evidence of ``apply_fn`` at ``params``, from the training data alone.

    Args:
        apply_fn: any JAX function ``(params, x) -> outputs``.
        params: where to evaluate it: a minimum of the cost, or close to one.
        data: the training pair ``(x, y)``.
        prior_precision: lambda > 0 (``weight_decay`` times the number of training examples); or a
            pytree like ``params`` with a number or an array for each leaf; or a mapping from the
            names of layers to numbers. Every parameter needs one: an unpenalised parameter has no
            evidence. ``"auto"`` takes the one number of largest evidence at these params,
            ``"per_layer"`` one number a layer likewise.
        likelihood: ``"categorical"``, with labels (N, T) and outputs (N, T, C) for sequences, whose
            padding has the label -100; ``"bernoulli"``; ``"gaussian"`` (``ns.gaussian(precision)``
            for a noise precision other than 1, ``ns.gaussian("estimate")`` for that of the
            residuals); ``"poisson"``, whose outputs are logarithms of rates; or a function
            ``(outputs, y) -> nats`` an example.
        curvature: ``"ggn"`` (Gauss-Newton, never negative) or ``"hessian"``.
        method: ``"dense"`` works on p x p matrices; ``"dual"`` on N C x N C, exact too but for the
            Gauss-Newton matrix alone; ``"lanczos"`` estimates, for networks of any size; ``"kfac"``
            and ``"diagonal"`` are approximations; ``"auto"`` takes the fastest exact one that fits,
            else lanczos.
        select: chooses parameters by their path (``0/w``, say); the others stay fixed and are not
            part of the model: the name of a layer (``"1"``, the last of two), a pattern
            (``"*/w"``), a sequence of those, or a function of the path.
        log_null: the null model's log evidence, in place of the one that guesses: uniform over
            classes, for regression and counts the best constant under the same prior and noise.
        log_degeneracy: log of the number of equivalent minima to count, 0 for this one alone; see
            :func:`permutation_degeneracy`.
        tolerance, max_probes, seed, progress: for lanczos, the standard error to reach in nats (by
            default 1 % of the log Occam factor), when to give up, the probes' seed, and a function
            that is called with how far it is.
    """
    from noisescale.evidence.jax_problem import jax_problem

    return evidence_of(
        jax_problem(apply_fn, params, data, likelihood, select),
        prior_precision=prior_precision,
        curvature=curvature,
        method=method,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=Accuracy(tolerance, max_probes, seed=seed, progress=progress),
    )


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
        n_classes: for the null model; without it ``log_null`` may be given instead.
        gradient: the gradient of the whole cost, nll plus penalty; without it the distance from
            the minimum is not known and not reported.
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
    if n_classes is not None and log_null is not None:
        raise InputError("give n_classes or log_null, not both.")
    if n_classes is not None:
        log_null = -n_train * math.log(check_whole("n_classes", n_classes, at_least=2))
    g = np.zeros(p) if gradient is None else _vector("gradient", gradient).ravel()
    if g.shape != (p,) or not np.isfinite(g).all():
        raise InputError(f"gradient must have {p} finite entries, got {len(g)} values.")
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        if method == "dense":
            term = Term(occam_of_symmetric(_dense_operator(operator), L, g))
        else:
            _check_symmetry(operator, seed)
            term = operator_term(lambda _: operator, L, g, positive=False, accuracy=accuracy)
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
    )


def permutation_degeneracy(hidden_units: Sequence[int]) -> float:
    """Log of the number of networks that differ by the order of their hidden units alone.

    For ``log_degeneracy``: each layer of h units can be permuted in h! ways. It counts minima, so
    it belongs to the model's whole evidence, not to the evidence of the minimum that was found.
    """
    try:
        layers = list(hidden_units)
    except TypeError:
        raise InputError(
            f"hidden_units must be the layers' numbers of units, such as [100], got "
            f"{type(hidden_units).__name__}."
        ) from None
    return sum(math.lgamma(check_whole("hidden_units", h, at_least=1) + 1) for h in layers)


def assemble(
    term: Term,
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
    prior_precision: float | dict[str, float] | None,
    preflight: Preflight | None = None,
    details: dict[str, Any] | None = None,
) -> Evidence:
    """The result from its parts, with a warning away from minima."""
    occam = term.occam
    if log_null is not None:
        check_number("log_null", log_null, "", lambda v: True)
    constant = -(nll + penalty) + check_number("log_degeneracy", log_degeneracy, "", lambda v: True)
    evidence = Evidence(
        log_evidence=constant + occam.restricted,
        log_evidence_full=None if occam.full is None else constant + occam.full,
        log_evidence_std=term.std,
        nll=nll,
        penalty=penalty,
        log_occam_factor=occam.restricted,
        log_occam_factor_full=occam.full,
        log_degeneracy=float(log_degeneracy),
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
        preflight=preflight,
        details=(details or {}) | term.details,
    )
    for name, value in vars(evidence).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(
                f"{name} is {value} here: nll {nll:.3g}, penalty {penalty:.3g}, log Occam factor "
                f"{occam.restricted:.3g}; scale the inputs, the parameters or prior_precision."
            )
    if not evidence.is_minimum:
        warn_user(" ".join(evidence.notes_on_the_minimum), NotAMinimumWarning)
    return evidence


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
