"""How much work ``lanczos`` will be, foreseen from one short run."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.evidence.occam.krylov import LOOK, SETTLED, Function, Tridiagonal
from noisescale.evidence.occam.quadrature import expected_probes
from noisescale.evidence.occam.rounding import (
    FLOAT32_NOISE,
    HARMLESS,
    PRECISIONS,
    log_of_positive,
    rounding_of,
)
from noisescale.evidence.occam.term import Accuracy, restricted_log
from noisescale.evidence.problem import Precision

AHEAD = 24  # steps, at the least, that show how much work an estimate will be


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
    n_steps: int = AHEAD,
) -> Outlook:
    """From one run of so many steps: how fast it settles, and how far probes will be apart.

    Of probes with random signs the variance of z' F z is at most 2 tr F^2, F = ln(I + M), and both
    tr F and tr F^2 are sums over the run's nodes. Probes that learn from one another leave what
    lies beyond about as many leading eigenvalues as they take steps. The operators are in units of
    the prior.
    """
    f = log_of_positive if positive else restricted_log
    rounding, run = rounding_of(operator, p, accuracy.seed, min(n_steps, accuracy.n_steps), f)
    value = p * run.integrate(f)
    steps, change = _settling(run, f, n_steps, accuracy.n_steps)
    goal = 2 * accuracy.tolerance if accuracy.tolerance else 0.01 * abs(value)
    worst = 0.5 * p * FLOAT32_NOISE * max(float(run.quadrature()[0][-1]), 0.0)
    bound = min(worst, rounding) if positive else worst
    rough = bound <= max(goal / 4, HARMLESS)
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
