"""``lanczos``: an estimate for models of any size, from products with the curvature.

tr ln(I + M) of M = L^-1/2 H L^-1/2 by stochastic Lanczos quadrature
(:mod:`noisescale.evidence.occam.quadrature`), with its standard error.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError
from noisescale.evidence.occam.kept import Opener, keeping
from noisescale.evidence.occam.krylov import (
    LOOK,
    SETTLED,
    Function,
    Tridiagonal,
    lanczos,
    resolution,
    width_of,
)
from noisescale.evidence.occam.quadrature import (
    FEWEST_PROBES,
    Keeper,
    TraceEstimate,
    at_once,
    expected_probes,
    trace_of_function,
)
from noisescale.evidence.occam.term import (
    Accuracy,
    Array,
    Curve,
    Occam,
    Term,
    curve_of_eigenvalues,
    restricted_log,
)
from noisescale.evidence.pace import advance, stage
from noisescale.evidence.problem import Facts, Precision, Problem
from noisescale.evidence.timing import fastest, timed
from noisescale.seeds import random_stream

PRECISIONS: tuple[Precision, Precision] = ("float32", "float64")
PROBES, STEPS = FEWEST_PROBES, 64  # what an estimate to 1 % takes as a rule
_FLOAT32_NOISE = 1e-7  # of the largest curvature, on every eigenvalue of float32 products
_SEEN = 1e-6  # of the largest node: nodes nearer zero may be of either sign by rounding
_HARMLESS = 1e-3  # nats
_FIRST = 8  # steps that show the largest curvature
_AHEAD = 24  # steps, at the least, that show how much work an estimate will be
_SECONDS_AHEAD = 0.25  # in which there may be more of them
_ROUGHLY = 16  # steps that show the size of the log Occam factor


def refusal(facts: Facts, curvature: str) -> str | None:
    """None: it knows every curvature of every model."""
    return None


def cost(facts: Facts, curvature: str) -> tuple[float, float]:
    """The Lanczos vectors of probes that go together; a pass over the data a step."""
    p = facts.p
    work = PROBES * STEPS * (6 * facts.N * facts.pass_flops + 4 * STEPS * p)
    together = at_once(p, STEPS, PROBES // 2)
    return together * p * (min(STEPS, p) * width_of(p) + 40.0), work


def seconds(problem: Problem, facts: Facts, curvature: str, L: Array, accuracy: Accuracy) -> float:
    """Products, measured, and as many of them as one short run from a random vector suggests."""
    p, positive = facts.p, curvature == "ggn"

    def operator(precision: Precision) -> LinearOperator:
        return _in_prior_units(problem.operator(curvature, precision), L)

    rough = operator(PRECISIONS[0])
    one, _ = timed(lambda: rough @ np.ones(p))
    ahead = int(np.clip(_SECONDS_AHEAD / one, _AHEAD, accuracy.n_steps))
    expected = outlook(operator, p, accuracy, positive, ahead)
    together = at_once(p, accuracy.n_steps, min(PROBES, accuracy.max_probes) // 2)
    M, V = operator(expected.precision), np.ones((p, together))
    if expected.precision != PRECISIONS[0]:
        one = fastest(lambda: M @ V[:, 0])
    if problem.compiles:
        M @ V
    some = fastest(lambda: M @ V)
    step = some / together + _seconds_a_step(p, expected.n_steps)
    alone = one + _seconds_a_step(p, accuracy.n_steps)
    n_alone = expected.n_steps + _ROUGHLY + _FIRST  # the first of them is for the decrement
    return expected.n_probes * expected.n_steps * step + n_alone * alone


def term(problem: Problem, L: Array, slope: Array, curvature: str, accuracy: Accuracy) -> Term:
    """From products with the curvature of the problem."""
    return operator_term(
        lambda precision: problem.operator(curvature, precision),
        L,
        slope,
        positive=curvature == "ggn",
        accuracy=accuracy,
        content=lambda: (curvature, *problem.content()),
    )


def curve(
    problem: Problem, curvature: str, accuracy: Accuracy, *, smallest: float, n_values: int
) -> Curve:
    """From the quadrature at the smallest precision, whose nodes serve all larger ones."""
    p = len(problem.w)
    operator = problem.operator(curvature, "float64")
    estimate = _estimate(operator, np.full(p, smallest), accuracy, curvature == "ggn")
    nodes, weights = estimate.nodes()
    return curve_of_eigenvalues(smallest * nodes, weights, p)


def operator_term(
    operator: Callable[[Precision], LinearOperator],
    L: Array,
    slope: Array,
    *,
    positive: bool,
    accuracy: Accuracy,
    content: Callable[[], tuple[Any, ...]],
) -> Term:
    """Stochastic Lanczos quadrature; in float64 where float32 products would bias it.

    ``content`` is all that the operator depends on, as a store names it.
    """
    counted = Counted(operator)
    with keeping(accuracy, L, content) as kept:
        term = _term(counted, L, slope, positive, accuracy, kept)
    return replace(term, details=term.details | {"n_products": counted.n_products})


class Counted:
    """Operators by precision whose products are counted, each column of several for one."""

    def __init__(self, operator: Callable[[Precision], LinearOperator]) -> None:
        self.operator, self.n_products = operator, 0

    def __call__(self, precision: Precision) -> LinearOperator:
        """The one of a precision."""
        H = self.operator(precision)

        def product(V: Array) -> Array:
            self.n_products += V.shape[1] if V.ndim == 2 else 1
            return np.asarray(H @ V)

        return LinearOperator(
            H.shape, matvec=product, rmatvec=product, matmat=product, dtype=np.float64
        )


def _term(
    operator: Callable[[Precision], LinearOperator],
    L: Array,
    slope: Array,
    positive: bool,
    accuracy: Accuracy,
    kept: Opener | None,
) -> Term:
    precision: Precision = "float32"
    # One short run shows the largest curvature, hence what rounding may do at the worst.
    start = slope / np.sqrt(L)
    if not start.any():  # a gradient that is zero, or was not given, shows nothing
        start = np.random.default_rng(accuracy.seed).normal(size=len(L))
    stage("largest curvature", _FIRST)
    first = lanczos(_in_prior_units(operator(precision), L), start, _FIRST)
    worst = 0.5 * len(L) * _FLOAT32_NOISE * max(float(first.quadrature()[0][-1]), 0.0)
    bound, goal = worst, accuracy.tolerance or 0.0
    if positive and worst > max(goal, _HARMLESS):
        stage("rounding", _ROUGHLY + 2)
        rough, run = _rounding(
            lambda precision: _in_prior_units(operator(precision), L), len(L), accuracy.seed
        )
        bound = min(worst, rough)
        goal = goal or 0.01 * len(L) * run.integrate(_log_of_positive) / 2
    estimate, keeper = None, None
    if bound <= max(goal / 2, _HARMLESS):
        keeper = kept and kept(precision)
        estimate = _estimate(operator(precision), L, accuracy, positive, keeper)
    if estimate is None or bound > max(estimate.std / 2, _HARMLESS):
        precision, bound = "float64", worst * np.finfo(np.float64).eps / _FLOAT32_NOISE
        keeper = kept and kept(precision)
        estimate = _estimate(operator(precision), L, accuracy, positive, keeper)
    occam = _occam_of_quadrature(estimate, operator(precision), L, slope, positive, accuracy)
    details = {
        "n_probes": estimate.n_probes,
        "n_steps": estimate.n_steps,
        "spread_left": estimate.spread_left,
        "quadrature_error": estimate.quadrature_error / 2,
        "rounding_bound": bound,
        "products": precision,
        "tolerance_reached": estimate.reached,
    }
    if keeper is not None:
        details["n_stored_probes"] = keeper.n_used
    return Term(occam, estimate.std / 2, details)


def _rounding(
    operator: Callable[[Precision], LinearOperator],
    p: int,
    seed: int,
    n_steps: int = _ROUGHLY,
    f: Function | None = None,
) -> tuple[float, Tridiagonal]:
    """What float32 products may change the log Occam factor by, and a run that shows its size.

    With E the error of a product with signs z, tr E = z' E z +- sqrt(2) |E|, and what it does to a
    sum of logarithms is that trace, less half the sum of squares, which is about |E z|^2. The
    operators are in units of the prior.
    """
    z = random_stream(seed, "rounding").integers(0, 2, p).astype(np.float64) * 2 - 1
    rough, fine = (operator(precision) for precision in PRECISIONS)
    E = np.asarray(rough @ z) - np.asarray(fine @ z)
    size = float(np.linalg.norm(E))
    trace = abs(float(z @ E)) + 2 * math.sqrt(2) * size
    return trace / 2 + size**2 / 4, lanczos(rough, z, n_steps, f)


@dataclass(frozen=True)
class Outlook:
    """How much work an estimate will presumably be: probes and steps of each, on average."""

    n_probes: float
    n_steps: int
    precision: Precision


def outlook(
    operator: Callable[[Precision], LinearOperator],
    p: int,
    accuracy: Accuracy,
    positive: bool,
    n_steps: int = _AHEAD,
) -> Outlook:
    """From one run of so many steps: how fast it settles, and how far probes will be apart.

    Of probes with random signs the variance of z' F z is at most 2 tr F^2, F = ln(I + M), and both
    tr F and tr F^2 are sums over the run's nodes. Probes that learn from one another leave what
    lies beyond about as many leading eigenvalues as they take steps. The operators are in units of
    the prior.
    """
    f = _log_of_positive if positive else restricted_log
    rounding, run = _rounding(operator, p, accuracy.seed, min(n_steps, accuracy.n_steps), f)
    value = p * run.integrate(f)
    steps, change = _settling(run, f, n_steps, accuracy.n_steps)
    goal = 2 * accuracy.tolerance if accuracy.tolerance else 0.01 * abs(value)
    worst = 0.5 * p * _FLOAT32_NOISE * max(float(run.quadrature()[0][-1]), 0.0)
    bound = min(worst, rounding) if positive else worst
    rough = bound <= max(goal / 4, _HARMLESS)
    spread = math.sqrt(2 * _beyond(run, f, p, steps))
    # Probes make up for their spread alone: what the quadrature is off by takes its part.
    goal = math.sqrt(max(goal**2 - (change * value) ** 2, 0.0))
    return Outlook(
        expected_probes(spread, goal, accuracy.max_probes),
        steps,
        PRECISIONS[0] if rough else PRECISIONS[1],
    )


def _beyond(run: Tridiagonal, f: Function, p: int, leading: int) -> float:
    """tr f(M)^2 without so many leading eigenvalues, of which a node stands for p times its share.

    >>> run = Tridiagonal(np.array([3.0, 1.0]), np.array([0.0]))
    >>> _beyond(run, lambda nodes: nodes, p=10, leading=4)  # one node, of ten eigenvalues 3
    54.0
    """
    nodes, share = run.quadrature()
    size = f(nodes) ** 2
    order = np.argsort(-size)
    counts = p * share[order]
    left = np.clip(np.cumsum(counts) - leading, 0.0, counts)
    return float(left @ size[order])


def _settling(run: Tridiagonal, f: Function, taken: int, most: int) -> tuple[int, float]:
    """Steps until a run settles, and what the last quarter of them will change, relatively.

    From those ``taken``: what they change falls by a factor from one look to the next.
    """
    known = []
    for steps in range(LOOK, len(run.alpha) + 1, LOOK):
        value, before = run.integrate(f, steps), run.integrate(f, 3 * steps // 4)
        known.append(max(abs(value - before) / max(abs(value), 1e-300), SETTLED / 10))
        if known[-1] <= SETTLED:
            return min(steps, most), known[-1]
    if len(run.alpha) < min(taken, most):  # exhausted
        return len(run.alpha), 0.0
    if len(known) < 2 or known[-1] >= known[-2]:  # not to be foreseen
        return most, known[-1] if known else 0.0
    falls = math.log(known[-2] / known[-1])
    more = math.ceil(math.log(known[-1] / SETTLED) / falls)
    steps = min(most, (len(known) + more) * LOOK)
    return steps, known[-1] * math.exp(-falls * (steps / LOOK - len(known)))


def _seconds_a_step(p: int, n_steps: int) -> float:
    """Of one vector: it is orthogonalised twice against those before it, half of all on average."""
    Q = np.ones((max(n_steps // 2, 1), p), np.float32 if width_of(p) == 4 else np.float64)
    w = np.ones(p)
    against, _ = timed(lambda: w - Q.T @ (Q @ w.astype(Q.dtype)))
    return 2 * against


def _log_of_positive(nodes: Array) -> Array:
    """ln(1 + mu) of a curvature that is nowhere negative.

    Nodes that rounding put below zero count with their sign, as others count that it put above.
    """
    seen = _SEEN * float(np.abs(nodes).max(initial=0.0))
    return np.log1p(np.where(nodes > -min(seen, 0.5), nodes, 0.0))


def _in_prior_units(operator: LinearOperator, L: Array) -> LinearOperator:
    """L^-1/2 H L^-1/2."""
    root = np.sqrt(L)

    def matvec(v: Array) -> Array:
        product = np.asarray(operator @ (np.ravel(v) / root) / root)
        advance(1)
        return product

    def matmat(V: Array) -> Array:
        products = np.asarray(operator @ (V / root[:, None]) / root[:, None])
        advance(V.shape[1])
        return products

    return LinearOperator(
        operator.shape, matvec=matvec, rmatvec=matvec, matmat=matmat, dtype=np.float64
    )


def _estimate(
    operator: LinearOperator,
    L: Array,
    accuracy: Accuracy,
    positive: bool,
    keeper: Keeper | None = None,
) -> TraceEstimate:
    if accuracy.tolerance == 0:
        raise InputError(
            "tolerance=0 asks for an exact value, which lanczos does not give: use method='dense' "
            "or 'dual', or a tolerance above 0."
        )
    # Both tolerances are of the log evidence, which has half the trace.
    absolute = None if accuracy.tolerance is None else 2 * accuracy.tolerance
    return trace_of_function(
        _in_prior_units(operator, L),
        _log_of_positive if positive else restricted_log,
        tolerance=absolute or 1e-6,
        relative=0.0 if absolute else 0.01,
        max_probes=accuracy.max_probes,
        n_steps=accuracy.n_steps,
        seed=accuracy.seed,
        progress=accuracy.progress,
        keeper=keeper,
    )


def _occam_of_quadrature(
    estimate: TraceEstimate,
    operator: LinearOperator,
    L: Array,
    slope: Array,
    positive: bool,
    accuracy: Accuracy,
) -> Occam:
    p = len(L)
    noise = _SEEN * max(abs(estimate.largest), abs(estimate.smallest))
    counts, weights = [], []
    for probe in estimate.probes:
        nodes, share = probe.quadrature()
        counts.append(p * share[nodes < -resolution(nodes, len(nodes), p)].sum())
        weights.append(-p * (share * nodes)[nodes < -noise].sum())
    restricted = -0.5 * estimate.value
    if positive:
        full: float | None = restricted
    elif estimate.smallest > -1:
        full = -0.5 * estimate.trace(lambda nodes: np.log1p(np.maximum(nodes, noise - 1)))
    else:
        full = None
    scaled = slope / np.sqrt(L)
    length = float(scaled @ scaled)
    decrement = 0.0
    if length > 0:
        stage("decrement", accuracy.n_steps)

        def inverse(nodes: Array) -> Array:
            return np.divide(1, 1 + nodes, out=np.zeros(len(nodes)), where=nodes > noise - 1)

        run = lanczos(_in_prior_units(operator, L), scaled, accuracy.n_steps, inverse)
        decrement = length * run.integrate(inverse)
    return Occam(
        restricted=restricted,
        full=full,
        n_negative=0 if positive else round(float(np.mean(counts))),
        negative_weight=0.0 if positive else float(np.mean(weights)),
        newton_decrement=decrement,
    )
