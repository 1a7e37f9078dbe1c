"""The law of the best batch size: what it predicted, and what was measured afterwards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.data import DataUnavailableError, load_fashion_mnist
from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.errors import InputError
from noisescale.noise.batch_law import PAPER_LAW, BatchSizeLaw
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.law_cases import CASES, FASHION, Case, Prediction, read_predictions
from noisescale.paper.law_outcomes import Outcome, outcomes_of, slope_at
from noisescale.paper.runs import Runs, short
from noisescale.paper.scaling import Setting, run_until_interior
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.style import plain_log
from noisescale.sweep.batch_law import fit_batch_size_law

_SMALL = {
    "smoke": (Case(1.0, 0.9, 500, 100),),
    "quick": (Case(1.0, 0.9, 2_000, 1_000), Case(1.0, 0.9, 10_000, 1_000)),
}
_FACTOR, _FAR = 1.5, 2.0  # how far off a prediction may be, and how far none may be
_ENOUGH = 8  # of nine
_LONG = 40_000  # updates, where the law and the paper's rule differ most
_LIKELIER = 20.0


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
    def outcomes(self) -> tuple[Outcome, ...]:
        """What was measured at each setting, beside its prediction."""
        outcomes = outcomes_of(self.cases, self.runs, self.predictions)
        if self.fashion is None:
            return outcomes
        return outcomes + outcomes_of(self.fashion_cases, self.fashion, self.predictions)


def measure(context: Context) -> Data:
    """Search around the best batch size at every setting that was predicted."""
    cases = list(CASES if context.scale == "full" else _SMALL[context.scale])
    predictions = list(read_predictions())
    runs = run_until_interior(context, searches(cases, predictions))
    fashion_cases, fashion, missing = [], None, []
    if context.scale == "full":
        try:
            elsewhere = replace(context, data=load_fashion_mnist())
        except DataUnavailableError as error:
            missing.append(f"Fashion-MNIST was not tried: {error}")
        else:
            written = {p.case for p in predictions}
            fashion_cases = [c for c in FASHION if c.role == "calibrating" or c in written]
            fashion = run_until_interior(elsewhere, searches(fashion_cases, predictions))
    return Data(context.at, cases, runs, fashion_cases, fashion, predictions, missing)


def searches(cases: Sequence[Case], predictions: Sequence[Prediction]) -> list[Setting]:
    """Where each case is looked for first: at its prediction, or where the paper's law has it.

    A search ends at the same sizes wherever it begins, but sooner if it begins nearby.
    """
    written = {p.case: p.value for p in predictions}
    return [c.setting(written.get(c) or PAPER_LAW.predict(**c.at).value) for c in cases]


def calibrated(fashion: Runs) -> BatchSizeLaw:
    """The law for Fashion-MNIST: a and c from its calibrating runs, the power as it was."""
    frame = fashion.frame
    settings = [(c.n_train, c.steps) for c in FASHION if c.role == "calibrating"]
    chosen = [(n, t) in settings for n, t in zip(frame["n_train"], frame["steps"], strict=True)]
    return fit_batch_size_law(frame[chosen], power=PAPER_LAW.power.value)


def fashion_law(data: Data) -> BatchSizeLaw | None:
    """The law that Fashion-MNIST's runs gave; None if there are none, or no peaks."""
    try:
        return None if data.fashion is None else calibrated(data.fashion)
    except InputError:
        return None


def uncalibrated(data: Data) -> tuple[str, ...]:
    """Why Fashion-MNIST has no predictions, where its searches have found no top."""
    if data.fashion is None or fashion_law(data) is not None:
        return ()
    searches = [
        f"at N = {o.case.n_train:,} and {o.case.steps:,} updates {o.peak.best:g} is the best of "
        f"{o.peak.sizes[0]:g} to {o.peak.sizes[-1]:g} ({o.peak.undetermined or 'resolved'})"
        for o in outcomes_of(data.fashion_cases, data.fashion, ())
        if o.case.role == "calibrating"
    ]
    why = "On Fashion-MNIST the law could not be calibrated, so it predicts nothing: "
    return (f"{why}{'; '.join(searches)}.",)


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
        readings=(judge_long_runs(data),),
        measurements=tuple(_measurements(data)),
        remarks=(*data.missing, *uncalibrated(data)),
    )


def judge_long_runs(data: Data) -> Judgement:
    """R20: whether the peaks of the longest runs are likelier under the law than under slope 1.

    Both by their slope and by the sizes themselves.
    """
    slope = slope_at(data.outcomes, _LONG)
    part = None
    if slope is not None:
        ratios = slope.likelihood_ratio, slope.likelihood_ratio_of_sizes
        part = True if min(ratios) >= _LIKELIER else False if max(ratios) <= 1 / _LIKELIER else None
    return conclude(
        "R20",
        [part],
        decidable=data.at.decides_readings,
        measured=slope
        and {
            "slope at 40,000 updates": short(slope.measured.value),
            "by the law": short(slope.predicted),
            "likelihood ratio, law over slope 1": short(slope.likelihood_ratio),
            "of the sizes": short(slope.likelihood_ratio_of_sizes),
        },
        uncertainty=slope
        and {
            "95 % interval": [short(slope.measured.low), short(slope.measured.high)],
            "peaks not resolved": f"{slope.unresolved} of {slope.measured.n}",
        },
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
    tops = [o.miss_of_top for o in outcomes if o.miss_of_top is not None]
    near = sum(miss <= _FACTOR for miss in misses)
    parts: list[bool | None] = [near >= (most or wanted)]
    if most is not None:
        parts.append(all(miss <= _FAR for miss in misses))
    return conclude(
        claim,
        parts,
        decidable=data.at.decides_readings and len(misses) == wanted,
        measured={
            f"within a factor of {_FACTOR:g}": f"{near} of {len(misses)}",
            "largest factor": short(max(misses)) if misses else None,
        },
        uncertainty={
            "peaks not resolved": sum(o.peak.undetermined is not None for o in outcomes),
            "largest factor by tops, resolved or not": short(max(tops)) if tops else None,
        },
    )


def _measurements(data: Data) -> Iterator[Measurement]:
    law = PAPER_LAW
    yield Measurement(
        "a, α, c of the law",
        f"{law.scale}, {law.power}, {law.epochs} epochs",
        f"{law.n_settings} peaks of figures 5, 6 and 7; ε in the usual unit",
    )
    if (there := fashion_law(data)) is not None:
        yield Measurement(
            "a and c on Fashion-MNIST",
            f"{there.scale}, {there.epochs} epochs",
            f"two calibrating searches; α = {law.power.value:g} as it was",
        )
    for steps in sorted({case.steps for case in data.cases}):
        if (slope := slope_at(data.outcomes, steps)) is not None:
            yield Measurement(
                f"slope of ln B_opt against ln N at T = {steps:,}",
                f"{slope.measured}; predicted {slope.predicted:.2f}, by the paper 1",
                f"{slope.measured.n} settings, {slope.unresolved} of them not resolved; law over "
                f"slope 1: likelihood ratio {slope.likelihood_ratio:.3g} of the slope, "
                f"{slope.likelihood_ratio_of_sizes:.3g} of the sizes",
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
        svg = to_svg(predicted_against_measured(shown))
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


def predicted_against_measured(outcomes: Sequence[Outcome]) -> Figure:
    """A point for each outcome that was predicted, the diagonal, and a factor of 1.5 about it."""
    figure = Figure(figsize=(6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for outcome in outcomes:
        _draw_outcome(axes, outcome)
    sizes = [o.prediction.value for o in outcomes if o.prediction is not None]
    sizes += [size for o in outcomes for size in o.span]
    ends = [min(sizes) / 1.6, max(sizes) * 1.6]
    axes.plot(ends, ends, color="grey", linewidth=1)
    for factor in (1 / _FACTOR, _FACTOR):
        axes.plot(ends, [end * factor for end in ends], ":", color="grey", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="predicted best B", ylabel="measured best B")
    axes.set(xlim=ends, ylim=ends)
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    axes.legend(fontsize=8)
    return figure


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
    top = outcome.resolved
    y = peak.best if top is None else top.value
    low, high = outcome.span if top is None else (top.low, top.high)
    axes.errorbar(
        said.value,
        y,
        xerr=[[said.value - said.low], [said.high - said.value]],
        yerr=[[max(y - low, 0)], [max(high - y, 0)]],
        fmt="o",
        color=colour,
        markerfacecolor=colour if top is not None else "white",
        label=label,
        linewidth=1,
    )


SECTION = Section("law", "A law for the best batch size", measure, judge, draw)
