"""The Laplace evidence of a model at a point, for any JAX function.

    ln P(y | x) = -(nll + penalty) + ln Occam,    ln Occam = -1/2 sum_i ln(1 + mu_i)

with mu_i the eigenvalues of the nll's curvature in units of the prior precision (equations 8 to 10
of the paper). E, the paper's log evidence ratio, compares with the null model that gives each of n
classes the probability 1/n: E = -ln P(y | x) - N ln n, above 0 in favour of the null model.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from noisescale.arrays import (
    check_inputs,
    check_params,
    count_examples,
    forgets_constants,
    output_shape,
)
from noisescale.checks import check_choice, check_memory, check_number, check_whole
from noisescale.errors import InputError
from noisescale.evidence.compute import Accuracy, Term, assemble, compute_evidence, lanczos_term
from noisescale.evidence.curvature.model import Model
from noisescale.evidence.curvature.spectrum import Spectrum, spectrum_of
from noisescale.evidence.occam.dense import occam_of_symmetric
from noisescale.evidence.preflight import METHODS, Preflight, allowed, preflight
from noisescale.evidence.prior import (
    CHOICES,
    prior_vector,
    proper,
    scalar_or_none,
    select_parameters,
)
from noisescale.evidence.prior_choice import (
    EvidenceCurve,
    layer_precisions_of_largest_evidence,
    scalar_curve,
)
from noisescale.evidence.problem import JaxProblem, Problem
from noisescale.evidence.result import Evidence
from noisescale.likelihood import Likelihood, check_labels, check_outputs, resolve_likelihood

CURVATURES = ("ggn", "hessian")
_DENSE_OPERATOR = 4_000  # parameters up to which an operator is turned into a matrix
ApplyFn = Callable[[Any, jax.Array], jax.Array]
LikelihoodLike = str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array]


@forgets_constants
def log_evidence(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precision: Any,
    likelihood: LikelihoodLike = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    select: Callable[[str], bool] | None = None,
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
        prior_precision: lambda > 0, or a pytree like ``params`` with a number or an array for each
            leaf. Every parameter needs one: an unpenalised parameter has no evidence. ``"auto"``
            takes the one number of largest evidence at these params, ``"per_layer"`` one number a
            layer likewise.
        likelihood: ``"categorical"``, ``"bernoulli"``, ``"gaussian"`` (``ns.gaussian(precision)``
            for a noise precision other than 1), or a function ``(outputs, y) -> nats`` an example.
        curvature: ``"ggn"`` (Gauss-Newton, never negative) or ``"hessian"``.
        method: ``"dense"`` works on p x p matrices; ``"dual"`` on N C x N C, exact too but for the
            Gauss-Newton matrix alone; ``"lanczos"`` estimates, for networks of any size; ``"kfac"``
            and ``"diagonal"`` are approximations; ``"auto"`` takes the fastest exact one that fits,
            else lanczos.
        select: chooses parameters by their path (``0/w``, say); the others stay fixed and are not
            part of the model. ``lambda path: path.startswith("1/")`` is the last of two layers.
        log_null: the null model's log evidence, where the likelihood has no classes.
        log_degeneracy: log of the number of equivalent minima to count, 0 for this one alone; see
            :func:`permutation_degeneracy`.
        tolerance, max_probes, seed, progress: for lanczos, the standard error to reach in nats (by
            default 1 % of the log Occam factor), when to give up, the probes' seed, and a function
            that is told how far it is.
    """
    accuracy = check_accuracy(tolerance, max_probes, seed, progress)
    apply_fn, params = select_parameters(apply_fn, check_params(params), select)
    problem = jax_problem(apply_fn, params, data, likelihood)
    return evidence_of(
        problem,
        params,
        prior_precision=prior_precision,
        curvature=curvature,
        method=method,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=accuracy,
    )


def evidence_of(
    problem: Problem,
    params: Any,
    *,
    prior_precision: Any,
    curvature: str,
    method: str,
    log_null: float | None,
    log_degeneracy: float,
    accuracy: Accuracy,
) -> Evidence:
    """The evidence of a problem, whatever framework is behind it."""
    plan = plan_method(problem, method, curvature)
    details: dict[str, Any] = {}
    if isinstance(prior_precision, str):
        check_choice("prior_precision", prior_precision, CHOICES)
        L, details = _chosen_prior(problem, plan, prior_precision, curvature, accuracy)
    else:
        L = prior_vector(prior_precision, params)
    return compute_evidence(
        problem,
        L,
        plan,
        curvature=curvature,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=accuracy,
        details=details,
    )


@forgets_constants
def evidence_curve(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precisions: Sequence[float] | NDArray[Any] | None = None,
    likelihood: LikelihoodLike = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    log_null: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
) -> EvidenceCurve:
    """The evidence at fixed ``params`` against a single prior precision, and its maximum.

    ``prior_precisions`` defaults to four a decade from 1e-4 to 1e6; the rest is as in
    :func:`log_evidence`.
    """
    accuracy = check_accuracy(None, max_probes, seed, None)
    problem = jax_problem(apply_fn, check_params(params), data, likelihood)
    plan = plan_method(problem, method, curvature)
    if log_null is None and problem.n_classes is not None:
        log_null = -problem.facts().N * math.log(problem.n_classes)
    return scalar_curve(problem, plan.method, curvature, accuracy, prior_precisions, log_null)


@forgets_constants
def spectrum(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    likelihood: LikelihoodLike = "categorical",
    curvature: str = "hessian",
    top_k: int = 10,
    n_probes: int = 4,
    n_steps: int = 64,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of the curvature of the summed nll, without the prior, matrix-free.

    Args:
        apply_fn, params, data, likelihood, curvature: as in :func:`log_evidence`.
        top_k: how many of the largest eigenvalues to find one by one.
        n_probes, n_steps, seed: of the Lanczos quadrature behind the density.
    """
    check_choice("curvature", curvature, CURVATURES)
    problem = jax_problem(apply_fn, check_params(params), data, likelihood)
    operator = problem.operator(curvature, "float64")
    return spectrum_of(
        operator, curvature=curvature, top_k=top_k, n_probes=n_probes, n_steps=n_steps, seed=seed
    )


def plan_method(problem: Problem, method: str, curvature: str) -> Preflight:
    """The method, once it is known to fit and to know this curvature."""
    check_choice("curvature", curvature, CURVATURES)
    check_choice("method", method, ("auto", *METHODS))
    if method != "auto" and not allowed(method, curvature):
        raise InputError(
            f"method='{method}' needs curvature='ggn': the Hessian is not a product of Jacobians; "
            "use method='dense' or 'lanczos'."
        )
    return preflight(problem.facts(), method, curvature)


def check_accuracy(
    tolerance: float | None,
    max_probes: int,
    seed: int,
    progress: Callable[[str], None] | None,
) -> Accuracy:
    """How a stochastic method goes about it, checked."""
    if tolerance is not None:
        check_number("tolerance", tolerance, "above 0", lambda v: v > 0)
    check_whole("max_probes", max_probes, at_least=2)
    check_whole("seed", seed, at_least=0)
    return Accuracy(tolerance=tolerance, max_probes=max_probes, seed=seed, progress=progress)


def _chosen_prior(
    problem: Problem, plan: Preflight, choice: str, curvature: str, accuracy: Accuracy
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Precisions that maximise the evidence at these parameters."""
    fixed = "the parameters stay where training left them, whatever prior it had."
    if choice == "auto":
        curve = scalar_curve(problem, plan.method, curvature, accuracy, None, None)
        note = f"prior precision {curve.best:.3g} maximises the evidence; {fixed}"
        if curve.edge is not None:
            note = f"the evidence is still rising at prior precision {curve.best:.3g}; {fixed}"
        return np.full(len(problem.w), curve.best), {"prior_note": note}
    chosen = layer_precisions_of_largest_evidence(problem, plan.method, curvature)
    L = np.empty(len(problem.w))
    for name, index in problem.layers.items():
        L[index] = chosen[name]
    told = ", ".join(f"{name}: {value:.3g}" for name, value in chosen.items())
    note = f"prior precisions by layer ({told}) maximise the evidence; {fixed}"
    return L, {"prior_note": note, "prior_precisions": chosen}


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
    operator = aslinearoperator(curvature)
    p = operator.shape[0]
    if operator.shape != (p, p):
        raise InputError(f"curvature must be square, got shape {operator.shape}.")
    check_choice("method", method, ("auto", "dense", "lanczos"))
    accuracy = check_accuracy(tolerance, max_probes, seed, progress)
    if method == "auto":
        method = "dense" if p <= _DENSE_OPERATOR else "lanczos"
    try:
        L = np.asarray(prior_precision, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"prior_precision must be numbers, got {prior_precision!r}.") from None
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
    g = np.zeros(p) if gradient is None else np.asarray(gradient, np.float64).ravel()
    if g.shape != (p,) or not np.isfinite(g).all():
        raise InputError(f"gradient must have {p} finite entries, got {len(g)} values.")
    if method == "dense":
        term = Term(occam_of_symmetric(_dense_operator(operator), L, g))
    else:
        term = lanczos_term(lambda _: operator, L, g, positive=False, accuracy=accuracy)
    return assemble(
        term,
        nll=float(nll),
        penalty=float(penalty),
        gradient_norm=None if gradient is None else float(np.linalg.norm(g)),
        n_train=n_train,
        n_params=p,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        method=method,
        curvature="operator",
        prior_precision=scalar_or_none(L),
        stacklevel=3,
    )


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


def permutation_degeneracy(hidden_units: list[int] | tuple[int, ...]) -> float:
    """Log of the number of networks that differ by the order of their hidden units alone.

    For ``log_degeneracy``: each layer of h units can be permuted in h! ways. It counts minima, so
    it belongs to the model's whole evidence, not to the evidence of the minimum that was found.
    """
    return sum(math.lgamma(check_whole("hidden_units", h, at_least=1) + 1) for h in hidden_units)


def jax_problem(
    apply_fn: ApplyFn, params: Any, data: tuple[ArrayLike, ArrayLike], likelihood: LikelihoodLike
) -> JaxProblem:
    """The problem of a JAX function with checked data."""
    model, _, n_classes = build_model(apply_fn, params, data, likelihood)
    return JaxProblem.of(model, params, n_classes)


def build_model(
    apply_fn: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    likelihood: str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[Model, NDArray[Any], int | None]:
    """The model at its params with checked data, the targets, and the number of classes if any."""
    chosen = resolve_likelihood(likelihood)
    count_examples(data, "data")
    given = np.asarray(data[0])
    kept = np.float32 if given.dtype == np.float32 else np.float64  # widened block by block
    x, y = check_inputs(data[0], "data x", kept), np.asarray(data[1])
    with jax.enable_x64(True):
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
