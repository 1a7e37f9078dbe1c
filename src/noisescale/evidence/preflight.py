"""What each method would cost, before it is begun: memory and time, and the choice between them."""

import math
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from noisescale.checks import memory_limit
from noisescale.errors import InputError
from noisescale.evidence.curvature.model import Model
from noisescale.evidence.curvature.products import activations
from noisescale.training.models import DenseNetwork

EXACT = ("dense", "dual")
METHODS = (*EXACT, "lanczos", "kfac", "diagonal")
_PATIENCE = 600.0  # seconds that "auto" gives an exact method
_BLOCKS = 1 << 29  # bytes of blocks and temporaries beside the matrices
PROBES, STEPS = 16, 64  # what a typical Lanczos estimate takes


@dataclass(frozen=True)
class Facts:
    """The sizes that costs depend on.

    Attributes:
        p, N, C: parameters, examples, outputs.
        rows: of the dual kernel, N (C - 1) for a softmax.
        pass_flops: arithmetic of one example's forward pass.
        pass_numbers: numbers that one example's forward pass makes.
        widths: of a dense network's layers, None for any other function.
    """

    p: int
    N: int
    C: int
    rows: int
    pass_flops: float
    pass_numbers: int
    widths: tuple[int, ...] | None

    @classmethod
    def of(cls, model: Model) -> "Facts":
        """The facts of a model on its data."""
        N, C = len(model.x), model.n_outputs
        softmax = model.architecture.likelihood.name == "categorical"
        apply_fn = model.architecture.apply_fn
        return cls(
            p=model.n_params,
            N=N,
            C=C,
            rows=N * (C - 1 if softmax else C),
            pass_flops=_pass_flops(model),
            pass_numbers=activations(model),
            widths=apply_fn.widths if type(apply_fn) is DenseNetwork else None,
        )


@dataclass(frozen=True)
class Cost:
    """What one method would take."""

    method: str
    memory: float  # bytes
    seconds: float

    def __str__(self) -> str:
        return f"{self.method}: {readable_bytes(self.memory)}, {readable_seconds(self.seconds)}"


@dataclass(frozen=True)
class Preflight:
    """The method chosen, why, and what every method would take."""

    method: str
    reason: str
    costs: tuple[Cost, ...]

    def __str__(self) -> str:
        return f"{self.method} ({self.reason}); " + "; ".join(map(str, self.costs))


def preflight(facts: Facts, method: str, curvature: str) -> Preflight:
    """Choose a method, or check that the one asked for fits into memory."""
    costs = {name: cost(name, curvature, facts) for name in METHODS if allowed(name, curvature)}
    limit = memory_limit()
    if method == "auto":
        fitting = [costs[name] for name in EXACT if name in costs and costs[name].memory <= limit]
        best = min(fitting, key=lambda c: c.seconds, default=None)
        if best is not None and best.seconds <= _PATIENCE:
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
    return Preflight(method, reason, tuple(costs.values()))


def allowed(method: str, curvature: str) -> bool:
    """Whether the method knows this curvature."""
    return curvature == "ggn" or method in ("dense", "lanczos")


def cost(method: str, curvature: str, facts: Facts) -> Cost:
    """Memory and time of one method."""
    p, N, n, flops = facts.p, facts.N, facts.rows, facts.pass_flops
    if method == "dense":
        build = N * facts.C * (3 * flops + p**2) if curvature == "ggn" else 6 * p * N * flops
        solve = p**3 / 3 if curvature == "ggn" else 9 * p**3
        memory, work = 8.0 * 3 * p**2, build + solve
    elif method == "dual":
        memory = 8.0 * (2 * n**2)
        if facts.widths is None:
            build = n * (3 * flops + N * flops)  # half of two passes, by symmetry
        else:
            build = n**2 * sum(facts.widths[1:]) + N**2 * sum(facts.widths)
            memory += 8.0 * (N**2 * len(facts.widths) + n * sum(facts.widths))
        work = build + n**3 / 3
    elif method == "lanczos":
        work = PROBES * STEPS * (6 * N * flops + 4 * STEPS * p)
        memory = 4.0 * STEPS * p + 40.0 * p
    else:
        work = n * 3 * flops
        memory = 24.0 * p
        if facts.widths is not None:
            work += sum(10 * w**3 for w in facts.widths)
            memory += 8.0 * (3 * sum(w**2 for w in facts.widths) + n * sum(facts.widths))
    return Cost(method, memory + _BLOCKS, work / arithmetic_rate())


@cache
def arithmetic_rate() -> float:
    """Floating-point operations a second of this machine's matrix product, measured once."""
    a = np.ones((768, 768))
    a @ a
    began = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * 768**3 / (time.perf_counter() - began)


def _pass_flops(model: Model) -> float:
    n = min(8, len(model.x))
    x = np.zeros((n, *model.x.shape[1:]), model.x.dtype)
    with jax.enable_x64(True):
        lowered = jax.jit(model.architecture.outputs).lower(model.w, x)
    analysis: Any = lowered.cost_analysis() or {}
    counted = float(analysis.get("flops", 0.0)) / n
    return counted if math.isfinite(counted) and counted > 0 else 2.0 * model.n_params


def readable_bytes(size: float) -> str:
    """A size in the unit that fits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if size < 1e6 else f"{size:.1e} TiB"


def readable_seconds(seconds: float) -> str:
    """A time in the unit that fits it."""
    if seconds < 1:
        return "under a second"
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < 2 * length:
            return f"about {seconds:.2g} {unit}"
        seconds /= length
    return f"about {seconds:.2g} days"
