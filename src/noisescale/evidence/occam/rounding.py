"""What rounding does to ``lanczos``: how far float32 products may be trusted."""

import math
from collections.abc import Callable

import numpy as np
from scipy.sparse.linalg import LinearOperator

from noisescale.evidence.occam.krylov import Function, Tridiagonal, lanczos
from noisescale.evidence.occam.term import Array
from noisescale.evidence.problem import Precision
from noisescale.seeds import random_stream

PRECISIONS: tuple[Precision, Precision] = ("float32", "float64")
FLOAT32_NOISE = 1e-7  # of the largest curvature, on every eigenvalue of float32 products
SEEN = 1e-6  # of the largest node: nodes nearer zero may be of either sign by rounding
HARMLESS = 1e-3  # nats
ROUGHLY = 16  # steps that show the size of the log Occam factor


def rounding_of(
    operator: Callable[[Precision], LinearOperator],
    p: int,
    seed: int,
    n_steps: int = ROUGHLY,
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


def log_of_positive(nodes: Array) -> Array:
    """ln(1 + mu) of a curvature that is nowhere negative.

    Nodes that rounding put below zero count with their sign, as others count that it put above.
    """
    seen = SEEN * float(np.abs(nodes).max(initial=0.0))
    return np.log1p(np.where(nodes > -min(seen, 0.5), nodes, 0.0))
