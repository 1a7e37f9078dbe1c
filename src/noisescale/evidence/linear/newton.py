"""Newton's method for a generalised linear model with a Gaussian prior, in float64.

The cost is C(V) = sum_i c_i nll(f_i V, y_i) + 1/2 sum_j L_j |V_j|^2 with features f_i, coefficients
V of shape (r, C), counts c_i and prior precisions L_j. It is strictly convex, so there is one
minimum; Newton's steps with backtracking reach it from anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from noisescale.errors import InputError
from noisescale.evidence.linear.families import Array, Family, Labels, product

_MAX_STEPS = 500


@dataclass(frozen=True, eq=False)
class Optimum:
    """The minimum of the cost: coefficients (r, C), and the curvature there.

    ``factor`` is the lower Cholesky factor of the Hessian of the whole cost, prior included, over
    the coefficients in C-major order (output by output).
    """

    coefficients: Array
    nll: float
    penalty: float
    factor: Array
    gradient_norm: float
    newton_decrement: float
    n_steps: int


@dataclass(frozen=True, eq=False)
class Cost:
    """The cost as a function of coefficients V (r, C) and the outputs (N, C) they give."""

    family: Family
    features: Array  # (N, r)
    labels: Labels  # (N,)
    counts: Array  # (N,)
    precisions: Array  # (r,)

    def parts(self, V: Array, outputs: Array) -> tuple[float, float]:
        """The nll and the penalty."""
        nll = self.counts @ self.family.nll(outputs, self.labels)
        return float(nll), float(0.5 * (self.precisions[:, None] * V**2).sum())

    def gradient(self, V: Array, outputs: Array) -> Array:
        """The gradient, output by output."""
        slope = self.family.gradient(outputs, self.labels)
        gradient = product(self.features.T, self.counts[:, None] * slope)  # (r, C)
        return (gradient + self.precisions[:, None] * V).T.ravel()

    def gradient_and_factor(self, V: Array, outputs: Array) -> tuple[Array, Array]:
        """The gradient, and the lower Cholesky factor of the Hessian (its lower triangle)."""
        gradient = self.gradient(V, outputs)
        hessian = self.family.hessian(self.features, self.counts, outputs, self.labels)
        return gradient, self.factor(hessian)

    def factor(self, hessian: Array) -> Array:
        """The lower Cholesky factor of the nll's ``hessian`` plus the prior; overwrites it."""
        hessian[np.diag_indices(len(hessian))] += np.tile(self.precisions, self.family.n_outputs)
        factor, failed = dpotrf(hessian, lower=True, clean=False, overwrite_a=True)
        if failed:
            raise InputError(
                f"the prior (smallest precision {self.precisions.min():.2g}) is lost in the "
                "rounding of the curvature: rescale the features or choose a larger precision."
            )
        return np.asarray(factor)


def minimise(
    cost: Cost,
    *,
    starts: Sequence[Array] = (),
    factor: Array | None = None,
    tolerance: float = 1e-10,
) -> Optimum:
    """Newton from the best of ``starts`` (or zero) until the decrement is at most ``tolerance``.

    (In nats, or in units of the cost where that is below one nat.)

    The determinant, unlike the cost, feels the distance from the minimum to first order, about
    the root of the decrement: one more step follows unless that is below 1e-8 already.

    ``factor`` is that of a Hessian nearby, such as under a slightly different prior, by which a few
    cheap steps come first.
    """
    r, C = cost.features.shape[1], cost.family.n_outputs
    tried = [(V, product(cost.features, V)) for V in (starts or [np.zeros((r, C))])]
    V, outputs = min(tried, key=lambda point: sum(cost.parts(*point)))
    nll, penalty = cost.parts(V, outputs)
    if factor is not None:
        closer = _chord_steps(cost, V, outputs, factor, np.inf, 1e-18 * min(1.0, nll + penalty))
        if sum(cost.parts(*closer)) <= nll + penalty:
            V, outputs = closer
            nll, penalty = cost.parts(V, outputs)
    polished = False
    for n_steps in range(_MAX_STEPS):
        gradient, factor = cost.gradient_and_factor(V, outputs)
        step, decrement = _newton_step(gradient, factor, C)
        # On separable data under a weak prior the whole cost is a millionth of a nat: what counts
        # for the determinant is the decrement in proportion to it.
        scale = min(1.0, nll + penalty)
        close = decrement <= tolerance * scale
        if close and (polished or decrement <= 1e-16 * scale):
            return Optimum(
                V, nll, penalty, factor, float(np.linalg.norm(gradient)), decrement, n_steps
            )
        polished = close
        along = product(cost.features, step)
        size = 1.0
        while True:
            new_V, new_outputs = V + size * step, outputs + size * along
            gain = nll + penalty - sum(cost.parts(new_V, new_outputs))
            # Close to the minimum the gain drowns in rounding, and there Newton needs no search.
            if gain >= 1e-4 * size * decrement or decrement < 1e-6 or size < 1e-12:
                break
            size /= 2
        V, outputs = new_V, new_outputs
        if decrement < 1:
            V, outputs = _chord_steps(cost, V, outputs, factor, decrement, 1e-18 * scale)
        nll, penalty = cost.parts(V, outputs)
    raise RuntimeError(
        f"Newton's method did not converge in {_MAX_STEPS} steps (decrement {decrement:.1e})."
    )


def _newton_step(gradient: Array, factor: Array, n_outputs: int) -> tuple[Array, float]:
    """The step (r, C) that a factorised Hessian suggests, and its decrement."""
    direction = -scipy.linalg.cho_solve((factor, True), gradient, check_finite=False)
    return direction.reshape(n_outputs, -1).T, float(-gradient @ direction)


def _chord_steps(
    cost: Cost, V: Array, outputs: Array, factor: Array, decrement: float, enough: float
) -> tuple[Array, Array]:
    """Steps with the Hessian of the last point, while each divides the decrement by ten or more.

    Near the minimum the Hessian hardly changes, and building and factorising it is nine tenths of
    a Newton step: this finishes the job at a tenth of the price.
    """
    while True:
        gradient = cost.gradient(V, outputs)
        last = decrement
        step, decrement = _newton_step(gradient, factor, V.shape[1])
        if not enough < decrement < 0.1 * last:
            return V, outputs
        V, outputs = V + step, outputs + product(cost.features, step)
