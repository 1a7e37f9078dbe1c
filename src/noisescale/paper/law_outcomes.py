"""What was measured where the law had predicted, and what that says of slopes against N.

A prediction's miss is the factor max(B/P, P/B) between the measured best batch size B and the
predicted P. Slopes are weighted least squares of ln B on ln N, each point by its peak's error.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from noisescale.paper.law_cases import Case, Prediction
from noisescale.paper.runs import Runs
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
    """Of ln B_opt against ln N for runs of one length: measured, and by the predictions."""

    steps: int
    measured: Estimate
    predicted: float
    misfits: tuple[float, float]  # chi squared of the sizes: by the predictions, by slope 1
    unresolved: int  # settings whose peak does not stand out of the noise

    @property
    def likelihood_ratio(self) -> float:
        """How much likelier the measured slope is under the predictions than under slope 1."""
        off = [(self.measured.value - slope) / self.measured.std for slope in (self.predicted, 1)]
        return _likelier(off[0] ** 2, off[1] ** 2)

    @property
    def likelihood_ratio_of_sizes(self) -> float:
        """The same of the sizes themselves, where slope 1 may go through them at any height."""
        return _likelier(*self.misfits)


def _likelier(misfit: float, other: float) -> float:
    """The ratio of likelihoods from two values of chi squared."""
    return math.exp(min((other - misfit) / 2, 700.0))


def slope_at(outcomes: Sequence[Outcome], steps: int) -> Slope | None:
    """The slope over the judged settings of MNIST with so many updates, and at one learning rate.

    With the errors of the peaks; None if fewer than two of them have a top inside the sizes tried.
    """
    points = [
        (o.case.n_train, o.peak.corrected, o.prediction.value, o.resolved is None)
        for o in outcomes
        if o.case.steps == steps and o.case.data == "mnist" and o.case.role == "judged"
        if o.peak.corrected is not None and o.prediction is not None
    ]
    if len(points) < 2:
        return None
    sizes, peaks, predicted, unresolved = zip(*points, strict=True)
    x, y = np.log(sizes), np.log([peak.value for peak in peaks])
    weights = np.array([(peak.value / peak.std) ** 2 for peak in peaks])
    centred = x - np.average(x, weights=weights)
    design = weights * centred / (weights * centred**2).sum()  # the slope is this times ln B
    std = float(1 / math.sqrt((weights * centred**2).sum()))
    value = float(design @ y)
    measured = Estimate(value, std, value - 1.96 * std, value + 1.96 * std, len(points))
    level = np.average(y - x, weights=weights)  # of the line of slope 1 that is nearest
    misfits = [float(weights @ off**2) for off in (y - np.log(predicted), y - x - level)]
    return Slope(
        steps,
        measured,
        float(design @ np.log(predicted)),
        (misfits[0], misfits[1]),
        sum(unresolved),
    )
