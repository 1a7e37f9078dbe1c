"""How far the top of the cubic is from the top of the curve, measured on curves that are known.

Accuracy falls off a wall on the noisy side of its peak and levels out on the other. Over all
settings of figures 5 to 7 it follows, with u = ln(B/B_opt) and one k for all,

    accuracy = best - depth (1 - (1 + k u) exp(-k u)),

which a cubic cannot follow: its top lies too far to one side, by how much depends on where the
sizes tried happen to lie. So the curve that was measured is made again from this shape many times,
its top shifted between the sizes, the seeds' noise drawn anew, and k drawn from about the one seen
(more often if the curve goes well with it), and the same cubic is fitted to each: the mean of what
it misses by is its bias, the spread its standard error.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from noisescale.seeds import random_stream

Array = NDArray[np.float64]

SHAPE = 2.2  # k: from the shipped runs, see tests/sweep/test_peak_error.py
_SHAPES = tuple(SHAPE * factor for factor in (0.6, 0.77, 1.0, 1.3, 1.67))  # other tasks' may differ
_N_CURVES = 200
_FAITHFUL = 0.03  # of a curve's range: no better than that does the shape describe it
_SHARE = 0.8  # of the curves made again that must have their top inside


@dataclass(frozen=True)
class PeakError:
    """In logarithms: what to subtract from the top, its standard error, and the 95 % reach."""

    bias: float
    std: float
    reach: float


def shape(u: Array, k: float = SHAPE) -> Array:
    """How far below its best the accuracy is at u = ln(B/B_opt), in units of the depth."""
    u = np.maximum(u, -20 / k)  # the wall is high enough there
    return np.asarray(1 - (1 + k * u) * np.exp(-k * u))


def measure_error(
    log_sizes: Array,
    values: Array,
    near: NDArray[np.bool_],
    top_of: Callable[[Array], float | None],
) -> PeakError | None:
    """The error of ``top_of``, which takes a mean curve to its top; None if it has none.

    ``values`` is seeds by sizes; ``near`` says which sizes train about as well as the best.
    """
    n_seeds, mean = len(values), values.mean(axis=0)
    if n_seeds < 2 or near.sum() < 3:
        return None
    noise = np.zeros(len(mean))
    noise[near], freedom = _noise(values[:, near])
    rng = random_stream(0, "peak error")
    errors = np.hypot(noise, max(_FAITHFUL * float(np.ptp(mean[near])), 1e-12))
    fits = [_fit(log_sizes, mean, near, errors, k) for k in _SHAPES]
    least = min(fit.misfit for fit in fits)
    likely = np.array([np.exp((least - fit.misfit) / 2) for fit in fits])
    misses = []
    for which in rng.choice(len(fits), _N_CURVES, p=likely / likely.sum()):
        fit = fits[which]
        place = fit.centre + rng.uniform(-0.5, 0.5) * fit.spacing
        # Off the top's neighbourhood the curve stays as measured: the wall's height is no matter.
        curve = np.where(near, fit.curve(log_sizes, place), mean)
        top = top_of(curve + noise * rng.standard_normal(len(mean)))
        if top is not None:
            misses.append(top - place)
    if len(misses) < _SHARE * _N_CURVES:
        return None
    bias, std = float(np.mean(misses)), float(np.std(misses, ddof=1))
    if abs(bias) > max(fit.spacing for fit in fits):  # too flat for its top to be the cubic's
        return None
    return PeakError(bias, std, float(stats.t.ppf(0.975, freedom)) * std)


@dataclass(frozen=True)
class _Fit:
    """The shape fitted to a mean curve: where its top is, and how far apart the sizes are there."""

    k: float
    centre: float
    best: float
    depth: float
    misfit: float  # chi squared
    spacing: float

    def curve(self, log_sizes: Array, place: float) -> Array:
        """The same with its top elsewhere."""
        return self.best - self.depth * shape(log_sizes - place, self.k)


def _fit(log_sizes: Array, mean: Array, near: NDArray[np.bool_], noise: Array, k: float) -> _Fit:
    """Weighted least squares at many places of the top at once; the best of them."""
    x, y, weights = log_sizes[near], mean[near], 1 / noise[near] ** 2
    places = np.linspace(x[0], x[-1], 81)
    below = -shape(x - places[:, None], k)  # (places, sizes)
    total = weights.sum()
    centred = below - (below @ weights / total)[:, None]
    depths = centred @ (weights * y) / np.maximum((centred**2) @ weights, 1e-300)
    depths = np.maximum(depths, 0.0)
    rests = y - (y @ weights / total) - depths[:, None] * centred
    misfits = (rests**2) @ weights
    at = int(np.argmin(misfits))
    best = float((y - depths[at] * below[at]) @ weights / total)
    nearest = int(np.argmin(np.abs(log_sizes - places[at])))
    spacing = float(np.diff(log_sizes)[max(nearest - 1, 0) : nearest + 1].mean())
    return _Fit(k, float(places[at]), best, float(depths[at]), float(misfits[at]), spacing)


def _noise(values: Array) -> tuple[Array, int]:
    """The standard error of each mean over seeds, beyond what a seed adds to all sizes alike.

    A few seeds hardly tell a size's own spread, and at the wall it is far larger than behind the
    peak: each size is pooled with its neighbours.
    """
    n_seeds, n_sizes = values.shape
    seeds = np.median(values - values.mean(axis=0), axis=1, keepdims=True)
    variances = (values - seeds).var(axis=0, ddof=1) * n_sizes / (n_sizes - 1)
    counted = np.ones(n_sizes)
    pooled = np.convolve(variances, np.ones(3), "same") / np.convolve(counted, np.ones(3), "same")
    return np.sqrt(pooled / n_seeds), (n_seeds - 1) * (n_sizes - 1)
