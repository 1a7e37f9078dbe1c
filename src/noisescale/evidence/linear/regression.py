"""MAP of logistic and softmax regression, and its evidence.

Two classes have one logit (a Bernoulli likelihood), K > 2 classes have K logits, each with the
prior. The prior covers the intercept too (an unpenalised parameter has no evidence); it may have a
precision of its own. For a linear model the Hessian is positive, so the paper's restricted sum and
the full determinant are the same thing.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse
from numpy.typing import ArrayLike

from noisescale.arrays import check_scale
from noisescale.checks import check_list, check_memory, check_number, shown
from noisescale.errors import InputError
from noisescale.evidence.linear.design import Array, Design
from noisescale.evidence.linear.families import Family, Labels, family_of
from noisescale.evidence.linear.newton import Cost, Optimum, minimise
from noisescale.evidence.null import log_null_of_classes
from noisescale.evidence.prior import RANGE

DEFAULT_BOUNDS = (1e-8, 1e6)
_NEARBY = 0.3  # decades of prior precision within which a Hessian's factor still helps
_BLOCK = 1 << 23  # numbers in a temporary array


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Checked training data of a linear classifier, ready to be fitted at any prior precision."""

    design: Design
    labels: Labels
    counts: Array
    family: Family
    log_null: float

    @property
    def n_train(self) -> float:
        """The number of training examples, repeats counted."""
        return float(self.counts.sum())


@dataclass(frozen=True, eq=False)
class LinearFit:
    """The MAP of a linear classifier at one prior precision, with its evidence.

    Attributes:
        coef: (d,) for two classes, (K, d) for more.
        intercept: a number for two classes, (K,) for more.
        log_evidence: ln P(labels | inputs), Laplace.
        log_null: ln P(labels) of the null model, which knows no inputs.
        E: the paper's log evidence ratio in favour of that null model; below 0 the fit is worth
            more than guessing.
        nll, penalty, log_occam_factor: the parts, log_evidence = -(nll + penalty) + log_occam.
        newton_decrement: twice what the quadratic model says the cost could still fall.
    """

    coef: Array = field(repr=False)
    intercept: Array | float = field(repr=False)
    prior_precision: float
    intercept_precision: float
    log_evidence: float
    log_null: float
    nll: float
    penalty: float
    log_occam_factor: float
    gradient_norm: float
    newton_decrement: float
    n_steps: int
    n_train: float
    n_classes: int
    optimum: Optimum = field(repr=False)

    @property
    def log_bayes_factor(self) -> float:
        """Log evidence minus the null model's: above 0 favours the fit."""
        return self.log_evidence - self.log_null

    @property
    def E(self) -> float:  # noqa: N802, the paper's name
        """Minus the log Bayes factor."""
        return -self.log_bayes_factor

    def logits(self, x: Any) -> Array:
        """(N,) for two classes, (N, K) for more."""
        return np.asarray(x @ self.coef.T + self.intercept)

    def scores(self, x: Array, labels: Labels) -> tuple[float, float]:
        """Accuracy and mean cross-entropy on (x, labels)."""
        logits = self.logits(x)
        if self.n_classes == 2:
            logits = np.stack([np.zeros_like(logits), logits], axis=1)
        label = logits[np.arange(len(labels)), labels]
        nll = np.logaddexp.reduce(logits, axis=1) - label
        return float((logits.argmax(axis=1) == labels).mean()), float(nll.mean())

    def mean_margin(self, x: Array, labels: Labels) -> float:
        """Mean signed distance to the decision boundary; misclassified examples count negative.

        For two classes y (w.x + b)/|w| with y = +-1, the intercept not in the norm; for more, the
        distance to the nearest boundary with another class.
        """
        logits = self.logits(x)
        if self.n_classes == 2:
            return float(
                (np.where(labels == 1, logits, -logits) / np.linalg.norm(self.coef)).mean()
            )
        gaps = np.take_along_axis(logits, labels[:, None], axis=1) - logits  # (N, K)
        between = np.linalg.norm(self.coef[:, None] - self.coef[None], axis=2)[labels]
        between[np.arange(len(labels)), labels] = 1
        distances = gaps / between
        distances[np.arange(len(labels)), labels] = np.inf
        return float(distances.min(axis=1).mean())

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        names = (
            "prior_precision",
            "intercept_precision",
            "log_evidence",
            "log_null",
            "log_bayes_factor",
            "E",
            "nll",
            "penalty",
            "log_occam_factor",
            "gradient_norm",
            "newton_decrement",
            "n_steps",
            "n_train",
            "n_classes",
        )
        return {name: getattr(self, name) for name in names}


def linear_problem(
    x: Any,
    y: ArrayLike,
    *,
    n_classes: int | None = None,
    fit_intercept: bool = True,
    counts: ArrayLike | None = None,
    null: str = "uniform",
) -> LinearProblem:
    """Check the data of a linear classifier and reduce it to as few coordinates as it needs.

    ``x`` may be sparse; ``counts`` says how often each example was seen; 0 leaves it out. ``null``
    is the model to compare with, as in :func:`noisescale.log_evidence`.
    """
    x, y = check_pair(x, y)
    c = np.ones(len(y)) if counts is None else check_counts(counts, len(y))
    seen = c > 0
    x, y, c = x[seen], y[seen], c[seen]
    present = np.unique(y)
    if len(present) < 2:
        raise InputError(
            f"the labels hold one class only ({present.tolist()}): there is nothing to tell apart."
        )
    if n_classes is None:
        n_classes = int(y.max()) + 1
        if len(present) != n_classes:
            raise InputError(
                f"the labels {present.tolist()} leave out some of 0..{n_classes - 1}: number the "
                "classes without gaps, or give n_classes."
            )
    elif y.max() >= n_classes:
        raise InputError(f"labels must lie in 0..{n_classes - 1}, got {y.max()}.")
    seen_of_class = np.bincount(y, c, minlength=n_classes)
    return LinearProblem(
        Design.of(x, fit_intercept=fit_intercept),
        y,
        c,
        family_of(n_classes),
        log_null_of_classes(null, seen_of_class),
    )


def check_counts(counts: ArrayLike, n: int) -> Array:
    """How often each of ``n`` examples was seen: finite, not negative, not all zero."""
    try:
        c = np.asarray(counts, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"counts must be {n} numbers, one an example.") from None
    if c.shape != (n,) or not np.isfinite(c).all() or (c < 0).any():
        raise InputError(
            f"counts must be {n} finite numbers >= 0, one an example, got shape {c.shape}"
            f"{' with negative or non-finite values' if c.shape == (n,) else ''}."
        )
    if not c.any():
        raise InputError("every count (or sample weight) is zero: no examples are left.")
    return c


def check_pair(x: Any, y: ArrayLike) -> tuple[Any, Labels]:
    """Inputs as float64 (N, d), sparse if they were, and labels as whole numbers >= 0."""
    sparse = scipy.sparse.issparse(x)
    inputs, labels = (x.tocsr() if sparse else np.asarray(x)), np.asarray(y)
    if inputs.dtype.kind not in "fiub":
        raise InputError(f"x must be real numbers, got dtype {inputs.dtype}.")
    inputs = inputs.astype(np.float64)
    if inputs.ndim != 2:
        raise InputError(f"x must have one row an example, got shape {inputs.shape}.")
    if labels.shape != (inputs.shape[0],):
        raise InputError(f"x has {inputs.shape[0]} examples but y has shape {labels.shape}.")
    if not np.isfinite(inputs.data if sparse else inputs).all():
        raise InputError("x holds NaN or infinite values: remove or fill them.")
    check_scale(np.asarray(inputs.data) if sparse else inputs, "x")
    if labels.dtype.kind not in "iub":
        raise InputError(f"y must be whole numbers, got dtype {labels.dtype}.")
    if len(labels) == 0 or labels.min() < 0:
        raise InputError("y must hold at least one label, and none below 0.")
    return inputs, labels.astype(np.intp)


def fit_map(
    problem: LinearProblem,
    *,
    prior_precision: float,
    intercept_precision: float | None = None,
    start: LinearFit | None = None,
    guess: Array | None = None,
) -> LinearFit:
    """The MAP at one prior precision; ``start`` is a fit of the same problem to begin from.

    Or begin from a ``guess``, coefficients (r, C) of the design.
    """
    lam = check_precision("prior_precision", prior_precision)
    tau = (
        lam
        if intercept_precision is None
        else check_precision("intercept_precision", intercept_precision)
    )
    design, family = problem.design, problem.family
    check_memory("a linear fit", 2 * 8.0 * (family.n_outputs * design.features.shape[1]) ** 2)
    precisions = design.precisions(lam, tau)
    starts = [] if start is None else starts_from(problem, start, precisions)
    optimum = minimise(
        Cost(family, design.features, problem.labels, problem.counts, precisions),
        starts=starts if guess is None else [guess],
        factor=None if start is None else _factor_nearby(problem, start, precisions),
    )
    # ln sqrt(|L| / |H + L|), with |H + L| from its Cholesky factor.
    log_occam = 0.5 * family.n_outputs * np.log(precisions).sum()
    log_occam -= np.log(np.diag(optimum.factor)).sum()
    coef, intercept = design.expand(optimum.coefficients)  # (d, C), (C,)
    if family.n_classes == 2:
        shown_coef, shown_intercept = coef[:, 0], float(intercept[0])
    else:
        shown_coef, shown_intercept = family.logits(coef).T, family.logits(intercept[None])[0]
    return LinearFit(
        coef=shown_coef,
        intercept=shown_intercept,
        prior_precision=lam,
        intercept_precision=tau,
        log_evidence=-(optimum.nll + optimum.penalty) + float(log_occam),
        log_null=problem.log_null,
        nll=optimum.nll,
        penalty=optimum.penalty,
        log_occam_factor=float(log_occam),
        gradient_norm=optimum.gradient_norm,
        newton_decrement=optimum.newton_decrement,
        n_steps=optimum.n_steps,
        n_train=problem.n_train,
        n_classes=family.n_classes,
        optimum=optimum,
    )


def starts_from(problem: LinearProblem, start: LinearFit, precisions: Array) -> list[Array]:
    """The MAP of a neighbour, and where it moves to first order in the log prior precisions.

    Differentiating grad nll + L V = 0 gives dV = -(H + L)^-1 (L V) d ln L, with the factor of
    H + L at hand. The step along the tangent usually saves one or two of Newton's.
    """
    before = problem.design.precisions(start.prior_precision, start.intercept_precision)
    V = start.optimum.coefficients
    pull = (before * np.log(precisions / before))[:, None] * V  # (r, C)
    moved = scipy.linalg.cho_solve((start.optimum.factor, True), pull.T.ravel())
    return [V, np.asarray(V - moved.reshape(V.T.shape).T)]


def _factor_nearby(problem: LinearProblem, start: LinearFit, precisions: Array) -> Array | None:
    """The factor of the neighbour's Hessian, where the prior hardly differs.

    With one output a new one costs no more than the steps that it saves.
    """
    before = problem.design.precisions(start.prior_precision, start.intercept_precision)
    near = np.abs(np.log10(precisions / before)).max() < _NEARBY
    return start.optimum.factor if near and problem.family.n_outputs > 1 else None


def check_precision(name: str, value: float) -> float:
    """A proper prior: finite and above 0."""
    return check_number(
        name,
        value,
        f"above 0 (from {RANGE[0]:g} to {RANGE[1]:g}; a flat prior has no evidence)",
        lambda number: RANGE[0] <= number <= RANGE[1],
    )


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """The ends, as log10, of a range of prior precisions to search."""
    listed = check_list("bounds", bounds, "a pair (low, high)")
    if len(listed) != 2:
        raise InputError(f"bounds must be a pair (low, high), got {shown(bounds)}.")
    low, high = (math.log10(check_precision("bounds", bound)) for bound in listed)
    if low >= high:
        raise InputError(f"bounds must be (low, high) with low < high, got {bounds}.")
    return low, high


def logit_covariance(problem: LinearProblem, fit: LinearFit, x: Any) -> Array:
    """Posterior variance (n,) of the logit, or covariance (n, K, K) of the logits, at inputs ``x``.

    Directions that no training example points to keep their prior variance 1/lambda. For K > 2 the
    common shift of all logits, which no prediction depends on, is left out.
    """
    rows = max(1, _BLOCK // (problem.family.n_outputs * len(fit.optimum.factor)))
    blocks = [_covariance(problem, fit, x[k : k + rows]) for k in range(0, x.shape[0], rows)]
    return np.concatenate(blocks)


def _covariance(problem: LinearProblem, fit: LinearFit, x: Any) -> Array:
    features, outside = problem.design.project(x)
    n, r = features.shape
    C = problem.family.n_outputs
    halves = np.empty((C, C * r, n))
    for output in range(C):
        unit = np.zeros((C * r, n))
        unit[output * r : (output + 1) * r] = features.T
        halves[output] = scipy.linalg.solve_triangular(fit.optimum.factor, unit, lower=True)
    covariance = np.einsum("arn,brn->nab", halves, halves)
    covariance[:, range(C), range(C)] += (outside / fit.prior_precision)[:, None]
    if C == 1:
        return np.asarray(covariance[:, 0, 0])
    Q = problem.family.logits(np.eye(C)).T  # (K, C): contrasts as logits
    return np.asarray(Q @ covariance @ Q.T)
