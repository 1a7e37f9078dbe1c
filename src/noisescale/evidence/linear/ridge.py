"""Linear regression with Gaussian noise: the evidence in closed form, and where it is largest.

y = b + X w + noise with precision alpha, w of prior precision lambda, and an intercept b at the
mean of the inputs of prior precision tau. With centred inputs X = U S V' (so that 1' X = 0),
z = U' y and N examples,

    ln P(y) = -N/2 ln 2 pi - 1/2 [ln c + N mean(y)^2/c]
              - 1/2 sum_i [ln v_i + z_i^2/v_i] - 1/2 [(N - 1 - r) ln(1/alpha) + alpha R],

with c = 1/alpha + N/tau, v_i = 1/alpha + s_i^2/lambda, and R what is left of |y - mean(y)|^2.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

from noisescale.errors import InputError
from noisescale.evidence.linear.regression import check_precision

Array = NDArray[np.float64]

_RATIOS = np.geomspace(1e-10, 1e10, 161)  # of lambda/alpha, in units of the mean squared s_i
_SMALLEST = 1e-12  # share of the targets' variance that noise may fall to
_GAIN = 1e-9  # nats: less is rounding


@dataclass(frozen=True, eq=False)
class RidgeProblem:
    """Centred data in the basis of their singular vectors."""

    n: float  # examples, repeats counted
    x_mean: Array  # (d,)
    y_mean: float
    s: Array  # (r,) singular values, above rounding
    basis: Array  # (d, r)
    z: Array  # (r,)
    rest: float  # R
    intercept_precision: float | None  # tau; None without an intercept

    def log_evidence(self, alpha: float, lam: float) -> float:
        """ln P(y) under these precisions."""
        v = 1 / alpha + self.s**2 / lam
        total = self.n * math.log(2 * math.pi) + float(np.log(v).sum() + (self.z**2 / v).sum())
        left = self.n - len(self.s) - (self.intercept_precision is not None)
        total += -left * math.log(alpha) + alpha * self.rest
        return -0.5 * (total + self._constant(alpha))

    def log_null(self, alpha: float) -> float:
        """The same without the features."""
        left = self.n - (self.intercept_precision is not None)
        total = self.n * math.log(2 * math.pi) - left * math.log(alpha)
        total += alpha * (self.rest + float(self.z @ self.z))
        return -0.5 * (total + self._constant(alpha))

    def _constant(self, alpha: float) -> float:
        if self.intercept_precision is None:
            return 0.0
        c = 1 / alpha + self.n / self.intercept_precision
        return math.log(c) + self.n * self.y_mean**2 / c

    @property
    def scatter(self) -> float:
        """|y - mean(y)|^2, or |y|^2 without an intercept."""
        return self.rest + float(self.z @ self.z)


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """The posterior of a ridge regression under its precisions, with its evidence."""

    problem: RidgeProblem
    alpha: float
    lam: float
    log_evidence: float
    log_null: float
    scores: tuple[float, ...] = field(repr=False)  # ln P(y) on the way
    edge: Literal["lowest", "highest"] | None  # of lambda, where the evidence was still rising

    @property
    def coef(self) -> Array:
        """The posterior mean of w (d,)."""
        p = self.problem
        gain = self.alpha * p.s / (self.alpha * p.s**2 + self.lam)
        return np.asarray(p.basis @ (gain * p.z))

    @property
    def intercept(self) -> float:
        """The posterior mean of the output at x = 0."""
        p = self.problem
        if p.intercept_precision is None:
            return 0.0
        shrunk = self.alpha * p.n * p.y_mean / (self.alpha * p.n + p.intercept_precision)
        return float(shrunk - p.x_mean @ self.coef)

    def variance(self, x: Array) -> Array:
        """Of a new target at each row of ``x``, noise included."""
        p = self.problem
        centred = x - p.x_mean
        inside = centred @ p.basis
        outside = np.maximum((centred**2).sum(axis=1) - (inside**2).sum(axis=1), 0.0)
        spread = inside**2 @ (1 / (self.alpha * p.s**2 + self.lam)) + outside / self.lam
        if p.intercept_precision is not None:
            spread = spread + 1 / (self.alpha * p.n + p.intercept_precision)
        return np.asarray(1 / self.alpha + spread)


def ridge_problem(
    x: Array, y: Array, counts: Array, *, fit_intercept: bool, intercept_precision: float | None
) -> RidgeProblem:
    """Centre and decompose; ``counts`` says how often each example was seen, all above 0.

    Without an ``intercept_precision`` the intercept is a priori as large as the targets are.
    """
    n, tau = float(counts.sum()), None
    x_mean, y_mean = np.zeros(x.shape[1]), 0.0
    if fit_intercept:
        x_mean, y_mean = counts @ x / n, float(counts @ y / n)
        tau = intercept_precision
        if tau is None:
            tau = 1 / (float(counts @ y**2 / n) or 1.0)
        else:
            tau = check_precision("intercept_precision", tau)
    weights = np.sqrt(counts)
    left = weights * (y - y_mean)
    U, s, vt = scipy.linalg.svd(weights[:, None] * (x - x_mean), full_matrices=False)
    kept = s > max(x.shape) * np.finfo(float).eps * s.max(initial=0.0)
    z = U[:, kept].T @ left
    rest = max(float(left @ left - z @ z), 0.0)
    return RidgeProblem(n, x_mean, y_mean, s[kept], vt[kept].T, z, rest, tau)


def fit_ridge(
    problem: RidgeProblem, *, alpha: float | None = None, lam: float | None = None
) -> RidgeFit:
    """The posterior under these precisions; what is None is chosen by the evidence."""
    if problem.scatter <= 0 or not len(problem.s):
        what = "the targets are all alike" if problem.scatter <= 0 else "the features are constant"
        if problem.n <= 1:
            what = "there is one sample only"
        raise InputError(f"{what}: there is no evidence to choose precisions by.")
    null = _noise_of_the_null(problem) if alpha is None else alpha
    unit = float(np.mean(problem.s**2))
    edge: Literal["lowest", "highest"] | None = None
    scores: list[float] = []
    if alpha is None or lam is None:
        # The evidence may have several maxima: a grid of one ratio finds the highest.
        ratios = _RATIOS * unit
        pairs = [_along(problem, ratio, alpha, lam) for ratio in ratios]
        values = [problem.log_evidence(*pair) for pair in pairs]
        k = int(np.argmax(values))
        if values[0] >= values[k] - _GAIN:
            edge = "lowest"
        elif values[-1] >= values[k] - _GAIN:
            edge = "highest"
        scores.append(values[k])
        alpha, lam = _polished(problem, pairs[k], alpha, lam, scores)
    value = problem.log_evidence(alpha, lam)
    return RidgeFit(problem, alpha, lam, value, problem.log_null(null), (*scores, value), edge)


def _along(
    problem: RidgeProblem, ratio: float, alpha: float | None, lam: float | None
) -> tuple[float, float]:
    """Precisions with lambda/alpha = ratio; where neither is given, of largest evidence."""
    if alpha is not None:
        return alpha, ratio * alpha
    if lam is not None:
        return lam / ratio, lam
    # Without the intercept's part, alpha has its maximum in closed form.
    weighted = problem.rest + float((problem.z**2 / (1 + problem.s**2 / ratio)).sum())
    left = problem.n - (problem.intercept_precision is not None)
    floor = _SMALLEST * problem.scatter
    best = max(left, 1.0) / max(weighted, floor)
    return best, ratio * best


def _polished(
    problem: RidgeProblem,
    start: tuple[float, float],
    alpha: float | None,
    lam: float | None,
    scores: list[float],
) -> tuple[float, float]:
    """The maximum nearby over the precisions that are free, in their logarithms."""
    free = [k for k, given in enumerate((alpha, lam)) if given is None]
    logs = np.log(start)

    def minus(t: Array) -> float:
        at = logs.copy()
        at[free] = t
        return -problem.log_evidence(*np.exp(at))

    found = scipy.optimize.minimize(
        minus,
        logs[free],
        method="Nelder-Mead",
        bounds=[(value - 2, value + 2) for value in logs[free]],
        callback=lambda t: scores.append(-minus(t)),
        options={"xatol": 1e-7, "fatol": 1e-12, "maxiter": 400},
    )
    logs[free] = found.x
    best = np.exp(logs)
    return float(best[0]), float(best[1])


def _noise_of_the_null(problem: RidgeProblem) -> float:
    """The noise precision of largest evidence for the model without features."""
    guess = math.log(max(problem.n, 1.0) / problem.scatter)
    found = scipy.optimize.minimize_scalar(
        lambda t: -problem.log_null(math.exp(t)), bracket=(guess - 1, guess + 1)
    )
    return math.exp(float(found.x))
