"""What was measured where the law had predicted, and what that says of slopes against N.

A prediction's miss is the factor max(B/P, P/B) between the measured best batch size B and the
predicted P. Slopes are weighted least squares of ln B on ln N, each point by its peak's error.
Errors come from few seeds, so that what is off by several of them is judged by Student's t, with a
degree of freedom less than there are seeds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from noisescale.paper.law_cases import Case, Prediction
from noisescale.paper.runs import Array, Runs
from noisescale.sweep.peak import Peak, find_peak
from noisescale.uncertainty import Estimate


@dataclass(frozen=True)
class Outcome:
    """A setting: its best batch size, and what was predicted for it, if anything."""

    case: Case
    peak: Peak
    prediction: Prediction | None

    @property
    def resolved(self) -> Estimate | None:
        """The best batch size; None if the runs do not resolve it."""
        return self.peak.corrected if self.peak.undetermined is None else None

    @property
    def span(self) -> tuple[float, float]:
        """The measured best batch size, twice; or the best observed size's neighbours."""
        if (top := self.resolved) is not None:
            return top.value, top.value
        return self.peak.best_low, self.peak.best_high

    @property
    def miss(self) -> float | None:
        """The factor between prediction and measurement, at least 1; None without a prediction.

        A peak that is not resolved is anywhere between the neighbours of the best observed size.
        """
        if self.prediction is None:
            return None
        low, high = self.span
        return max(low / self.prediction.value, self.prediction.value / high, 1.0)

    @property
    def miss_of_top(self) -> float | None:
        """The same of the top itself, resolved or not: what the neighbours leave room for."""
        if self.prediction is None or (top := self.peak.corrected) is None:
            return None
        return max(top.value / self.prediction.value, self.prediction.value / top.value)

    @property
    def measured(self) -> str:
        """The best batch size in words."""
        if (top := self.resolved) is not None:
            return str(top)
        return "between {:g} and {:g}, not resolved".format(*self.span)


def outcomes_of(
    cases: Iterable[Case], runs: Runs, predictions: Iterable[Prediction]
) -> tuple[Outcome, ...]:
    """What was measured at each setting, beside its prediction."""
    predicted = {prediction.case: prediction for prediction in predictions}
    return tuple(Outcome(case, _peak(runs, case), predicted.get(case)) for case in cases)


def _peak(runs: Runs, case: Case) -> Peak:
    these = runs.where(
        learning_rate=case.learning_rate,
        momentum=case.momentum,
        n_train=case.n_train,
        steps=case.steps,
    ).frame
    width = these["hidden_widths"].map(tuple) == case.hidden_widths
    return find_peak(these[width])


@dataclass(frozen=True)
class Slope:
    """Of ln B_opt against ln N for runs of one length: measured, and by the predictions.

    Attributes:
        likelihood_ratio: how much likelier the measured slope is under the predictions than under
            slope 1, and ``likelihood_ratio_of_sizes`` the sizes themselves, where slope 1 may go
            through them at any height.
        unresolved: settings whose peak does not stand out of the noise.
    """

    steps: int
    measured: Estimate
    predicted: float
    likelihood_ratio: float
    likelihood_ratio_of_sizes: float
    unresolved: int


def slope_at(outcomes: Sequence[Outcome], steps: int) -> Slope | None:
    """The slope over the judged settings with so many updates.

    With the errors of the peaks; None if fewer than two of them have a top inside the sizes tried.
    """
    points = [
        (o.case.n_train, o.peak.corrected, o.prediction.value, o.resolved is None)
        for o in outcomes
        if o.case.steps == steps and o.case.role == "judged"
        if o.peak.corrected is not None and o.prediction is not None
    ]
    if len(points) < 2:
        return None
    sizes, peaks, predicted, unresolved = zip(*points, strict=True)
    freedom = min(o.peak.n_seeds for o in outcomes if o.case.steps == steps) - 1
    x, y = np.log(sizes), np.log([peak.value for peak in peaks])
    error = np.array([peak.std / peak.value for peak in peaks])
    centred = x - np.average(x, weights=error**-2)
    std = float((centred**2 / error**2).sum() ** -0.5)
    design = centred / error**2 * std**2  # the slope is this times ln B
    value, by_law = float(design @ y), float(design @ np.log(predicted))
    reach = std * float(stats.t.isf(0.025, freedom))

    def log_likelihood(off: Array) -> Array:
        return np.asarray(stats.t.logpdf(off, freedom).sum(axis=-1))

    law, one = (log_likelihood(np.array([(value - slope) / std])) for slope in (by_law, 1))
    heights = np.linspace((y - x).min(), (y - x).max(), 2_001)[:, None]
    law_of_sizes = log_likelihood((y - np.log(predicted)) / error)
    one_of_sizes = log_likelihood((y - x - heights) / error).max()
    return Slope(
        steps,
        Estimate(value, std, value - reach, value + reach, len(points)),
        by_law,
        float(np.exp(law - one)),
        float(np.exp(law_of_sizes - one_of_sizes)),
        sum(unresolved),
    )
