"""What each method would cost, before it is begun: bytes and operations, and the choice by them.

A model's passes are counted as PyTorch and XLA count them, so that a busy machine chooses the same.
How far the chosen one is, and how long it still takes, is told while it runs (``progress=``).
"""

from dataclasses import dataclass

from noisescale.checks import check_choice, memory_limit
from noisescale.errors import InputError
from noisescale.evidence.occam import dense, diagonal, dual, kfac, lanczos
from noisescale.evidence.occam.term import Method
from noisescale.evidence.problem import Facts

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
_BLOCK = 1 << 27  # bytes of a block
_OVERHEAD = 1 << 25  # of whatever is there once: the model's copies, compiled programs


@dataclass(frozen=True)
class MethodCost:
    """What one method would take."""

    method: str
    memory: float  # bytes
    work: float  # floating-point operations

    def __str__(self) -> str:
        return f"{self.method}: {readable_bytes(self.memory)}, {readable_operations(self.work)}"


@dataclass(frozen=True)
class Preflight:
    """The method chosen, why, and what every method would take."""

    method: str
    reason: str
    costs: tuple[MethodCost, ...]

    def __str__(self) -> str:
        return f"{self.method} ({self.reason}); " + "; ".join(map(str, self.costs))


def preflight(facts: Facts, method: str, curvature: str) -> Preflight:
    """Choose a method, or check that the one asked for can do it and fits into memory."""
    check_choice("curvature", curvature, CURVATURES)
    check_choice("method", method, ("auto", *METHODS))
    if method != "auto" and (reason := METHODS[method].refusal(facts, curvature)):
        raise InputError(f"method='{method}' {reason}")
    able = [name for name, module in METHODS.items() if not module.refusal(facts, curvature)]
    costs = {name: cost(name, curvature, facts) for name in able}
    limit = memory_limit()
    if method == "auto":
        fitting = [costs[name] for name in EXACT if name in costs and costs[name].memory <= limit]
        best = min(fitting, key=lambda c: c.work, default=None)
        if best is not None and best.work <= _PATIENCE:
            method, reason = best.method, "the fastest exact method that fits"
        elif best is not None:
            work = readable_operations(best.work)
            method, reason = "lanczos", f"exact methods would take {work}"
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
    return Preflight(method, reason, tuple(costs.values()))


def cost(method: str, curvature: str, facts: Facts) -> MethodCost:
    """Memory and work of one method."""
    memory, work = METHODS[method].cost(facts, curvature)
    held = memory + block_bytes(method, facts)
    return MethodCost(method, held, work)


def block_bytes(method: str, facts: Facts) -> float:
    """What a block of examples takes in work, beside what a method holds; and all rows' roots."""
    k = 0 if method == "lanczos" else facts.rows_an_example
    roots = 8.0 * facts.N * k * facts.C / facts.tokens
    formed = k * facts.p if method in EXACT else 0
    an_example = 8.0 * ((4 + k) * facts.activations + formed)
    a_row = 8.0 * (5 * facts.activations + formed / max(k, 1))  # of an example with more of them
    return min(facts.N * an_example, max(_BLOCK, a_row)) + roots + _OVERHEAD


def readable_operations(work: float) -> str:
    """A number of floating-point operations.

    >>> readable_operations(3.456e13)
    '3.5e+13 operations'
    """
    return f"{work:.1e} operations"


def readable_bytes(size: float) -> str:
    """A size in the unit that fits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if size < 1e6 else f"{size:.1e} TiB"
