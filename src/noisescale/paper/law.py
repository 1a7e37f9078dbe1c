"""The law of the best batch size: what it predicted, and what was measured afterwards."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.data import DataUnavailableError, load_fashion_mnist
from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.noise.batch_law import PAPER_LAW, BatchSizeLaw
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.law_cases import CASES, FASHION, Case, Prediction, read_predictions
from noisescale.paper.runs import Runs, short
from noisescale.paper.scaling import run_until_interior
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.style import plain_log
from noisescale.sweep.batch_law import fit_batch_size_law
from noisescale.sweep.peak import Peak, find_peak

_SMALL = {
    "smoke": (Case(1.0, 0.9, 500, 100),),
    "quick": (Case(1.0, 0.9, 2_000, 1_000), Case(1.0, 0.9, 10_000, 1_000)),
}
_FACTOR, _FAR = 1.5, 2.0  # how far off a prediction may be, and how far none may be
_ENOUGH = 8  # of nine


@dataclass(frozen=True)
class Data(Measured):
    """Runs at the settings of the predictions, and the predictions as they stood.

    ``fashion``: the same on Fashion-MNIST, its calibrating settings first; None if the data were
    not there, and ``missing`` says why.
    """

    cases: list[Case]
    runs: Runs
    fashion_cases: list[Case]
    fashion: Runs | None
    predictions: list[Prediction]
    missing: list[str]

    @cached_property
    def outcomes(self) -> "tuple[Outcome, ...]":
        """What was measured at each setting, beside its prediction."""
        pairs = [(case, self.runs) for case in self.cases]
        if self.fashion is not None:
            pairs += [(case, self.fashion) for case in self.fashion_cases]
        predicted = {prediction.case: prediction for prediction in self.predictions}
        return tuple(Outcome(case, _peak(runs, case), predicted.get(case)) for case, runs in pairs)


@dataclass(frozen=True)
class Outcome:
    """A setting: its best batch size, and what was predicted for it, if anything."""

    case: Case
    peak: Peak
    prediction: Prediction | None

    @property
    def miss(self) -> float | None:
        """The factor between prediction and measurement, at least 1; None without a prediction.

        A peak that is not resolved is anywhere between the neighbours of the best observed size.
        """
        if self.prediction is None:
            return None
        low, high = self.peak.best_low, self.peak.best_high
        if self.peak.undetermined is None and self.peak.corrected is not None:
            low = high = self.peak.corrected.value
        return max(low / self.prediction.value, self.prediction.value / high, 1.0)

    @property
    def measured(self) -> str:
        """The best batch size in words."""
        if self.peak.undetermined is None and self.peak.corrected is not None:
            return str(self.peak.corrected)
        return f"between {self.peak.best_low:g} and {self.peak.best_high:g}, not resolved"


def _peak(runs: Runs, case: Case) -> Peak:
    these = runs.where(
        learning_rate=case.learning_rate,
        momentum=case.momentum,
        n_train=case.n_train,
        steps=case.steps,
    ).frame
    width = these["hidden_widths"].map(tuple) == case.hidden_widths
    return find_peak(these[width])


def measure(context: Context) -> Data:
    """Search around the best batch size at every setting that was predicted."""
    cases = list(CASES if context.scale == "full" else _SMALL[context.scale])
    starts = [case.setting(PAPER_LAW.predict(**case.at).value) for case in cases]
    runs = run_until_interior(context, starts)
    predictions = list(read_predictions())
    fashion_cases, fashion, missing = [], None, []
    if context.scale == "full":
        try:
            elsewhere = replace(context, data=load_fashion_mnist())
        except DataUnavailableError as error:
            missing.append(f"Fashion-MNIST was not tried: {error}")
        else:
            written = {p.case for p in predictions}
            fashion_cases = [c for c in FASHION if c.role == "calibrating" or c in written]
            starts = [c.setting(PAPER_LAW.predict(**c.at).value) for c in fashion_cases]
            fashion = run_until_interior(elsewhere, starts)
    return Data(context.at, cases, runs, fashion_cases, fashion, predictions, missing)


def calibrated(data: Data) -> BatchSizeLaw | None:
    """The law for Fashion-MNIST: a and c from its calibrating runs, the power as it was."""
    if data.fashion is None:
        return None
    frame = data.fashion.frame
    settings = [(c.n_train, c.steps) for c in data.fashion_cases if c.role == "calibrating"]
    chosen = [(n, t) in settings for n, t in zip(frame["n_train"], frame["steps"], strict=True)]
    return fit_batch_size_law(frame[chosen], power=PAPER_LAW.power.value)


def judge(data: Data) -> Findings:
    """How far off the predictions were."""
    return Findings(
        statement=(
            "The paper's rule has the best batch size proportional to the size of the training "
            "set. The runs above say otherwise, and suggest a law with two branches: "
            "B^4 = [a ε/(1 - m) (N/1000)^α]^4 + [c N/T]^4, what the noise allows and what T "
            "updates can fit. It was fitted to figures 5, 6 and 7 and then made to predict; the "
            "table of predictions was committed before the runs that test it."
        ),
        judgements=(
            _judge(data, "C45", "mnist", most=_ENOUGH),
            _judge(data, "C46", "fashion-mnist", most=None),
        ),
        measurements=tuple(_measurements(data)),
        remarks=tuple(data.missing),
    )


def _judge(data: Data, claim: str, source: str, *, most: int | None) -> Judgement:
    """Whether the predictions on one data set came true: ``most`` of them, or all."""
    outcomes = [
        o
        for o in data.outcomes
        if o.case.data == source and o.case.role == "judged" and o.miss is not None
    ]
    wanted = sum(case.role == "judged" for case in (CASES if source == "mnist" else FASHION))
    misses = [o.miss for o in outcomes if o.miss is not None]
    near = sum(miss <= _FACTOR for miss in misses)
    parts: list[bool | None] = [near >= (most or wanted)]
    if most is not None:
        parts.append(all(miss <= _FAR for miss in misses))
    return conclude(
        claim,
        parts,
        decidable=data.at.decidable and len(misses) == wanted,
        measured={
            f"within a factor of {_FACTOR:g}": f"{near} of {len(misses)}",
            "largest factor": short(max(misses)) if misses else None,
        },
        uncertainty={"peaks not resolved": sum(o.peak.undetermined is not None for o in outcomes)},
    )


def _measurements(data: Data) -> Iterator[Measurement]:
    law = PAPER_LAW
    yield Measurement(
        "a, α, c of the law",
        f"{law.scale}, {law.power}, {law.epochs} epochs",
        f"{law.n_settings} peaks of figures 5, 6 and 7; ε in the usual unit",
    )
    for outcome in data.outcomes:
        case, said = outcome.case, outcome.prediction
        width = "" if case.hidden_widths == (800,) else f", width {case.hidden_widths[0]}"
        where = f"ε = {case.learning_rate:g}, m = {case.momentum:g}, N = {case.n_train:,}"
        told = (
            "not predicted"
            if said is None
            else f"predicted {said.value:.3g} [{said.low:.3g}, {said.high:.3g}] by {said.branch}"
        )
        yield Measurement(
            f"B_opt at {where}, T = {case.steps:,}{width}",
            f"{outcome.measured}; {told}",
            f"{outcome.peak.n_seeds} seeds, {case.data}, {case.role}",
        )


def draw(data: Data) -> tuple[Picture, ...]:
    """Predicted against measured."""
    shown = [o for o in data.outcomes if o.prediction is not None]
    if not shown:
        return ()
    with house_style():
        figure = Figure(figsize=(6, 4.6), layout="constrained")
        axes = figure.add_subplot()
        for outcome in shown:
            _draw_outcome(axes, outcome)
        ends = [1.0, 1_000.0]
        axes.plot(ends, ends, color="grey", linewidth=1)
        for factor in (1 / _FACTOR, _FACTOR):
            axes.plot(ends, [end * factor for end in ends], ":", color="grey", linewidth=1)
        sizes = [o.prediction.value for o in shown if o.prediction is not None]
        axes.set(xscale="log", yscale="log", xlabel="predicted B", ylabel="measured best B")
        axes.set(xlim=(min(sizes) / 2, max(sizes) * 2), ylim=(min(sizes) / 2, max(sizes) * 2))
        plain_log(axes.xaxis)
        plain_log(axes.yaxis)
        axes.legend(fontsize=8)
        svg = to_svg(figure)
    told = "; ".join(
        f"{o.prediction.value:.3g} predicted, {o.measured}" for o in shown if o.prediction
    )
    return (
        Picture(
            name="law",
            svg=svg,
            caption="Best batch sizes, predicted before the runs and measured. Bars are 95 % "
            "intervals, hollow points best observed sizes of peaks that are not resolved, with "
            "their neighbours. Dotted: a factor of 1.5 either way.",
            alt=f"Scatter chart of measured against predicted best batch sizes: {told}.",
        ),
    )


def _draw_outcome(axes: Axes, outcome: Outcome) -> None:
    said, peak = outcome.prediction, outcome.peak
    assert said is not None
    kinds = {"mnist": 0, "fashion-mnist": 1}
    colour = COLOURS[2 if outcome.case.role == "reported" else kinds[outcome.case.data]]
    label = "MNIST" if outcome.case.data == "mnist" else "Fashion-MNIST"
    if outcome.case.role == "reported":
        label = "another width"
    if label in axes.get_legend_handles_labels()[1]:
        label = "_" + label
    resolved = peak.undetermined is None and peak.corrected is not None
    y = peak.corrected.value if resolved and peak.corrected else peak.best
    low, high = peak.best_low, peak.best_high
    if resolved and peak.corrected:
        low, high = peak.corrected.low, peak.corrected.high
    axes.errorbar(
        said.value,
        y,
        xerr=[[said.value - said.low], [said.high - said.value]],
        yerr=[[max(y - low, 0)], [max(high - y, 0)]],
        fmt="o",
        color=colour,
        markerfacecolor=colour if resolved else "white",
        label=label,
        linewidth=1,
    )


def _log_variance(peak: Peak) -> float:
    assert peak.corrected is not None
    return (peak.corrected.std / peak.corrected.value) ** 2


def likelihood_ratio(data: Data) -> float | None:
    """How much likelier the peaks of the longest runs are under the law than under slope 1.

    Of ln(B at the largest N over B at the smallest), with the errors of both peaks; None while
    they are not resolved.
    """
    longest = max(case.steps for case in data.cases)
    ends = [
        o
        for o in data.outcomes
        if o.case.steps == longest and o.case.data == "mnist" and o.case.role == "judged"
    ]
    ends.sort(key=lambda o: o.case.n_train)
    if len(ends) < 2:
        return None
    first, last = ends[0], ends[-1]
    if not (first.prediction and last.prediction and first.peak.corrected and last.peak.corrected):
        return None
    measured = math.log(last.peak.corrected.value / first.peak.corrected.value)
    law = math.log(last.prediction.value / first.prediction.value)
    paper = math.log(last.case.n_train / first.case.n_train)
    variance = _log_variance(first.peak) + _log_variance(last.peak)
    return math.exp(((measured - paper) ** 2 - (measured - law) ** 2) / (2 * variance))


SECTION = Section("law", "A law for the best batch size", measure, judge, draw)
