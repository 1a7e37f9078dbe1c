"""Fitting the two-branch law of the best batch size to runs.

The peaks are those of :func:`noisescale.find_peak`, ``corrected``: less the cubic's bias, with the
seeds' noise and the grid in their errors s_i. The constants, and the scatter s of ln B_opt about
the law, maximise the likelihood of ln B_i ~ N(ln B_opt(theta), s_i^2 + s^2). Their intervals come
from a parametric bootstrap: every ln B_i is drawn anew with its s_i, which holds the spread of its
runs, and with s, and the law fitted again. (Drawing the seeds themselves would tell less: three of
them have ten distinct resamples.)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from noisescale.checks import check_number, check_whole
from noisescale.errors import InputError
from noisescale.noise.batch_law import REFERENCE_N, SHARPNESS, BatchSizeLaw, Covariance
from noisescale.seeds import random_stream
from noisescale.sweep.frames import check_frame, check_numbers, check_settings
from noisescale.sweep.peak import Peak, find_peak
from noisescale.uncertainty import Estimate

Array = NDArray[np.float64]

_FIELDS = ["learning_rate", "momentum", "n_train", "steps"]
_STARTS = (0.5, 5.0, 50.0)  # of c: the likelihood may have a second, worse summit
_LEAST_SCATTER = 0.01
_ASSUMED_SCATTER = 0.1  # of ln B_opt, where there are too few peaks to tell
_WIDE = 3.0  # a constant known to no better than this factor either way is not determined


@dataclass(frozen=True)
class LawPoint:
    """A setting of the runs and its best batch size; ``peak.corrected`` is None if it has none."""

    learning_rate: float
    momentum: float
    n_train: int
    steps: int
    peak: Peak


def law_points(frame: pd.DataFrame) -> tuple[LawPoint, ...]:
    """The settings of a frame of runs, learning rates of a cost per example, and their peaks.

    Sizes that were run with fewer seeds than the others, such as a first coarse look, are left out.
    """
    runs = check_frame(frame, (*_FIELDS, "batch_size", "seed", "test_accuracy"))
    check_numbers(runs, "steps", "from 1e-12 to 1e12", lambda v: 1e-12 <= v <= 1e12)
    runs = check_settings(runs)
    points = []
    for values, part in runs.groupby(_FIELDS):
        rate, momentum, n_train, steps = np.array(values, float).tolist()
        seeds = part.groupby("batch_size")["seed"].transform("nunique")
        peak = find_peak(part[seeds == seeds.max()], n_resamples=1)
        points.append(LawPoint(rate, momentum, int(n_train), int(steps), peak))
    return tuple(points)


def fit_batch_size_law(
    frame: pd.DataFrame,
    *,
    power: float | None = None,
    sharpness: float = SHARPNESS,
    n_resamples: int = 200,
) -> BatchSizeLaw:
    """Fit the two-branch law to runs at several settings, each at several batch sizes and seeds.

    Args:
        frame: runs as :func:`noisescale.run_sweep` returns them; what differs besides learning
            rate, momentum, ``n_train``, ``steps``, batch size and seed must be the same in all.
        power: alpha, where it is known and not to be fitted; two settings are then enough, else
            four.
        sharpness: q, which runs hardly determine.
        n_resamples: for the intervals.

    >>> import numpy as np, pandas as pd, noisescale as ns
    >>> def accuracy(u):  # u = ln(B/best): a wall on the noisy side
    ...     return 0.9 - 0.02 * (1 - (1 + 2.2 * u) * np.exp(-2.2 * u))
    >>> rows = [
    ...     {"learning_rate": 0.1, "momentum": 0.9, "n_train": N, "steps": T, "batch_size": B,
    ...      "seed": seed, "status": "done",
    ...      "test_accuracy": accuracy(np.log(B / best)) + 1e-5 * (B * seed % 3)}
    ...     for N, T, best in ((1_000, 10_000, 25), (50_000, 5_000, 150))
    ...     for B in (14, 20, 28, 40, 56, 80, 112, 160, 224, 320) for seed in range(3)
    ...     if 0.5 < B / best < 3
    ... ]
    >>> law = ns.fit_batch_size_law(pd.DataFrame(rows), power=0.25, n_resamples=10)
    >>> law.n_settings, bool(10 < law.scale.value < 30), bool(10 < law.epochs.value < 20)
    (2, True, True)
    """
    sharpness = check_number("sharpness", sharpness, "from 1 to 100", lambda v: 1 <= v <= 100)
    n_resamples = check_whole("n_resamples", n_resamples, at_least=2)
    if power is not None:
        power = check_number("power", power, "from -2 to 2", lambda v: abs(v) <= 2)
    settings = law_points(frame)
    used = [point for point in settings if point.peak.corrected is not None]
    needed = 2 if power is not None else 4
    if len(used) < needed:
        raise InputError(
            f"only {len(used)} of {len(settings)} settings have a best batch size inside the sizes "
            f"tried: {needed} are needed; try more sizes, or more seeds."
        )
    peaks = [point.peak.corrected for point in used]
    logs = np.log([peak.value for peak in peaks if peak is not None])
    errors = np.array([peak.std / peak.value for peak in peaks if peak is not None])
    fit = _Fit(used, sharpness, power)
    best = fit.solve(logs, errors)
    rng = random_stream(0, "batch size law")
    spread = np.sqrt(errors**2 + best.scatter**2)
    draws = np.array(
        [
            fit.solve(logs + spread * rng.standard_normal(len(logs)), errors, near=best).constants
            for _ in range(n_resamples)
        ]
    )
    a, alpha, c = best.constants
    return BatchSizeLaw(
        scale=_between(a, draws[:, 0]),
        power=Estimate(alpha) if power is not None else _between(alpha, draws[:, 1]),
        epochs=_between(c, draws[:, 2]),
        sharpness=sharpness,
        scatter=best.scatter,
        typical_error=float(np.sqrt(np.mean(errors**2))),
        n_settings=len(used),
        notes=tuple(_notes(settings, used, best.constants, draws, power)),
        covariance=_covariance(draws),
    )


@dataclass(frozen=True)
class _Solution:
    constants: tuple[float, float, float]
    scatter: float


class _Fit:
    """The likelihood of the peaks as a function of ln a, alpha, ln c and ln s."""

    def __init__(self, points: list[LawPoint], sharpness: float, power: float | None) -> None:
        self.effective = np.array([p.learning_rate / (1 - p.momentum) for p in points])
        self.sizes = np.log([p.n_train / REFERENCE_N for p in points])
        self.updates = np.log([p.n_train / p.steps for p in points])  # ln N/T
        self.sharpness, self.power = sharpness, power
        # With as many constants as peaks the scatter cannot be told from them.
        self.free_scatter = len(points) > (2 if power is not None else 3) + 1
        self.free = np.array([True, power is None, True, self.free_scatter])

    def solve(self, logs: Array, errors: Array, near: _Solution | None = None) -> _Solution:
        scale = float(np.median(logs - np.log(self.effective) - 0.2 * self.sizes))
        starts = [[scale, 0.2, math.log(c), math.log(0.1)] for c in _STARTS]
        if near is not None:
            a, alpha, c = near.constants
            starts = [[math.log(a), alpha, math.log(c), math.log(max(near.scatter, 0.02))]]
        cost = self._cost(logs, errors)
        options = {"maxiter": 4_000, "maxfev": 4_000, "xatol": 1e-5, "fatol": 1e-7}
        tries = [
            minimize(cost, np.array(at)[self.free], method="Nelder-Mead", options=options)
            for at in starts
        ]
        a, alpha, c, s = self._all(min(tries, key=lambda found: float(found.fun)).x)
        return _Solution((math.exp(a), alpha, math.exp(c)), math.exp(s))

    def _all(self, x: Array) -> tuple[float, float, float, float]:
        """The parameters, of which ``x`` has those that are fitted."""
        given = iter(x.tolist())
        a = next(given)
        alpha = next(given) if self.power is None else self.power
        c = next(given)
        s = next(given) if self.free_scatter else math.log(_ASSUMED_SCATTER)
        return a, alpha, c, max(s, math.log(_LEAST_SCATTER))

    def _cost(self, logs: Array, errors: Array) -> Callable[[Array], float]:
        def cost(x: Array) -> float:
            a, alpha, c, s = self._all(x)
            if abs(alpha) > 3 or abs(c) > 20 or abs(s) > 10:
                return 1e12
            variance = errors**2 + math.exp(2 * s)
            misses = logs - self.predicted(a, alpha, c)
            return float(np.sum(misses**2 / variance + np.log(variance)))

        return cost

    def predicted(self, a: float, alpha: float, c: float) -> Array:
        """ln B_opt at every setting."""
        noise = a + np.log(self.effective) + alpha * self.sizes
        budget = c + self.updates
        joined = np.logaddexp(self.sharpness * noise, self.sharpness * budget) / self.sharpness
        return np.asarray(joined)


def _covariance(draws: Array) -> Covariance:
    """Of ln a, alpha and ln c, in four digits; without the tails, where a branch may be lost."""
    logs = np.column_stack([np.log(draws[:, 0]), draws[:, 1], np.log(draws[:, 2])])
    logs = np.clip(logs, *np.quantile(logs, [0.02, 0.98], axis=0))
    rows = [[float(f"{value:.4g}") for value in row] for row in np.cov(logs.T)]
    first, second, third = ((row[0], row[1], row[2]) for row in rows)
    return first, second, third


def _between(value: float, draws: Array) -> Estimate:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(value, float(np.std(draws, ddof=1)), float(low), float(high))


def _notes(
    settings: tuple[LawPoint, ...],
    used: list[LawPoint],
    constants: tuple[float, float, float],
    draws: Array,
    power: float | None,
) -> Any:
    """What the runs do not determine."""
    if len(used) < len(settings):
        yield f"{len(settings) - len(used)} settings have no top inside the sizes tried"
    a, alpha, c = constants
    noise = np.array(
        [a * p.learning_rate / (1 - p.momentum) * (p.n_train / REFERENCE_N) ** alpha for p in used]
    )
    budget = np.array([c * p.n_train / p.steps for p in used])
    (low_a, high_a), (low_c, high_c) = (np.quantile(draws[:, k], [0.025, 0.975]) for k in (0, 2))
    # The largest c that leaves every setting to the noise.
    below = float(np.min(noise / budget) * c)
    if (budget < noise).all():
        yield (
            "the epoch branch is not determined: no setting is bound by it, so c is only known to "
            f"be below about {below:.2g}; add runs with many examples and few updates"
        )
    elif high_c > low_c * _WIDE**2:
        yield (
            "the epoch branch is hardly determined: c is only known to lie between "
            f"{low_c:.2g} and {high_c:.2g}; add runs with many examples and few updates"
        )
    if (budget > noise).all():
        yield (
            "the noise branch is not determined: every setting is bound by epochs; add runs with "
            "many updates or fewer examples"
        )
    elif high_a > low_a * _WIDE**2:
        yield (
            "the noise branch is hardly determined: a is only known to lie between "
            f"{low_a:.2g} and {high_a:.2g}; add runs with many updates or fewer examples"
        )
    bound = [p.n_train for p, n, b in zip(used, noise, budget, strict=True) if n > b]
    if power is None and not bound:
        yield "alpha is not determined: no setting is bound by noise; give power=, or such runs"
    elif power is None and max(bound) < 2 * min(bound):
        yield (
            "alpha is not determined: the settings bound by noise have about the same number of "
            "examples; give power=, or runs on more of them"
        )
