"""The law of the best batch size: what it predicted, and what was measured afterwards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.noise.batch_law import PAPER_LAW
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.law_cases import CASES, Case, Prediction, read_predictions
from noisescale.paper.law_outcomes import Outcome, outcomes_of, slope_at
from noisescale.paper.runs import Runs, short
from noisescale.paper.scaling import Setting, run_until_interior
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.style import plain_log

_SMALL = {
    "smoke": (Case(1.0, 0.9, 500, 100),),
    "quick": (Case(1.0, 0.9, 2_000, 1_000), Case(1.0, 0.9, 10_000, 1_000)),
}
_FACTOR, _FAR = 1.5, 2.0  # how far off a prediction may be, and how far none may be
_ENOUGH = 8  # of nine
_LONG = 40_000  # updates, where the law and the paper's rule differ most
_LIKELIER = 20.0
UNCALIBRATED = (
    "C46 has no predictions and cannot get any, so it stays undecided: two searches on "
    "Fashion-MNIST were to calibrate the law there, and neither showed a top (at N = 4,000 and "
    "10,000 updates B = 224 was the best of 10 to 450, not by 2 standard errors; at N = 40,000 and "
    "4,000 updates 1,280, the largest of 56 to 1,280)."
)


@dataclass(frozen=True)
class Data(Measured):
    """Runs at the settings of the predictions, and the predictions as they stood."""

    cases: list[Case]
    runs: Runs
    predictions: list[Prediction]

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What was measured at each setting, beside its prediction."""
        return outcomes_of(self.cases, self.runs, self.predictions)


def measure(context: Context) -> Data:
    """Search around the best batch size at every setting that was predicted."""
    cases = list(CASES if context.scale == "full" else _SMALL[context.scale])
    predictions = list(read_predictions())
    runs = run_until_interior(context, searches(cases, predictions))
    return Data(context.at, cases, runs, predictions)


def searches(cases: Sequence[Case], predictions: Sequence[Prediction]) -> list[Setting]:
    """Where each case is looked for first: at its prediction, or where the paper's law has it.

    A search ends at the same sizes wherever it begins, but sooner if it begins nearby.
    """
    written = {p.case: p.value for p in predictions}
    return [c.setting(written.get(c) or PAPER_LAW.predict(**c.at).value) for c in cases]


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
            _judge(data),
            _judge_elsewhere(),
        ),
        readings=(judge_long_runs(data),),
        measurements=tuple(_measurements(data)),
        remarks=(UNCALIBRATED,),
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


def _judge_elsewhere() -> Judgement:
    """C46, of which nothing was predicted."""
    return conclude(
        "C46",
        [None],
        decidable=False,
        measured={f"within a factor of {_FACTOR:g}": "0 of 0", "largest factor": None},
        uncertainty={
            "peaks not resolved": 0,
            "largest factor by tops, resolved or not": None,
        },
    )


def _judge(data: Data) -> Judgement:
    """C45: whether the predictions came true."""
    outcomes = [o for o in data.outcomes if o.case.role == "judged" and o.miss is not None]
    wanted = sum(case.role == "judged" for case in CASES)
    misses = [o.miss for o in outcomes if o.miss is not None]
    tops = [o.miss_of_top for o in outcomes if o.miss_of_top is not None]
    near = sum(miss <= _FACTOR for miss in misses)
    return conclude(
        "C45",
        [near >= _ENOUGH, all(miss <= _FAR for miss in misses)],
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
    reported = outcome.case.role == "reported"
    colour = COLOURS[2 if reported else 0]
    label = "another width" if reported else "MNIST"
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
