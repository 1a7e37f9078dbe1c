"""Figure 4: test accuracy against the batch size, during training and at its end."""

from dataclasses import dataclass
from functools import cached_property

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.batches import (
    CONVENTION,
    LEARNING_RATE,
    MOMENTUM,
    N_TRAIN,
    plain_plan,
    size_of,
)
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.runs import Runs, short
from noisescale.paper.scaling import describe_place
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.sweep.peak import Peak, find_peak
from noisescale.uncertainty import mean_of


@dataclass(frozen=True)
class Data(Measured):
    """Every batch size, by seed."""

    runs: Runs

    @cached_property
    def peak(self) -> Peak:
        """The best size."""
        return find_peak(self.runs.frame)


def measure(context: Context) -> Data:
    """Train at every batch size."""
    return Data(context.at, context.runs(plain_plan(context)))


def judge(data: Data) -> Findings:
    """C16 and C17, and the best size."""
    runs, peak, size = data.runs, data.peak, size_of(data.at)
    how = f"{data.at.seeds} seeds, ε = {LEARNING_RATE:g}, m = {MOMENTUM:g}, N = {N_TRAIN:,}, "
    how += f"{size.steps:,} updates"
    diverged = int((runs.frame["status"] == "diverged").sum())
    return Findings(
        statement=(
            f"The same training at batch sizes from {size.batch_sizes[0]} to "
            f"{size.batch_sizes[-1]:,}. The paper finds an optimum inside: very small batches are "
            "so noisy that the model cannot train, and beyond the optimum test accuracy falls "
            "again although the noise does."
        ),
        measurements=(
            Measurement(
                "best batch size observed",
                f"{peak.best} (sampled neighbours {peak.best_low} and {peak.best_high})",
                f"highest mean test accuracy, {how}",
            ),
            Measurement(
                "top of a cubic in log B", describe_place(peak), f"bootstrap over seeds, {how}"
            ),
            Measurement(
                "test accuracy at the best size",
                f"{peak.accuracy:.4f} ± {peak.accuracy_std:.4f}",
                f"standard error over seeds, {how}",
            ),
        ),
        judgements=_judge(data),
        remarks=(
            f"{diverged} of {len(runs.frame)} runs diverged; they count as guessing at random.",
        ),
    )


def _judge(data: Data) -> tuple[Judgement, ...]:
    runs, peak = data.runs, data.peak
    mean = dict(zip(peak.sizes, peak.mean, strict=True))
    failing = [B for B, accuracy in mean.items() if accuracy < 0.5 * peak.accuracy]
    trainable = [B for B in peak.sizes if B not in failing]
    largest_failing = max(failing, default=0)
    best = runs.final("test_accuracy", batch_size=peak.best)
    ends = {
        B: mean_of(best - runs.final("test_accuracy", batch_size=B))
        for B in (trainable[0], peak.sizes[-1])
    }
    at_an_end = peak.best in ends
    return (
        conclude(
            "C16",
            [5 <= largest_failing <= 15],
            decidable=data.at.decidable,
            measured={"largest B below half of the peak": largest_failing},
            uncertainty={"smallest B above": trainable[0]},
            convention=CONVENTION,
        ),
        conclude(
            "C17",
            [False] if at_an_end else [gap.above(0, by=3) for gap in ends.values()],
            decidable=data.at.decidable,
            measured={
                "best B": peak.best,
                "accuracy there": short(peak.accuracy),
                **{f"above B = {B} by": short(gap.value) for B, gap in ends.items()},
            },
            uncertainty={f"above B = {B} by": short(gap.std) for B, gap in ends.items()},
            convention=CONVENTION,
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """Accuracy during training and at its end."""
    runs, peak = data.runs, data.peak
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        _draw_curves(panels[0], runs, peak)
        _draw_ends(panels[1], runs, peak)
        _draw_top(panels[1], peak)
        svg = to_svg(figure)
    picture = Picture(
        name="figure4",
        svg=svg,
        caption="(a) Test accuracy during training, mean over seeds, at every second batch size "
        "and the best. (b) Test accuracy after the last update; error bars are standard errors "
        "over seeds, the band is the fitted peak's 95 % interval, the inset shows the top. Open "
        "circles: some runs diverged and count as guessing at random.",
        alt="Two charts: test accuracy against gradient updates for several batch sizes, and test "
        f"accuracy after the last update against the batch size, highest at B = {peak.best} with "
        f"{peak.accuracy:.3f}, {peak.mean[0]:.3f} at the smallest and {peak.mean[-1]:.3f} at the "
        "largest size.",
    )
    return (picture,)


def _draw_curves(axes: Axes, runs: Runs, peak: Peak) -> None:
    colours = mpl.colormaps["viridis"]
    sizes = sorted({*peak.sizes[::2], peak.sizes[-1], peak.best})
    for place, B in zip(np.linspace(0, 0.95, len(sizes)), sizes, strict=True):
        steps, curves = runs.curve("test_accuracy", batch_size=B)
        axes.plot(steps[1:], curves.mean(axis=0)[1:], color=colours(place), label=f"{B}")
    axes.set(xscale="log", xlabel="gradient updates", ylabel="test accuracy", ylim=(0, 1))
    axes.set(title="(a)")
    axes.legend(title="B", fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_ends(axes: Axes, runs: Runs, peak: Peak) -> None:
    unstable = set(runs.frame.loc[runs.frame["status"] == "diverged", "batch_size"])
    x, y = np.array(peak.sizes), np.array(peak.mean)
    axes.errorbar(
        x,
        y,
        yerr=np.nan_to_num(np.array(peak.std)),
        color=COLOURS[0],
        marker="o",
        markersize=4,
        linewidth=1,
    )
    hollow = np.isin(x, list(unstable))
    axes.plot(x[hollow], y[hollow], "o", markersize=5, color=COLOURS[0], markerfacecolor="white")
    axes.set(xscale="log", xlabel="batch size B", ylabel="test accuracy", title="(b)")
    if peak.fitted is not None and peak.low is not None and peak.high is not None:
        axes.axvspan(peak.low, peak.high, color=COLOURS[1], alpha=0.2, linewidth=0)
        axes.axvline(peak.fitted, color=COLOURS[1], linewidth=1)


def _draw_top(axes: Axes, peak: Peak) -> None:
    """The same, close to the peak."""
    inset = axes.inset_axes((0.44, 0.12, 0.54, 0.5))
    x, y, error = (np.array(column, float) for column in (peak.sizes, peak.mean, peak.std))
    shown = y > peak.accuracy - 0.04
    inset.errorbar(
        x[shown],
        y[shown],
        yerr=np.nan_to_num(error[shown]),
        color=COLOURS[0],
        marker="o",
        markersize=3,
        linewidth=1,
    )
    inset.set(xscale="log")
    inset.tick_params(labelsize=8)


SECTION = Section("4", "Figure 4: an optimum batch size", measure, judge, draw)
