"""The Laplace evidence of a model at a point.

    ln P(y | x) = -(nll + penalty) + ln Occam,    ln Occam = -1/2 sum_i ln(1 + mu_i)

with mu_i the eigenvalues of the nll's curvature in units of the prior precision (equations 8 to 10
of the paper). E, the paper's log evidence ratio, compares with the null model that gives each of n
classes the probability 1/n: E = -ln P(y | x) - N ln n, above 0 in favour of the null model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from noisescale.arrays import forgets_constants
from noisescale.checks import check_choice, check_list, check_number, check_whole
from noisescale.errors import InputError, warn_user
from noisescale.evidence.conditional import conditional_evidence
from noisescale.evidence.kind import AT, Kind
from noisescale.evidence.map import with_noise_of_the_best_fit
from noisescale.evidence.null import NULLS, log_null_of, note_on_imbalance, null_in_words
from noisescale.evidence.occam.term import Accuracy, Term
from noisescale.evidence.pace import speaks
from noisescale.evidence.preflight import METHODS, Preflight, preflight
from noisescale.evidence.prior import describe_prior, prior_vector
from noisescale.evidence.prior_choice import polish_with_prior, resolve_prior
from noisescale.evidence.problem import Precision, Problem, is_linear
from noisescale.evidence.refine import LaplacePosterior
from noisescale.evidence.result import Evidence, NotAMinimumWarning
from noisescale.evidence.select import Select
from noisescale.evidence.targets import noise_notes

if TYPE_CHECKING:
    from noisescale.evidence.jax_leaves import ApplyFn
    from noisescale.evidence.jax_problem import LikelihoodLike

# An approximation from passes in float32 needs no others: those in float64 would take as long.
_PASSES: Mapping[str, Precision] = {"kfac": "float32"}


@speaks
def evidence_of(
    problem: Problem,
    *,
    prior_precision: Any,
    curvature: str = "ggn",
    method: str = "auto",
    at: str = "check",
    conditional_on: int | None = None,
    null: str = "uniform",
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
    accuracy: Accuracy | None = None,
) -> Evidence:
    """The evidence of a problem, whatever framework is behind it; see :func:`log_evidence`."""
    check_choice("at", at, AT)
    check_choice("null", null, NULLS)
    accuracy = accuracy or Accuracy()
    if log_null is not None:
        check_number("log_null", log_null, "", lambda v: True)
    check_number("log_degeneracy", log_degeneracy, "", lambda v: True)
    settings: dict[str, Any] = {
        "curvature": curvature,
        "method": method,
        "null": null,
        "accuracy": accuracy,
    }
    if at == "map":
        problem = with_noise_of_the_best_fit(problem)
    if conditional_on is not None:
        if at != "map":
            raise InputError(
                f"conditional_on compares the MAP of all data with that of the first "
                f"{conditional_on!r} examples, so it needs at='map', got at={at!r}."
            )
        if log_null is not None or log_degeneracy:
            raise InputError("conditional_on goes with neither log_null nor log_degeneracy.")
        return conditional_evidence(problem, conditional_on, prior_precision, _laplace, settings)
    return _laplace(
        problem,
        prior_precision=prior_precision,
        at=at,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        **settings,
    )


def _laplace(
    problem: Problem,
    *,
    prior_precision: Any,
    curvature: str,
    method: str,
    at: str,
    null: str,
    accuracy: Accuracy,
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
) -> Evidence:
    """The evidence of a problem whose noise is known."""
    if not isinstance(prior_precision, str):
        prior_vector(prior_precision, problem)  # refused before anything is computed
    plan = preflight(problem.facts(), method, curvature)
    notes = (*noise_notes(problem.likelihood, at), *problem.notes)
    details: dict[str, Any] = {"model_notes": notes} if notes else {}
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        if at == "map":
            L, polished, term, details["prior_note"] = polish_with_prior(
                problem, prior_precision, plan.method, curvature, accuracy
            )
            problem, slope, nll = polished.problem, polished.slope, polished.estimate.nll
            details["map"] = polished.estimate
        else:
            L, details["prior_note"] = resolve_prior(
                problem, prior_precision, plan.method, curvature, accuracy
            )
            nll, gradient = problem.nll_and_gradient(_PASSES.get(plan.method, "float64"))
            slope = gradient + L * problem.w
            term = METHODS[plan.method].term(problem, L, slope, curvature, accuracy)
        if log_null is None:
            log_null = log_null_of(problem, L, null)
            details["null_note"] = note_on_imbalance(problem, null)
            details["null_model"] = null_in_words(problem, null)
        else:
            details["null_model"] = "the given null model"
        return assemble(
            term,
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
            at=at,
            linear=problem.log_concave and is_linear(problem),
            preflight=plan,
            details=details,
            posterior=LaplacePosterior(problem, L, curvature),
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
    at: str = "check",
    conditional_on: int | None = None,
    null: str = "uniform",
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
            ``"per_layer"`` one number a layer likewise; with ``at="map"`` the evidence of each
            prior tried is that at its own MAP.
        likelihood: ``"categorical"``, with labels (N, T) and outputs (N, T, C) for sequences, whose
            padding has the label -100; ``"bernoulli"``; ``"gaussian"`` (``ns.gaussian(precision)``
            for a noise precision other than 1, ``ns.gaussian("estimate")`` for that of the
            residuals, with ``at="map"`` those of the best fit); ``"poisson"``, whose outputs are
            logarithms of rates; or a function ``(outputs, y) -> nats`` an example.
        curvature: ``"ggn"`` (Gauss-Newton, never negative) or ``"hessian"``.
        method: ``"dense"`` works on p x p matrices; ``"dual"`` on N C x N C, exact too but for the
            Gauss-Newton matrix alone; ``"lanczos"`` estimates, for networks of any size;
            ``"kfac"`` and ``"diagonal"`` are approximations; ``"auto"`` takes the exact one of
            least work that fits, else lanczos.
        at: ``"check"`` withholds E, odds and verdict where the cost could still fall by more than
            a nat; ``"map"`` first descends to the minimum nearby, as :func:`map_estimate` does;
            ``"point"`` takes the point as it is, and calls the result a neighbourhood's.
        conditional_on: with ``at="map"``, the evidence of all examples but so many first ones,
            given these: less a matter of the prior, more of what was learnt (Lotfi et al. 2022).
        select: chooses parameters by their path (``0/w``, say); the others stay fixed and are not
            part of the model: the name of a layer (``"1"``, the last of two), a pattern
            (``"*/w"``), a sequence of those, or a function of the path.
        null: ``"uniform"`` guesses every class alike, ``"frequencies"`` as often as they occur,
            under a uniform prior on their frequencies; for regression and counts it is the best
            constant under the same prior and noise.
        log_null: the null model's log evidence, for one of your own.
        log_degeneracy: log of the number of equivalent minima to count, 0 for this one alone; see
            :func:`permutation_degeneracy`.
        tolerance: for lanczos, the standard error to reach in nats, by default 1 % of the log Occam
            factor; exact methods are within every tolerance.
        max_probes, seed, progress: for lanczos, when to give up and the probes' seed; a function
            that is called with how far every method is (and ``at="map"`` too).

    >>> import numpy as np
    >>> x, y = np.array([[1.0], [2.0], [-1.0], [-2.0]]), np.array([1, 1, 0, 0])
    >>> found = log_evidence(lambda w, x: x @ w, np.ones(1), (x, y), prior_precision=1.0,
    ...                      likelihood="bernoulli", at="map")
    >>> found.kind.value, found.odds
    ('linear model', 'odds of 2.7 to 1 for the model against random guessing')
    """
    from noisescale.evidence.jax_problem import jax_problem

    return evidence_of(
        jax_problem(apply_fn, params, data, likelihood, select),
        prior_precision=prior_precision,
        curvature=curvature,
        method=method,
        at=at,
        conditional_on=conditional_on,
        null=null,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=Accuracy(tolerance, max_probes, seed=seed, progress=progress),
    )


def permutation_degeneracy(hidden_units: Sequence[int]) -> float:
    """Log of the number of networks that differ by the order of their hidden units alone.

    For ``log_degeneracy``: each layer of h units can be permuted in h! ways. It counts minima, so
    it belongs to the model's whole evidence, not to the evidence of the minimum that was found.
    """
    layers = check_list("hidden_units", hidden_units, "the layers' numbers of units, such as [100]")
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
    at: str,
    linear: bool,
    preflight: Preflight | None = None,
    details: dict[str, Any] | None = None,
    posterior: LaplacePosterior | None = None,
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
        kind=_kind(at, linear, occam.full is not None, gradient_norm is not None),
        at=at,
        preflight=preflight,
        details=(details or {}) | term.details,
        _posterior=posterior,
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


def _kind(at: str, linear: bool, curves_upwards: bool, has_gradient: bool) -> Kind:
    """What may be said of a Laplace evidence."""
    if not has_gradient:
        return Kind.UNCHECKED
    if at == "point" or not curves_upwards:
        return Kind.NEIGHBOURHOOD
    return Kind.LINEAR if linear else Kind.ONE_MODE
