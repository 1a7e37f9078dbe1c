"""From a trained point to the minimum of the regularised cost nearby: the MAP.

    C(w) = nll(w) + 1/2 sum_j L_j w_j^2

Training without this prior, or stopping early, leaves a point that is no minimum of C, and the
Laplace evidence there is worth nothing. It is called a MAP here when

- half the Gauss-Newton decrement, 1/2 g' (G + L)^-1 g, is at most 0.1 nats;
- 100 further steps lower C by less than 0.1 nats;
- no eigenvalue of the Hessian plus L, in units of L, is below zero beyond its Lanczos residual and
  with the cost falling along its vector (if it does, the descent goes on from there).

g is the gradient averaged over those further steps: at a smooth minimum that is the gradient, and
at a kink (see :mod:`noisescale.evidence.descent`) the element of the subdifferential that vanishes.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import LinearOperator

from noisescale.arrays import forgets_constants
from noisescale.checks import check_whole
from noisescale.errors import InputError
from noisescale.evidence.descent import BLOCK, ENOUGH, Cost, Round, descend, finish, reach
from noisescale.evidence.occam import lanczos
from noisescale.evidence.occam.krylov import lanczos_basis
from noisescale.evidence.occam.term import Accuracy, Term
from noisescale.evidence.pace import spoken
from noisescale.evidence.preflight import EXACT, METHODS, preflight
from noisescale.evidence.prior import describe_prior, prior_vector
from noisescale.evidence.problem import P, Problem, with_estimated_noise
from noisescale.evidence.select import Select
from noisescale.likelihood import estimated_precision
from noisescale.notebook import Displayed
from noisescale.seeds import random_stream

if TYPE_CHECKING:
    from noisescale.evidence.jax_leaves import ApplyFn
    from noisescale.evidence.jax_problem import LikelihoodLike

Array = NDArray[np.float64]

MAX_STEPS = 5_000
_ROUNDS = 8  # of BLOCK further steps, over which the gradient may have to be averaged
_NEAR = 1.0  # nats within which the points must lie whose gradients are averaged
_LANCZOS = 64  # steps towards the lowest eigenvalue
_LENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01)  # of steps along its vector, in prior units
_TRUSTED = 0.25  # share of the fall foretold that such a step must bring
_ESCAPES = 3  # from saddles
_WEAK = 1e-4  # of the mean curvature: the prior under which a best fit is first sought
_FITS = 20  # descents to it
_EXACT = 1e14  # times as precise as a constant: rounding
_NOISE_SETTLED = 1e-4  # nats by which such a descent, or its prior, still moves the likelihood


class MapStatus(StrEnum):
    """What a descent reached.

    >>> MapStatus("stalled") is MapStatus.STALLED
    True
    """

    MAP = "map"
    STALLED = "stalled"  # the cost could still fall
    SADDLE = "saddle"  # it does not fall, but curves downwards somewhere


@dataclass(frozen=True, repr=False)
class MapEstimate(Displayed):
    """The minimum of the regularised cost near a trained point, in nats.

    Attributes:
        params: there, in the structure of those that were given.
        status: ``map``, or why it is none: ``stalled``, ``saddle``.
        cost, nll, penalty: cost = nll + penalty, of all training examples.
        start_cost: the cost at the params that were given.
        half_decrement: what the quadratic model says the cost could still fall, by the gradient
            averaged over the last steps.
        further_fall: what the last 100 steps lowered the cost by.
        lowest_eigenvalue, lowest_eigenvalue_residual: of the Hessian of the cost in units of the
            prior (1 where the data say nothing), and how far off Lanczos may be.
        n_steps, n_evaluations: of the descent.
        prior_precision: as in :class:`noisescale.Evidence`.
    """

    params: Any = field(repr=False)
    status: MapStatus
    cost: float
    nll: float
    penalty: float
    start_cost: float
    half_decrement: float
    further_fall: float
    lowest_eigenvalue: float
    lowest_eigenvalue_residual: float
    n_steps: int
    n_evaluations: int
    prior_precision: float | dict[str, float] | None

    def to_dict(self) -> dict[str, Any]:
        """Every number by name, without the params."""
        fields = asdict(MapEstimate(**vars(self) | {"params": None}))
        return {name: value for name, value in fields.items() if name != "params"}

    @property
    def reason(self) -> str | None:
        """Why it is no MAP, in a sentence; None if it is one."""
        if self.status is MapStatus.SADDLE:
            return (
                f"the cost no longer falls, but it curves downwards: an eigenvalue is "
                f"{self.lowest_eigenvalue:.3g} ± {self.lowest_eigenvalue_residual:.2g} in units of "
                "the prior; start from a point off this saddle."
            )
        if self.status is MapStatus.STALLED:
            return (
                f"after {self.n_steps} steps the cost could still fall by about "
                f"{max(self.half_decrement, self.further_fall):.3g} nats; allow more by max_steps."
            )
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        notes = [self.reason] if self.reason else []
        if self.kinked:
            notes.append(
                "the minimum lies on kinks: on one side the cost curves downwards, but it does not "
                "fall there."
            )
        return tuple(notes)

    @property
    def kinked(self) -> bool:
        """Whether the cost has a negative curvature here along which it does not fall."""
        negative = self.lowest_eigenvalue < -self.lowest_eigenvalue_residual
        return negative and self.status is not MapStatus.SADDLE

    def __repr__(self) -> str:
        words = {
            MapStatus.MAP: "MAP",
            MapStatus.STALLED: "No MAP, stalled",
            MapStatus.SADDLE: "No MAP, a saddle",
        }
        lines = [
            f"{words[self.status]}: cost {self.cost:.6g} = nll {self.nll:.6g} + penalty "
            f"{self.penalty:.6g} nats, from {self.start_cost:.6g} in {self.n_steps} steps",
            f"  half the decrement {self.half_decrement:.2g}, further fall "
            f"{self.further_fall:.2g} nats, lowest eigenvalue {self.lowest_eigenvalue:.3g} ± "
            f"{self.lowest_eigenvalue_residual:.1g}",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True, eq=False)
class Polished:
    """A problem at its MAP and the mean gradient there.

    The Occam factor of the Gauss-Newton matrix is there if it was computed on the way.
    """

    problem: Problem
    slope: Array
    term: Term | None
    estimate: MapEstimate


def polish(
    problem: Problem,
    L: Array,
    method: str,
    *,
    nll: float | None = None,
    max_steps: int = MAX_STEPS,
) -> Polished:
    """Descend from a problem's point, whose ``nll`` may be known, under the prior ``L``.

    The decrement is that of ``method`` if it is exact, else by products.
    """
    check_whole("max_steps", max_steps, at_least=1)

    def decrement(here: Problem, slope: Array) -> tuple[float, Term | None]:
        if method in EXACT:
            term = METHODS[method].term(here, L, slope, "ggn", Accuracy())
            return term.occam.newton_decrement, term
        operator = here.operator("ggn", "float32")
        return lanczos.decrement(operator, L, slope, Accuracy().n_steps), None

    if nll is None:
        nll, _ = problem.nll_and_gradient()  # says so if the point is not finite
    cost = Cost(problem, L)
    start = problem.w * cost.root
    start_cost = nll + 0.5 * float(start @ start)
    rough = descend(cost, start, "float32", max_steps, exactly=False)
    u = start if rough.value > start_cost else rough.u
    for attempt in range(_ESCAPES + 1):
        left = max(BLOCK, max_steps - cost.n_steps)
        u = finish(cost, descend(cost, u, "float64", left, exactly=False).u)
        u, further, here, half, term = _further_steps(cost, u, decrement)
        status = MapStatus.MAP
        if half > ENOUGH or not further.settled:
            status = MapStatus.STALLED
        lowest, residual, v = _lowest(here, cost.root)
        away = _downhill(cost, u, lowest, v) if lowest < -residual else None
        if away is None:
            break
        status = MapStatus.SADDLE
        if cost.n_steps >= max_steps or attempt == _ESCAPES:
            break
        u = away
    penalty = 0.5 * float(u @ u)
    return Polished(
        problem=here,
        slope=cost.root * further.slopes / further.n,
        term=term,
        estimate=MapEstimate(
            params=here.structured(here.w),
            status=status,
            cost=further.value,
            nll=further.value - penalty,
            penalty=penalty,
            start_cost=start_cost,
            half_decrement=half,
            further_fall=further.fall,
            lowest_eigenvalue=lowest,
            lowest_eigenvalue_residual=residual,
            n_steps=cost.n_steps,
            n_evaluations=cost.n_evaluations,
            prior_precision=describe_prior(L, problem.layers),
        ),
    )


def descended(problem: Problem, L: Array) -> Problem:
    """The problem roughly at its MAP: no checks, float32."""
    cost = Cost(problem, L)
    there = descend(cost, problem.w * cost.root, "float32", MAX_STEPS, exactly=False)
    return problem.at(there.u / cost.root)


def with_noise_of_the_best_fit(problem: P) -> P:
    """The problem with the noise precision, if it is estimated, of largest likelihood nearby.

    The residuals are those where the sum of squares is least, whatever prior and start: a prior
    there that is weakened until its penalty says nothing holds directions that no data see.
    """
    if not problem.likelihood.estimated:
        return problem
    probe = random_stream(0, "mean curvature").normal(size=len(problem.w))
    curvature = float(probe @ (problem.operator("ggn", "float64") @ probe)) / float(probe @ probe)
    weak, fit = _WEAK * (curvature or 1.0), problem.w
    start = noise = problem.likelihood.noise_precision or 1.0
    for _ in range(_FITS):
        cost = Cost(problem, np.full(len(fit), weak))
        found = descend(cost, fit * cost.root, "float64", MAX_STEPS, exactly=False)
        fit = finish(cost, found.u) / cost.root
        best, before = with_estimated_noise(problem, problem.at(fit)), noise
        noise = best.likelihood.noise_precision or 1.0
        if noise > _EXACT * (best.likelihood.constant_precision or math.inf):
            estimated_precision(None)  # refuses: what is left is rounding
        # In nats of the likelihood under this noise, not under that of the start.
        gain = 0.5 * problem.observed.size * abs(math.log(noise / before))
        penalty = 0.5 * weak * float(fit @ fit) * noise / start
        if gain < _NOISE_SETTLED and penalty < _NOISE_SETTLED:
            return best
        weak *= min(1.0, 0.1 * _NOISE_SETTLED / max(penalty, 1e-300))
    raise InputError(
        f"the likelihood was still rising after {_FITS} descents without a prior, so that the "
        "residuals give no noise precision: give ns.gaussian(noise_precision)."
    )


def _further_steps(
    cost: Cost, u: Array, decrement: Callable[[Problem, Array], tuple[float, Term | None]]
) -> tuple[Array, Round, Problem, float, Term | None]:
    """BLOCK steps on, and more where the mean gradient of so few is still too noisy.

    The mean of n gradients about a kink has a decrement that falls as 1/n.
    """
    further = descend(cost, u, "float64", BLOCK, exactly=True)
    while True:
        here = cost.problem.at(further.u / cost.root)
        whole, term = decrement(here, cost.root * further.slopes / further.n)
        half = 0.5 * whole
        wanted = BLOCK * math.ceil(1.2 * half / ENOUGH * further.n / BLOCK) - further.n
        spent = further.n + BLOCK > _ROUNDS * BLOCK or not further.settled
        if half <= ENOUGH or spent or further.n < BLOCK:
            return further.u, further, here, half, term
        more = min(max(wanted, BLOCK), _ROUNDS * BLOCK - further.n)
        on = descend(cost, further.u, "float64", more, exactly=True)
        if reach(cost, on.u, u) > _NEAR:  # it moved: what lies behind is no longer near
            further, u = on, further.u
        else:
            further = Round(
                on.u, on.value, on.fall, on.settled, further.slopes + on.slopes, further.n + on.n
            )


def _lowest(problem: Problem, root: Array) -> tuple[float, float, Array]:
    """The lowest eigenvalue of I + L^-1/2 H L^-1/2 that Lanczos sees, its residual and vector."""
    H = problem.operator("hessian", "float64")

    def product(v: Array) -> Array:
        v = np.ravel(v)
        return np.asarray(v + (H @ (v / root)) / root)

    operator = LinearOperator(H.shape, matvec=product, rmatvec=product, dtype=np.float64)
    start = random_stream(0, "lowest eigenvalue").normal(size=len(root))
    T, Q = lanczos_basis(operator, start, _LANCZOS)
    values, vectors = eigh_tridiagonal(T.alpha, T.beta)
    v = np.asarray(vectors[:, 0] @ Q, np.float64)
    residual = np.linalg.norm(product(v) - values[0] * v)
    return float(values[0]), float(residual), v


def _downhill(cost: Cost, u: Array, lowest: float, v: Array) -> Array | None:
    """Where the cost falls along a direction of negative curvature as that foretells.

    None where it does not: beside a kink the curvature of one side says nothing of the other.
    """
    here, _ = cost(u, "float64")
    for t in _LENGTHS:
        foretold = 0.5 * abs(lowest) * t**2
        for there in (u + t * v, u - t * v):
            if here - cost(there, "float64")[0] > _TRUSTED * foretold:
                return there
    return None


def map_of(
    problem: Problem,
    *,
    prior_precision: Any,
    max_steps: int = MAX_STEPS,
    progress: Callable[[str], None] | None = None,
) -> MapEstimate:
    """The MAP of a problem, whatever framework is behind it; see :func:`map_estimate`."""
    L = prior_vector(prior_precision, problem)
    with spoken(progress):
        problem = with_noise_of_the_best_fit(problem)
        method = preflight(problem.facts(), "auto", "ggn").method
        return polish(problem, L, method, max_steps=max_steps).estimate


@forgets_constants
def map_estimate(
    apply_fn: "ApplyFn",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precision: Any,
    likelihood: "LikelihoodLike" = "categorical",
    select: Select | None = None,
    max_steps: int = MAX_STEPS,
    progress: Callable[[str], None] | None = None,
) -> MapEstimate:
    """From ``params`` to the minimum nearby of nll + 1/2 prior_precision |w|^2, full batch.

    Args:
        apply_fn, params, data, likelihood: as in :func:`noisescale.log_evidence`.
        prior_precision: a number, or one a layer, array or parameter, likewise; not ``"auto"``.
        select: as in :func:`noisescale.log_evidence`; the params are a list of what is selected.
        max_steps: of L-BFGS, after which it is ``stalled``.
        progress: called now and then with how far it is.

    >>> import numpy as np
    >>> x = np.array([[1.0], [2.0], [3.0]])
    >>> found = map_estimate(lambda w, x: x @ w, np.zeros(1), (x, np.array([1.0, 2.0, 2.0])),
    ...                      prior_precision=1.0, likelihood="gaussian")
    >>> found.status, round(float(found.params[0]), 6)  # x'y/(x'x + 1)
    (<MapStatus.MAP: 'map'>, 0.733333)
    """
    from noisescale.evidence.jax_problem import jax_problem

    problem = jax_problem(apply_fn, params, data, likelihood, select)
    return map_of(problem, prior_precision=prior_precision, max_steps=max_steps, progress=progress)
