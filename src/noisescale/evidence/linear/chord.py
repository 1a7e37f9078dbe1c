"""Towards the minimum of a smooth convex cost with one factorised Hessian M = R R' from nearby.

Each step costs a gradient and two triangular solves, a twentieth of what a Hessian and its factor
do. With V the coefficients, s = -M^-1 C'(V) the step that M suggests, and D_V, D_s the differences
between successive V and s, Anderson's mixing goes to

    V + s - (D_V + D_s) a,    a minimising |s - D_s a| in the norm of M,

which for a quadratic cost is GMRES on the preconditioned gradient: an M that is off by a factor in
few directions, as under another prior, is put right in about as many steps.
"""

from collections import deque

import numpy as np
import scipy.linalg

from noisescale.evidence.linear.families import Array, product
from noisescale.evidence.linear.newton import Cost

_MEMORY = 6  # differences kept
_MAX_STEPS = 60
_PATIENCE = 6  # steps without a smaller decrement


def approach(cost: Cost, V: Array, factor: Array, *, enough: float) -> Array:
    """Coefficients (r, C) with a decrement of at most ``enough`` if all goes well.

    In any case the ones of the smallest decrement g' M^-1 g that were met.
    """
    C = V.shape[1]
    best, lowest, since = V, np.inf, 0
    memory: deque[tuple[Array, Array, Array]] = deque(maxlen=_MEMORY)  # D_V, D_s, D_g
    last: tuple[Array, Array, Array] | None = None
    for _ in range(_MAX_STEPS):
        g = cost.gradient(V, product(cost.features, V))  # (C r,), output by output
        s = -scipy.linalg.cho_solve((factor, True), g, check_finite=False)
        decrement = -float(g @ s)
        if not np.isfinite(decrement):
            break
        since = 0 if decrement < lowest else since + 1
        if decrement < lowest:
            best, lowest = V, decrement
        if lowest <= enough or since >= _PATIENCE:
            break
        v = V.T.ravel()
        if last is not None:
            memory.append((v - last[0], s - last[1], g - last[2]))
        last = v, s, g
        v = v + s
        if memory:
            D_V, D_s, D_g = (np.array(rows) for rows in zip(*memory, strict=True))  # (m, C r)
            # M D_s = -D_g, so that inner products in the norm of M need no solve.
            a = np.linalg.lstsq(-D_s @ D_g.T, -D_g @ s, rcond=1e-12)[0]
            v = v - a @ (D_V + D_s)
        V = v.reshape(C, -1).T
    return best
