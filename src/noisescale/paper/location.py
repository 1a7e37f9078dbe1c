"""A model with two parameters and several minima, whose local evidences quadrature knows.

Where is a thing that nine readings of three instruments place differently? Each reading y_i has
errors with the tails of a two-dimensional Cauchy distribution of known width s_i,

    C(w) = sum_i [ln(2 pi s_i^2) + 3/2 ln(1 + |w - y_i|^2/s_i^2)] + lambda/2 |w|^2:

two precise readings make a deep and sharp minimum, five coarse ones a broad and shallower one, and
two in between a third.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from noisescale.evidence import log_evidence

Array = NDArray[np.float64]

PRIOR_PRECISION = 0.05
NAMES = ("sharp", "broad", "third")
_INSTRUMENTS = (((-2.0, -1.0), 2, 0.25), ((2.0, 0.0), 5, 1.5), ((-1.5, 2.5), 2, 0.4))
_EXTENT = 6.0  # beyond it the posterior holds less than 1e-9
_FLOW_STEP = 0.008  # below one over the largest curvature
_ARRIVED = 0.1  # this near a minimum, gradient flow ends there


def _readings() -> tuple[Array, Array]:
    """Positions (N, 2) and widths (N,): readings on circles of half their instrument's width."""
    positions, widths = [], []
    for centre, n, width in _INSTRUMENTS:
        angles = 2 * np.pi * np.arange(n) / n
        positions.append(centre + width / 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1))
        widths.append(np.full(n, width))
    return np.concatenate(positions), np.concatenate(widths)


POSITIONS, WIDTHS = _readings()
N_READINGS = len(WIDTHS)


def nlls(w: Array) -> Array:
    """Each reading's negative log-likelihood at ``w`` (..., 2): (..., N)."""
    squares = np.sum((w[..., None, :] - POSITIONS) ** 2, axis=-1)
    return np.asarray(np.log(2 * math.pi * WIDTHS**2) + 1.5 * np.log1p(squares / WIDTHS**2))


def cost(w: Array) -> Array:
    """The paper's C at ``w`` (..., 2)."""
    penalty = 0.5 * PRIOR_PRECISION * np.sum(w**2, axis=-1)
    return np.asarray(np.sum(nlls(w), axis=-1) + penalty)


def slopes(w: Any) -> Any:
    """The gradient of each reading's negative log-likelihood, of NumPy or JAX: (..., N, 2)."""
    away = w[..., None, :] - POSITIONS
    squares = (away**2).sum(axis=-1, keepdims=True)
    return 3 * away / (WIDTHS[:, None] ** 2 + squares)


def gradient(w: Any) -> Any:
    """The gradient of C at ``w`` (..., 2)."""
    return slopes(w).sum(axis=-2) + PRIOR_PRECISION * w


@dataclass(frozen=True)
class Minimum:
    """A minimum with its local evidence: by quadrature over its basin, and by Laplace."""

    name: str
    position: Array
    cost: float
    log_evidence: float
    laplace: float  # ln evidence


@dataclass(frozen=True)
class Landscape:
    """The minima, and the posterior on a grid with the basin of every point."""

    minima: tuple[Minimum, ...]
    axis: Array
    costs: Array  # (n, n)
    basins: NDArray[np.int64]  # (n, n)

    def probabilities(self, temperature: float = 1.0) -> Array:
        """The share of exp(-C/T) in each basin."""
        weights = np.exp(-(self.costs - self.costs.min()) / temperature)
        shares = np.bincount(self.basins.ravel(), weights.ravel(), len(self.minima))
        return np.asarray(shares / shares.sum())


def cost_grid(n_grid: int) -> tuple[Array, Array]:
    """The points along a side, and C on the square of them."""
    axis = np.linspace(-_EXTENT, _EXTENT, n_grid)
    return axis, cost(np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1))


def survey(n_grid: int = 301) -> Landscape:
    """Minima by descent, basins by gradient flow, evidences by quadrature."""
    axis, costs = cost_grid(n_grid)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)  # (n, n, 2)
    positions = np.array([_minimum(np.array(centre)) for centre, _, _ in _INSTRUMENTS])
    basins = basin_of(grid.reshape(-1, 2), positions).reshape(n_grid, n_grid)
    log_cell = 2 * math.log(axis[1] - axis[0])
    log_prior = math.log(PRIOR_PRECISION / (2 * math.pi))
    minima = tuple(
        Minimum(
            name=name,
            position=position,
            cost=float(cost(position)),
            log_evidence=math.log(np.exp(-costs[basins == k]).sum()) + log_cell + log_prior,
            laplace=_laplace(position),
        )
        for k, (name, position) in enumerate(zip(NAMES, positions, strict=True))
    )
    return Landscape(minima, axis, costs, basins)


def basin_of(points: Array, minima: Array) -> NDArray[np.int64]:
    """The minimum that gradient flow reaches from each of the ``points`` (n, 2)."""
    found = np.full(len(points), -1)
    w, under_way = np.array(points, float), np.arange(len(points))
    while len(under_way):
        for _ in range(20):
            w -= _FLOW_STEP * gradient(w)
        squares = np.sum((w[:, None] - minima) ** 2, axis=2)  # (n, minima)
        near = squares.min(axis=1) < _ARRIVED**2
        found[under_way[near]] = squares[near].argmin(axis=1)
        w, under_way = w[~near], under_way[~near]
    return found


def _minimum(start: Array) -> Array:
    found = scipy.optimize.minimize(cost, start, jac=gradient, method="BFGS", tol=1e-10)
    return np.asarray(found.x)


def _apply(w: jax.Array, widths: jax.Array) -> jax.Array:
    return jnp.column_stack([jnp.broadcast_to(w, (len(widths), 2)), widths])


def _nll(outputs: jax.Array, positions: jax.Array) -> jax.Array:
    widths = outputs[:, 2]
    squares = jnp.sum((outputs[:, :2] - positions) ** 2, axis=1)
    return jnp.log(2 * math.pi * widths**2) + 1.5 * jnp.log1p(squares / widths**2)


def _laplace(position: Array) -> float:
    return log_evidence(
        _apply,
        position,
        (WIDTHS[:, None], POSITIONS),
        prior_precision=PRIOR_PRECISION,
        likelihood=_nll,
        curvature="hessian",
        method="dense",
        at="point",
    ).log_evidence
