"""Reading R37: the largest curvature at equal training loss, random labels against true ones.

Curvature goes with the loss, and networks on random labels end at another loss than those on true
ones. So both are looked at on their way: ln(top eigenvalue) against ln(loss), interpolated, and
averaged over the losses that both pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.evidence.curvature.products import curvature_operator
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.jax_problem import jax_problem
from noisescale.paper.batches import SMALL
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.minima import LABELS, SIZES, trained
from noisescale.paper.runs import Array, short
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.statistics import above
from noisescale.uncertainty import Estimate, mean_of

# Where on its way a network is looked at.
_LOOKS = {
    "smoke": (20, 60),
    "quick": (30, 100, 300),
    "full": (30, 60, 100, 160, 250, 400, 630, 1_000, 1_600, 2_500),
}
_N_LOSSES = 20  # at which two trajectories are compared


@dataclass(frozen=True)
class Trajectory:
    """Training loss per example and top curvature of the summed nll, on the way to a minimum."""

    steps: Array
    nll: Array
    top: Array


@dataclass(frozen=True)
class Data(Measured):
    """By labels and batch size, one trajectory a seed."""

    trajectories: dict[tuple[str, int], list[Trajectory]]

    @property
    def batch_sizes(self) -> list[int]:
        """The large one first: there the claim compares labels."""
        return sorted({B for _, B in self.trajectories}, reverse=True)


def measure(context: Context) -> Data:
    """Networks on true and on random labels, looked at on their way."""
    large = SIZES[context.scale].n_train
    return Data(
        context.at,
        {
            (labels, B): [
                context.kept(trajectory, seed=seed, batch_size=B, labels=labels)
                for seed in range(context.seeds)
            ]
            for labels in LABELS
            for B in (SMALL, large)
        },
    )


def trajectory(context: Context, seed: int, batch_size: int, labels: str) -> Trajectory:
    """A network trained so far and so far again: batches are the same, so it is one path."""
    context.progress.line(f"curvature on the way: {labels} labels, B = {batch_size}, seed {seed}")
    rows = []
    for steps in _LOOKS[context.scale]:
        size = replace(SIZES[context.scale], steps=steps)
        network, params, pair, final = trained(context, size, seed, batch_size, labels, 0.0)
        if final is None:
            continue
        model = jax_problem(network, params, pair, "categorical").model
        top = leading(curvature_operator(model, "hessian", precision="float32"), 1)[0][0]
        rows.append((steps, final.train_cross_entropy, float(top)))
    return Trajectory(*np.array(rows, float).reshape(-1, 3).T)


def judge(data: Data) -> Findings:
    """R37 at each batch size; the large one decides, as for the claim."""
    return Findings(
        statement=(
            "The largest Hessian eigenvalue was larger for random labels than for true ones, but "
            "networks on random labels end at another training loss, and curvature goes with the "
            "loss. Here both are compared at equal loss, on their way to it."
        ),
        readings=tuple(_judge(data, B, primary=k == 0) for k, B in enumerate(data.batch_sizes)),
        measurements=tuple(_measurements(data)),
    )


def matched_ratio(random: Trajectory, true: Trajectory) -> float:
    """exp of the mean of ln(top/top) over the losses that both pass; NaN if there are none."""
    logs = [
        (np.log(one.nll[order]), np.log(one.top[order]))
        for one in (random, true)
        for order in [np.argsort(one.nll)]
    ]
    if any(len(losses) < 2 for losses, _ in logs):
        return float("nan")
    low = max(losses[0] for losses, _ in logs)
    high = min(losses[-1] for losses, _ in logs)
    if low >= high:
        return float("nan")
    at = np.linspace(low, high, _N_LOSSES)
    of_random, of_true = (np.interp(at, losses, tops) for losses, tops in logs)
    return float(np.exp(np.mean(of_random - of_true)))


def _log_ratio(data: Data, batch_size: int) -> Estimate:
    """Of the curvatures at equal loss, in logarithms, over seeds."""
    pairs = zip(
        *(data.trajectories[labels, batch_size] for labels in ("random", "true")), strict=True
    )
    return mean_of([np.log(matched_ratio(random, true)) for random, true in pairs])


def _judge(data: Data, batch_size: int, *, primary: bool) -> Judgement:
    ratio = _log_ratio(data, batch_size).interval()
    return conclude(
        "R37",
        [above(ratio, 0, by=2)],
        decidable=data.at.decides_readings,
        measured={"random over true labels, at equal loss": short(np.exp(ratio.value))},
        uncertainty={"95 % interval": [short(np.exp(ratio.low)), short(np.exp(ratio.high))]},
        convention=f"B = {batch_size}",
        primary=primary,
    )


def _measurements(data: Data) -> Iterator[Measurement]:
    for (labels, B), found in data.trajectories.items():
        n = min(len(one.steps) for one in found)
        tops, losses = (
            np.mean([getattr(one, name)[:n] for one in found], axis=0) for name in ("top", "nll")
        )
        told = ", ".join(f"{top:.3g} at {loss:.2g}" for top, loss in zip(tops, losses, strict=True))
        yield Measurement(
            f"top curvature at training loss, {labels} labels, B = {B}", told, "mean over seeds"
        )


def draw(data: Data) -> tuple[Picture, ...]:
    """Curvature against loss."""
    with house_style():
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(data.batch_sizes), sharey=True))
        for axes, B in zip(panels, data.batch_sizes, strict=True):
            for colour, labels in zip(COLOURS, LABELS, strict=False):
                for k, one in enumerate(data.trajectories[labels, B]):
                    name = f"{labels} labels" if k == 0 else None
                    axes.plot(one.nll, one.top, ".-", color=colour, linewidth=0.8, label=name)
            axes.set(xscale="log", yscale="log", xlabel="training loss per image", title=f"B = {B}")
        panels[0].set(ylabel="largest Hessian eigenvalue")
        panels[0].legend()
        svg = to_svg(figure)
    told = "; ".join(f"B = {B}: {np.exp(_log_ratio(data, B).value):.3g}" for B in data.batch_sizes)
    return (
        Picture(
            name="reading-R37",
            svg=svg,
            caption="The largest Hessian eigenvalue of the summed cost against the training loss, "
            "on the way to a minimum; a line a seed.",
            alt="Charts of the largest curvature against the training loss for true and random "
            f"labels. Random over true at equal loss: {told}.",
        ),
    )


SECTION = Section("R37", "Reading R37: curvature at equal loss", measure, judge, draw, reading=True)
