"""How the best batch size goes with the learning rate, the training set or the momentum.

The paper predicts B_opt proportional to epsilon, to N and to 1/(1 - m): lines of slope 1 in log-log
coordinates. Here the slope is fitted, with the errors of each B_opt carried along, and tested.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from noisescale.checks import (
    check_choice,
    check_learning_rate,
    check_momentum,
    check_number,
    check_whole,
)
from noisescale.errors import InputError
from noisescale.notebook import Displayed
from noisescale.sweep.frames import check_frame, check_settings
from noisescale.sweep.peak import Peak, find_peak
from noisescale.uncertainty import Estimate

Array = NDArray[np.float64]

# The quantity that B_opt is to be proportional to, from the field's value.
_ABSCISSA: dict[str, Callable[[float], float]] = {
    "learning_rate": lambda value: value,
    "batch_size": lambda value: value,
    "n_train": lambda value: value,
    "momentum": lambda value: 1 / (1 - value),
}


@dataclass(frozen=True)
class RulePoint:
    """One setting: the field's value, what B_opt should be proportional to, and the peak found."""

    value: float
    x: float
    n_train: int
    peak: Peak

    @property
    def log_std(self) -> float:
        """Standard error of log B_opt; NaN with a single seed."""
        peak = self.peak
        if peak.low is None or peak.high is None:
            return math.nan
        quantile = float(stats.t.ppf(0.975, peak.n_seeds - 1))
        return math.log(peak.high / peak.low) / (2 * quantile)


@dataclass(frozen=True)
class ScalingRule(Displayed):
    """A fitted rule B_opt = c x^slope.

    Attributes:
        over: the field that varied; x is its value, or 1/(1 - m) for the momentum.
        optimum: what was optimised at each value: ``"batch_size"``, or ``"learning_rate"``, which
            then takes the place of B_opt below.
        points: every setting, resolved or not.
        excluded: the values whose peak is undetermined, with the reason.
        slope: of log B_opt against log x; None with fewer than three resolved settings.
        exact_slope: the same for 1/(1/B_opt - 1/N), which g itself makes proportional to x; None
            if the learning rate was optimised.
        p_slope_one: how likely a slope this far from 1 is, if it is 1.
        constant: B_opt/x if the slope is 1.
        optimal_noise_scale: g at the peak, over the resolved settings.
        noise_scale_elsewhere: the same with the interval for one more setting.
        scatter: how much more the points scatter than their errors say (1: as much).
    """

    over: str
    optimum: str
    points: tuple[RulePoint, ...]
    excluded: tuple[tuple[float, str], ...]
    slope: Estimate | None
    exact_slope: Estimate | None
    p_slope_one: float | None
    constant: Estimate | None
    optimal_noise_scale: Estimate | None
    noise_scale_elsewhere: Estimate | None
    scatter: float | None
    _line: "Line | None" = None

    @property
    def n_resolved(self) -> int:
        """How many settings the fit rests on."""
        return sum(point.peak.fitted is not None for point in self.points)

    def predict(self, value: float) -> Estimate:
        """B_opt at another value of the field, along the fitted line."""
        if self.over == "momentum":
            check_momentum(value)
        else:
            check_number(self.over, value, "from 1e-12 to 1e12", lambda v: 1e-12 <= v <= 1e12)
        if self._line is None:
            raise InputError(
                f"only {self.n_resolved} settings have a resolved peak: "
                "three are needed to predict."
            )
        return self._line.predict(math.log(_ABSCISSA[self.over](value)))

    def predict_batch_size(
        self, *, learning_rate: float, n_train: int, momentum: float = 0.0
    ) -> Estimate:
        """B_opt at any setting, if the noise scale at the peak is the same everywhere."""
        if self.noise_scale_elsewhere is None:
            raise InputError("no setting has a resolved peak: there is nothing to predict from.")
        effective = check_learning_rate(learning_rate) / (1 - check_momentum(momentum))
        n_train = check_whole("n_train", n_train, at_least=1)
        sizes = [
            n_train * effective / (g + effective)
            for g in (
                self.noise_scale_elsewhere.value,
                self.noise_scale_elsewhere.high,
                self.noise_scale_elsewhere.low,
            )
        ]
        return _between(*sizes)

    def to_dict(self) -> dict[str, Any]:
        """The values by name."""
        content = {name: value for name, value in asdict(self).items() if name != "_line"}
        estimates = {n: v.to_dict() for n, v in vars(self).items() if isinstance(v, Estimate)}
        return content | estimates

    def __repr__(self) -> str:
        n_settings = self.n_resolved + len(self.excluded)
        head = f"ScalingRule over {self.over}: {self.n_resolved} of {n_settings} settings resolved"
        if self.slope is None:
            return f"{head}; no slope"
        return (
            f"{head}\n  slope {self.slope}, p = {self.p_slope_one:.2g} for slope 1; "
            f"exact form {self.exact_slope}\n"
            f"  best {self.optimum} = {self.constant} x at slope 1; noise scale there "
            f"{self.optimal_noise_scale}"
        )


def fit_scaling_rule(
    frame: pd.DataFrame, over: str, *, optimum: str = "batch_size", n_resamples: int = 2_000
) -> ScalingRule:
    """Fit how B_opt goes with ``over``: ``"learning_rate"``, ``"n_train"`` or ``"momentum"``.

    Args:
        frame: runs as :func:`run_sweep` returns them, at several batch sizes for each value of
            ``over``, all else equal but for the seed and the number of steps. Learning rates of
            ``cost_convention="per_class"`` are divided by the number of classes: all that comes
            back is of a cost per example.
        over: the field.
        optimum: ``"learning_rate"`` to fit the best learning rate instead of the best batch size.
        n_resamples: for the interval of each peak.

    Settings whose peak is undetermined, or at the edge of the sizes tried, are left out and
    counted. The slope's interval uses Student's t, and is widened if the points scatter more than
    their own errors.
    """
    check_choice("over", over, _ABSCISSA)
    check_choice("optimum", optimum, ("batch_size", "learning_rate"))
    if over == optimum:
        raise InputError(f"{over} cannot be both varied and optimised: choose another.")
    check_frame(frame, ("learning_rate", "batch_size", "momentum", "n_train"))
    frame = check_settings(frame)
    points = tuple(
        RulePoint(
            float(value),  # type: ignore[arg-type]
            _ABSCISSA[over](float(value)),  # type: ignore[arg-type]
            int(part["n_train"].iloc[0]),
            find_peak(part, over=optimum, n_resamples=n_resamples),
        )
        for value, part in frame.groupby(over)
        if (part["status"] != "failed").any()
    )
    used = [point for point in points if point.peak.fitted is not None]
    excluded = tuple(
        (point.value, point.peak.undetermined or "") for point in points if point not in used
    ) + tuple(
        (float(value), "every run failed")  # type: ignore[arg-type]
        for value, part in frame.groupby(over)
        if (part["status"] == "failed").all()
    )
    noise, elsewhere = (
        _typical_noise_scale(frame, over, optimum, used, another=another)
        for another in (False, True)
    )
    if len(used) < 3:
        return ScalingRule(
            over, optimum, points, excluded, None, None, None, None, noise, elsewhere, None
        )
    x = np.log([point.x for point in used])
    B = np.array([point.peak.fitted for point in used], float)
    N = np.array([point.n_train for point in used], float)
    errors = np.array([point.log_std for point in used])
    if np.ptp(x) < 1e-6:
        raise InputError(f"the values of {over} are too close together to fit a slope.")
    line = fit_line(x, np.log(B), errors)
    exact = None
    if optimum == "batch_size":  # d log y/d log B = N/(N - B)
        exact = fit_line(x, np.log(1 / (1 / B - 1 / N)), errors * N / (N - B))
    return ScalingRule(
        over=over,
        optimum=optimum,
        points=points,
        excluded=excluded,
        slope=line.slope,
        exact_slope=exact.slope if exact else None,
        p_slope_one=line.p_value(1.0),
        constant=_geometric_mean(np.log(B) - x, errors),
        optimal_noise_scale=noise,
        noise_scale_elsewhere=elsewhere,
        scatter=line.scatter,
        _line=line,
    )


@dataclass(frozen=True)
class Line:
    """A weighted straight line, its covariance, and how the points scatter about it."""

    coefficients: Array  # intercept, slope
    covariance: Array
    scatter: float
    typical_error: float
    freedom: int

    @property
    def slope(self) -> Estimate:
        """With its interval by Student's t."""
        std = math.sqrt(self.covariance[1, 1])
        half = float(stats.t.ppf(0.975, self.freedom)) * std
        middle = float(self.coefficients[1])
        return Estimate(middle, std, middle - half, middle + half)

    def p_value(self, slope: float) -> float:
        """How likely a slope this far from ``slope`` is, if that is the true one."""
        distance = float(self.coefficients[1]) - slope
        if self.covariance[1, 1] == 0:  # points without noise, exactly on a line
            return float(distance == 0)
        z = distance / math.sqrt(self.covariance[1, 1])
        return float(2 * stats.t.sf(abs(z), self.freedom))

    def predict(self, x: float) -> Estimate:
        """What a new measurement like the others would give at ``x``."""
        at = np.array([1.0, x])
        variance = at @ self.covariance @ at + self.typical_error**2
        half = stats.t.ppf(0.975, self.freedom) * math.sqrt(variance)
        middle = float(at @ self.coefficients)
        return _between(*np.exp([middle, middle - half, middle + half]).tolist())


def _between(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, low=low, high=high)


def fit_line(x: Array, y: Array, errors: Array) -> Line:
    """The line through points with these errors; equal weights if an error is not known."""
    freedom = len(x) - 2
    known = bool(np.isfinite(errors).all() and (errors > 0).all())
    weights = 1 / errors if known else np.ones(len(x))
    design = np.column_stack([np.ones(len(x)), x])
    inverse = np.linalg.inv((design * weights[:, None] ** 2).T @ design)
    coefficients = inverse @ (design * weights[:, None] ** 2).T @ y
    residuals = weights * (y - design @ coefficients)
    scatter = math.sqrt(float(residuals @ residuals) / freedom)
    # Errors that are known may be too small, and are then scaled up, never down.
    factor = max(1.0, scatter) if known else scatter
    typical = factor * float(np.sqrt(np.mean(1 / weights**2)))
    covariance = np.asarray(inverse * factor**2, float)
    return Line(coefficients, covariance, scatter, typical, freedom)


def _geometric_mean(logs: Array, errors: Array, *, another: bool = False) -> Estimate:
    """exp of the weighted mean of ``logs``, with an interval from their own scatter.

    With ``another``, the interval is for one more value like these.
    """
    known = bool(np.isfinite(errors).all() and (errors > 0).all())
    weights = 1 / errors**2 if known else np.ones(len(logs))
    mean = float(weights @ logs / weights.sum())
    if len(logs) < 2:
        return Estimate(math.exp(mean))
    spread = math.sqrt(float(weights @ (logs - mean) ** 2 / weights.sum() / (len(logs) - 1)))
    error = max(spread, 1 / math.sqrt(weights.sum())) if known else spread
    if another:
        error *= math.sqrt(len(logs) + 1)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return _between(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _typical_noise_scale(
    frame: pd.DataFrame, over: str, optimum: str, used: list[RulePoint], *, another: bool
) -> Estimate | None:
    """g at the peaks, which lie between the sizes that were run."""
    if not used:
        return None
    logs = []
    for point in used:
        row = frame[frame[over] == point.value].iloc[0]
        at = {"learning_rate": float(row["learning_rate"]), "batch_size": float(row["batch_size"])}
        assert point.peak.fitted is not None
        at[optimum] = point.peak.fitted
        effective = at["learning_rate"] / (1 - float(row["momentum"]))
        noise_scale = effective * (point.n_train / at["batch_size"] - 1)
        if noise_scale <= 0:  # full batches make no noise
            return None
        logs.append(math.log(noise_scale))
    errors = np.array([point.log_std for point in used])
    return _geometric_mean(np.array(logs), errors, another=another)
