"""What each method would cost, before it is begun: memory and time, and the choice between them.

The choice goes by counted operations and bytes alone (a model's passes as PyTorch and XLA count
them), so that a busy machine makes the same. What is predicted of the method chosen comes from
small parts of its own work, measured here (:mod:`noisescale.evidence.timing`); of the others from
their counts at the speed of a matrix product, which says less.
"""

from dataclasses import dataclass, replace

import numpy as np

from noisescale.checks import check_choice, memory_limit
from noisescale.errors import InputError
from noisescale.evidence.occam import bounds, dense, diagonal, dual, kfac, lanczos
from noisescale.evidence.occam.term import Accuracy, Array, Method
from noisescale.evidence.pace import aside
from noisescale.evidence.pace import shown_seconds as readable_seconds
from noisescale.evidence.problem import Facts, Problem
from noisescale.evidence.timing import arithmetic_rate

CURVATURES = ("ggn", "hessian")
METHODS: dict[str, Method] = {
    "dense": dense,
    "dual": dual,
    "lanczos": lanczos,
    "kfac": kfac,
    "diagonal": diagonal,
}
EXACT = ("dense", "dual")
# Operations that "auto" gives an exact method: ten minutes at 50 Gflop/s, a core or two.
_PATIENCE = 3e13
_WORTH_MEASURING = 1e9  # operations: a tenth of a second, if all are as fast as in a product
_BLOCK = 1 << 27  # bytes of a block
_OVERHEAD = 1 << 25  # of whatever is there once: the model's copies, compiled programs


@dataclass(frozen=True)
class MethodCost:
    """What one method would take."""

    method: str
    memory: float  # bytes
    work: float  # floating-point operations
    seconds: float  # at the speed of this machine
    measured: bool = False  # from parts of its work; else from counts alone

    def __str__(self) -> str:
        return f"{self.method}: {readable_bytes(self.memory)}, {readable_seconds(self.seconds)}"


@dataclass(frozen=True)
class Preflight:
    """The method chosen, why, and what every method would take."""

    method: str
    reason: str
    costs: tuple[MethodCost, ...]

    def __str__(self) -> str:
        return f"{self.method} ({self.reason}); " + "; ".join(map(str, self.costs))


def module_of(method: str, tolerance: float | None) -> Method:
    """What does it: ``dual`` with a tolerance goes by bounds."""
    return bounds if method == "dual" and tolerance else METHODS[method]


def preflight(
    facts: Facts,
    method: str,
    curvature: str,
    problem: Problem | None = None,
    accuracy: Accuracy | None = None,
    L: Array | None = None,
    *,
    count_rows: bool = False,
) -> Preflight:
    """Choose a method, or check that the one asked for can do it and fits into memory.

    With the ``problem`` itself, parts of what was chosen are measured, under the prior ``L`` (1 if
    it is not known yet). A tolerance makes ``dual`` one of bounds, if that was asked for;
    ``count_rows`` then says, from a pass over the kernel's diagonal, how many rows matter to it.
    """
    check_choice("curvature", curvature, CURVATURES)
    check_choice("method", method, ("auto", *METHODS))
    if method != "auto" and (reason := METHODS[method].refusal(facts, curvature)):
        raise InputError(f"method='{method}' {reason}")
    able = [name for name, module in METHODS.items() if not module.refusal(facts, curvature)]
    accuracy = accuracy or Accuracy()
    within = accuracy.tolerance if method == "dual" else None
    costs = {name: cost(name, curvature, facts, within) for name in able}
    limit = memory_limit()
    if method == "auto":
        fitting = [costs[name] for name in EXACT if name in costs and costs[name].memory <= limit]
        best = min(fitting, key=lambda c: c.work, default=None)
        if best is not None and best.work <= _PATIENCE:
            method, reason = best.method, "the fastest exact method that fits"
        elif best is not None:
            method, reason = "lanczos", f"exact methods would take {readable_seconds(best.seconds)}"
        else:
            method, reason = "lanczos", "no exact method fits into memory"
    else:
        reason = "as asked"
    chosen = costs[method]
    if chosen.memory > limit:
        others = [str(c) for c in costs.values() if c.memory <= limit]
        raise InputError(
            f"method='{method}' would take {readable_bytes(chosen.memory)}, more than 70 % of this "
            f"machine's memory: what would fit is {'; '.join(others) or 'nothing'}."
        )
    if problem is not None and chosen.work > _WORTH_MEASURING:
        module = module_of(method, within)
        prior = np.ones(facts.p) if L is None else L
        with aside("trying parts of it"):
            took = module.seconds(problem, facts, curvature, prior, accuracy)
        costs[method] = replace(chosen, seconds=took, measured=True)
    if problem is not None and within and L is not None and count_rows:
        reason = with_rows(reason, *bounds.count_rows(problem, L, within))
    return Preflight(method, reason, tuple(costs.values()))


def with_rows(reason: str, matter: int, every: int) -> str:
    """Why a method was chosen, and how many of its rows it looks at."""
    return f"{reason}, {matter:,} of {every:,} rows matter"


def cost(method: str, curvature: str, facts: Facts, tolerance: float | None = None) -> MethodCost:
    """Memory and time of one method."""
    memory, work = module_of(method, tolerance).cost(facts, curvature)
    held = memory + block_bytes(method, facts)
    return MethodCost(method, held, work, work / arithmetic_rate())


def block_bytes(method: str, facts: Facts) -> float:
    """What a block of examples takes in work, beside what a method holds; and all rows' roots."""
    k = 0 if method == "lanczos" else facts.rows_an_example
    roots = 8.0 * facts.N * k * facts.C / facts.tokens
    formed = k * facts.p if method in EXACT else 0
    an_example = 8.0 * ((4 + k) * facts.activations + formed)
    a_row = 8.0 * (5 * facts.activations + formed / max(k, 1))  # of an example with more of them
    return min(facts.N * an_example, max(_BLOCK, a_row)) + roots + _OVERHEAD


def readable_bytes(size: float) -> str:
    """A size in the unit that fits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if size < 1e6 else f"{size:.1e} TiB"
