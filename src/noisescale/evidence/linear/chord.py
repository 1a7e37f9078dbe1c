"""Towards the minimum of a smooth convex cost with one factorised Hessian M = R R' from nearby.

Each step costs a gradient and two triangular solves, a twentieth of what a Hessian and its factor
do. With V the coefficients, s = -M^-1 C'(V) the step that M suggests, and D_V, D_s the differences
between successive V and s, Anderson's mixing goes to

    V + s - (D_V + D_s) a,    a minimising |s - D_s a| in the norm of M,

which for a quadratic cost is GMRES on the preconditioned gradient: an M that is off by a factor in
few directions, as under another prior, is put right in about as many steps.
"""

import numpy as np
from scipy.linalg.lapack import dpotrs

from noisescale.evidence.linear.families import Array, product
from noisescale.evidence.linear.newton import Cost

_MEMORY = 6  # differences kept
_MAX_STEPS = 60
_RIDGE = 1e-10  # so that differences which say the same may stand beside each other
_PATIENCE = 6  # steps without a smaller decrement


def approach(cost: Cost, V: Array, factor: Array, *, enough: float) -> Array:
    """Coefficients (r, C) with a decrement of at most ``enough`` if all goes well.

    In any case the ones of the smallest decrement g' M^-1 g that were met.
    """
    C = V.shape[1]
    best, lowest, since = V, np.inf, 0
    differences = np.empty((3, _MEMORY, V.size))  # D_V, D_s, D_g, the oldest overwritten first
    last: Array | None = None
    for n in range(_MAX_STEPS):
        g = cost.gradient(V, product(cost.features, V))  # (C r,), output by output
        s = -dpotrs(factor, g, lower=True)[0]
        decrement = -float(g @ s)
        if not np.isfinite(decrement):
            break
        since = 0 if decrement < lowest else since + 1
        if decrement < lowest:
            best, lowest = V, decrement
        if lowest <= enough or since >= _PATIENCE:
            break
        here = np.stack([V.T.ravel(), s, g])
        v = here[0] + s
        if last is not None:
            differences[:, (n - 1) % _MEMORY] = here - last
            D_V, D_s, D_g = differences[:, :n]  # (m, C r)
            # M D_s = -D_g, so that inner products in the norm of M need no solve.
            gram = -D_s @ D_g.T  # (m, m)
            gram[np.diag_indices(len(gram))] *= 1 + _RIDGE
            a = np.linalg.solve(gram, D_g @ s)
            v += a @ D_V + a @ D_s
        last, V = here, v.reshape(C, -1).T
    return best
