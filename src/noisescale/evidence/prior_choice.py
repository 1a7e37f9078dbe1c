"""The evidence as a function of the prior precision at fixed parameters, and where it is largest.

    ln P(lambda) = -nll - lambda/2 |w|^2 - 1/2 sum_i ln(1 + h_i/lambda) over h_i >= 0.

The parameters stay where training left them: for a network trained without this prior the result
says which prior would have made that point most credible, not what training under it would find.
With ``at="map"`` a prior is judged at the MAP under it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray

from noisescale.arrays import forgets_constants
from noisescale.checks import check_choice, check_list, check_number, shown
from noisescale.errors import InputError
from noisescale.evidence.kind import Kind
from noisescale.evidence.linear.search import Peak, highest
from noisescale.evidence.map import Polished, descended, polish
from noisescale.evidence.null import NULLS, log_null_of
from noisescale.evidence.occam import dense, dual
from noisescale.evidence.occam.term import Accuracy, Array, Term
from noisescale.evidence.pace import speaks
from noisescale.evidence.preflight import METHODS, preflight
from noisescale.evidence.prior import CHOICES, RANGE, describe_prior, prior_vector
from noisescale.evidence.problem import Problem
from noisescale.evidence.select import Select
from noisescale.notebook import Displayed

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from noisescale.evidence.jax_leaves import ApplyFn
    from noisescale.evidence.jax_problem import LikelihoodLike

BOUNDS = (1e-4, 1e6)
_PER_DECADE = 4
_SWEEPS = 60  # of the fixed point for layers
_SMALLEST = 1e-6  # precision down to which the dual kernel keeps every row that matters
_EVALUATIONS = 10  # to find the maximum between two of a grid
_SETTLED = 1e-3  # in the logarithm of a precision
_TURNS = 10  # of prior and MAP
_DECADES = 0.01  # to which the precision of largest evidence is sought
_LOOKS = 8  # for it between decades: where kinks make the evidence noisy, more find nothing
_APART = 1e3  # how far all layers' precisions are sought from where their ratios were found
_STILL = 0.05  # in the logarithm of a precision
_FARTHEST = 3.0  # step of such a logarithm: extrapolation must not leave the region it rests on


@dataclass(frozen=True, eq=False)
class EvidenceCurve(Displayed):
    """Log evidence against a single prior precision.

    Attributes:
        prior_precision: the grid, ascending.
        log_evidence: at each of its values.
        E: the paper's E there; None for a user's own likelihood without ``log_null``.
        best: the precision of largest evidence.
        best_log_evidence: the log evidence there.
        edge: ``"lowest"`` or ``"highest"`` if the evidence was still rising there, else None.
        method: how the curvature was had.
    """

    prior_precision: Array
    log_evidence: Array
    E: Array | None
    best: float
    best_log_evidence: float
    edge: str | None
    method: str

    kind = Kind.NEIGHBOURHOOD  # under every prior but one the point is not the minimum

    def plot(self, where: "Axes | str | Path | None" = None) -> "Axes":
        """Draw the curve and its maximum into ``where``: axes or a file's path."""
        from noisescale.drawing import drawn

        return drawn(self._draw, where)

    def _draw(self, axes: "Axes") -> None:
        axes.plot(self.prior_precision, self.log_evidence, ".-", label="log evidence")
        axes.axvline(self.best, linestyle="--", color="C1", label=f"largest at {self.best:.3g}")
        # Priors that crush the model would leave nothing of the top to be seen.
        usual = float(np.median(self.best_log_evidence - self.log_evidence))
        bottom = max(float(self.log_evidence.min()), self.best_log_evidence - 3 * usual)
        axes.set(xscale="log", xlabel="prior precision", ylabel="log evidence, nats")
        if bottom < self.best_log_evidence:
            margin = 0.05 * (self.best_log_evidence - bottom)
            axes.set_ylim(bottom - margin, self.best_log_evidence + margin)
        axes.legend(fontsize="small")

    def to_dict(self) -> dict[str, Any]:
        """Everything by name, arrays as lists."""
        return {"kind": self.kind.value} | {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        where = "" if self.edge is None else f", at the {self.edge} precision tried"
        return (
            f"EvidenceCurve: largest log evidence {self.best_log_evidence:.6g} at prior precision "
            f"{self.best:.3g}{where} ({self.method}, {len(self.prior_precision)} precisions; "
            f"{self.kind})"
        )


@speaks
def curve_of(
    problem: Problem,
    *,
    prior_precisions: Sequence[float] | NDArray[Any] | None = None,
    curvature: str = "ggn",
    method: str = "auto",
    null: str = "uniform",
    log_null: float | None = None,
    accuracy: Accuracy | None = None,
) -> EvidenceCurve:
    """The evidence of a problem against one prior precision; see :func:`evidence_curve`."""
    check_choice("null", null, NULLS)
    plan = preflight(problem.facts(), method, curvature)
    curve = scalar_curve(problem, plan.method, curvature, accuracy or Accuracy(), prior_precisions)
    given = log_null is not None
    nulls = [
        log_null if given else log_null_of(problem, value, null) for value in curve.prior_precision
    ]
    if nulls[0] is None:
        return curve
    return replace(curve, E=np.array(nulls, float) - curve.log_evidence)


@forgets_constants
def evidence_curve(
    apply_fn: "ApplyFn",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precisions: Sequence[float] | NDArray[Any] | None = None,
    likelihood: "LikelihoodLike" = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    select: Select | None = None,
    null: str = "uniform",
    log_null: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> EvidenceCurve:
    """The evidence at fixed ``params`` against a single prior precision, and its maximum.

    ``prior_precisions`` defaults to four a decade from 1e-4 to 1e6; the rest is as in
    :func:`noisescale.log_evidence`.
    """
    from noisescale.evidence.jax_problem import jax_problem

    return curve_of(
        jax_problem(apply_fn, params, data, likelihood, select),
        prior_precisions=prior_precisions,
        curvature=curvature,
        method=method,
        null=null,
        log_null=log_null,
        accuracy=Accuracy(max_probes=max_probes, seed=seed, progress=progress),
    )


def trace_curve(
    problem: Problem,
    method: str,
    curvature: str,
    accuracy: Accuracy,
    *,
    smallest: float,
    n_values: int,
) -> tuple[float, Callable[[float], float]]:
    """The summed nll, and the log Occam factor as a function of one precision.

    ``smallest`` is the smallest precision that matters, ``n_values`` how many will be asked for.
    """
    nll, _ = problem.nll_and_gradient()
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
        log_occam = METHODS[method].curve(
            problem, curvature, accuracy, smallest=smallest, n_values=n_values
        )
    return nll, log_occam


def scalar_curve(
    problem: Problem,
    method: str,
    curvature: str,
    accuracy: Accuracy,
    grid: Sequence[float] | NDArray[Any] | None = None,
) -> EvidenceCurve:
    """The evidence on a grid of precisions, and its maximum between them; no null model yet."""
    if grid is None:
        decades = math.log10(BOUNDS[1] / BOUNDS[0])
        values = np.geomspace(*BOUNDS, round(decades * _PER_DECADE) + 1)
    else:
        wanted, (low, high) = "three or more finite numbers above 0", RANGE
        listed = check_list("prior_precisions", grid, wanted)
        values = np.unique(
            [
                check_number("a prior precision", value, "above 0", lambda v: low <= v <= high)
                for value in listed
            ]
        )
        if len(values) < 3:
            raise InputError(f"prior_precisions must be {wanted}, got {shown(grid, 60)}.")
    nll, log_occam = trace_curve(
        problem,
        method,
        curvature,
        accuracy,
        smallest=max(float(values[0]), _SMALLEST),
        n_values=len(values) + _EVALUATIONS,
    )
    sq_norm = float(problem.w @ problem.w)

    def log_evidence(precision: float) -> float:
        return -nll - 0.5 * precision * sq_norm + log_occam(precision)

    logs = np.array([log_evidence(value) for value in values])
    k = int(np.argmax(logs))
    best, edge = float(values[k]), None
    if k in (0, len(values) - 1):
        edge = "lowest" if k == 0 else "highest"
    else:
        inner = scipy.optimize.minimize_scalar(
            lambda t: -log_evidence(math.exp(t)),
            method="bounded",
            bounds=(math.log(values[k - 1]), math.log(values[k + 1])),
            options={"xatol": 1e-6},
        )
        best = math.exp(inner.x)
    return EvidenceCurve(
        prior_precision=values,
        log_evidence=logs,
        E=None,
        best=best,
        best_log_evidence=log_evidence(best),
        edge=edge,
        method=method,
    )


def choose_prior(
    problem: Problem, method: str, curvature: str, accuracy: Accuracy, *, by_layer: bool
) -> tuple[Array, str]:
    """Precisions that maximise the evidence at these parameters, and a note that says so."""
    fixed = "the parameters stay where training left them, whatever prior it had."
    if not by_layer:
        curve = scalar_curve(problem, method, curvature, accuracy)
        note = f"prior precision {curve.best:.3g} maximises the evidence; {fixed}"
        if curve.edge is not None:
            note = f"the evidence is still rising at prior precision {curve.best:.3g}; {fixed}"
        return np.full(len(problem.w), curve.best), note
    _check_by_layer(method, curvature)
    chosen, rising = layer_precisions_of_largest_evidence(problem, method, curvature)
    note = f"prior precisions by layer ({_by_name(chosen)}) maximise the evidence; {fixed}"
    if rising:
        note = (
            f"the evidence is still rising in the prior precision of {', '.join(rising)} "
            f"({_by_name(chosen)}); {fixed}"
        )
    return prior_vector(chosen, problem), note


def _by_name(precisions: dict[str, float]) -> str:
    return ", ".join(f"{name}: {value:.3g}" for name, value in precisions.items())


def resolve_prior(
    problem: Problem, prior_precision: Any, method: str, curvature: str, accuracy: Accuracy
) -> tuple[Array, str | None]:
    """One precision a parameter, as given or chosen at these parameters, and a note if chosen."""
    if not isinstance(prior_precision, str):
        return prior_vector(prior_precision, problem), None
    check_choice("prior_precision", prior_precision, CHOICES)
    by_layer = prior_precision == "per_layer"
    return choose_prior(problem, method, curvature, accuracy, by_layer=by_layer)


def polish_with_prior(
    problem: Problem, prior_precision: Any, method: str, curvature: str, accuracy: Accuracy
) -> tuple[Array, Polished, Term, str | None]:
    """The prior, the problem at its MAP under it, its Occam factor, and how a prior was chosen.

    A prior that is to be chosen is that of largest evidence, each at its own MAP. The ratios of
    several layers' precisions are those at which prior and MAP stand still.
    """

    def at_map(start: Problem, L: Array, nll: float | None = None) -> tuple[Polished, Term]:
        polished = polish(start, L, method if curvature == "ggn" else "lanczos", nll=nll)
        term = polished.term or METHODS[method].term(
            polished.problem, L, polished.slope, curvature, accuracy
        )
        return polished, term

    if not isinstance(prior_precision, str):
        L = prior_vector(prior_precision, problem)
        return L, *at_map(problem, L), None
    check_choice("prior_precision", prior_precision, CHOICES)
    shape, bounds, unsettled = np.ones(len(problem.w)), BOUNDS, ""
    if prior_precision == "per_layer":
        shape, unsettled = _ratios_of_layers(problem, method, curvature)
        bounds = (1 / _APART, _APART)
    nll, _ = problem.nll_and_gradient()
    tried: dict[float, tuple[Polished, Term]] = {}

    def log_evidence(t: float) -> float:
        """At the MAP under 10^t times the shape, found from the better of two points."""
        if t not in tried:
            L, starts = shape * 10.0**t, [(nll, problem)]
            if tried:
                near, _ = tried[min(tried, key=lambda other: abs(other - t))]
                starts.append((near.estimate.nll, near.problem))
            known, start = min(starts, key=lambda one: one[0] + 0.5 * float(L @ one[1].w ** 2))
            tried[t] = at_map(start, L, known)
        polished, term = tried[t]
        return term.occam.restricted - polished.estimate.cost

    peak = climbed(log_evidence, *np.log10(bounds))
    L, (polished, term) = shape * 10.0**peak.place, tried[peak.place]
    start_cost = nll + 0.5 * float(L @ problem.w**2)
    polished = replace(polished, estimate=replace(polished.estimate, start_cost=start_cost))
    by_layer = describe_prior(L, problem.layers)
    what = f"prior precision {L[0]:.3g}"
    if isinstance(by_layer, dict):
        what = f"prior precisions by layer ({_by_name(by_layer)})"
    each = f"of {len(tried)} tried, each at its own MAP"
    note = f"the evidence is largest at {what}, {each}"
    if peak.edge is not None:
        note = f"the evidence is still rising at {what}, the {peak.edge} {each}"
    return L, polished, term, f"{note}{unsettled}."


def climbed(f: Callable[[float], float], low: float, high: float) -> Peak:
    """The highest place uphill of 0 between two bounds, by steps of one and then less.

    >>> round(climbed(lambda t: -((t - 2.3) ** 2), -4, 6).place, 2)
    2.3
    """
    grid = [0.0]
    while True:
        best = max(grid, key=f)
        if best == grid[-1] and best + 1 <= high:
            grid.append(best + 1)
        elif best == grid[0] and best - 1 >= low:
            grid.insert(0, best - 1)
        else:
            return highest(f, grid, _DECADES, max_looks=_LOOKS)


def _ratios_of_layers(problem: Problem, method: str, curvature: str) -> tuple[Array, str]:
    """Precisions by layer at which they and the MAP stand still, and a note if they do not."""
    _check_by_layer(method, curvature)
    L, turns, change = np.ones(len(problem.w)), 0, math.inf
    while change > _STILL and turns < _TURNS:
        problem = descended(problem, L)
        before, turns = L, turns + 1
        chosen, rising = layer_precisions_of_largest_evidence(problem, method, curvature)
        L = prior_vector(chosen, problem)
        change = float(np.abs(np.log(L / before)).max())
    if rising:
        return L, f"; it is still rising in that of {', '.join(rising)}"
    if change > _STILL:
        return L, (
            f"; their ratios did not come to rest in {turns} turns of prior and MAP, the last of "
            f"which changed a precision by a factor of {math.exp(change):.3g}: give them by hand"
        )
    return L, ""


def _check_by_layer(method: str, curvature: str) -> None:
    if curvature != "ggn" or method not in ("dense", "dual"):
        raise InputError(
            "prior_precision='per_layer' needs curvature='ggn' with method 'dense' or 'dual'."
        )


def layer_precisions_of_largest_evidence(
    problem: Problem, method: str, curvature: str
) -> tuple[dict[str, float], list[str]]:
    """One precision a layer: the fixed point lambda = gamma/|w|^2 of MacKay (1992).

    gamma is the number of a layer's parameters that the data determine. At the fixed point the
    gradient of the log evidence in every ln lambda vanishes, the parameters held. The layers for
    which it does not within a number of steps come second.
    """
    _check_by_layer(method, curvature)
    squares = {
        name: float(problem.w[index] @ problem.w[index]) for name, index in problem.layers.items()
    }
    if empty := [name for name, square in squares.items() if square == 0]:
        raise InputError(
            f"layer {empty[0]} has only zeros, so the evidence grows without end in its "
            "precision: give precisions by hand."
        )
    determined = (dense if method == "dense" else dual).determined(problem)

    def steps(logs: Array) -> Array:
        gammas = determined(dict(zip(squares, np.exp(logs), strict=True)))
        after = [math.log(max(gammas[name], 1e-12) / squares[name]) for name in squares]
        return np.array(after) - logs

    logs, last = _fixed_point(steps, np.zeros(len(squares)))
    chosen = dict(zip(squares, np.exp(logs).tolist(), strict=True))
    return chosen, [name for name, step in zip(squares, last, strict=True) if step >= _SETTLED]


def _fixed_point(steps: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """Where the plain iteration stands still, by Anderson's extrapolation; and its last step.

    The plain iteration contracts slowly, and every step of it costs a factorisation.
    """
    points, taken = [start], [steps(start)]
    while np.abs(taken[-1]).max() >= _SETTLED and len(taken) < _SWEEPS:
        at, step = points[-1], taken[-1]
        recent = slice(-len(start) - 2, None)
        moved, changed = np.diff(points[recent], axis=0), np.diff(taken[recent], axis=0)
        if len(changed):
            weights = np.linalg.lstsq(changed.T, step, rcond=1e-10)[0]
            step = step - weights @ (moved + changed)
        points.append(at + np.clip(step, -_FARTHEST, _FARTHEST))
        taken.append(steps(points[-1]))
    return points[-1] + taken[-1], np.abs(taken[-1])
