"""Reading R29: settings of equal noise scale, where steps are small.

The stochastic differential equation behind g = epsilon (N/B - 1)/(1 - m) is a limit of small steps.
Here the effective learning rate epsilon/(1 - m) is at most 0.01, and settings are compared within
each seed: the same minimum, the same directions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from noisescale.drawing import house_style, to_svg
from noisescale.paper.appendix_d import find_place, shown_by_network
from noisescale.paper.batches import N_TRAIN
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.matched import ALIKE, DOUBLED, Setting, paired_ratios, with_noise_scale
from noisescale.paper.matched_drawing import draw_settings
from noisescale.paper.runs import Array
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.paper.statistics import above, inside
from noisescale.uncertainty import Estimate, mean_of

_G = 0.09  # at N = 1,000: effective learning rates of at most 0.01
SMALL_STEPS = (
    *(with_noise_scale(_G, B, N_TRAIN, m) for B in (30, 100) for m in (0.0, 0.9)),
    *(with_noise_scale(2 * _G, 30, N_TRAIN, m, DOUBLED) for m in (0.0, 0.9)),
)
_RELAXATIONS = {"smoke": 0.01, "quick": 2.0, "full": 30.0}
_APART = 1.5

Ratios = dict[tuple[Setting, Setting], Estimate]


@dataclass(frozen=True)
class Data(Measured):
    """The noise scale that fluctuations show, by seed, by setting, in blocks of time."""

    shown: list[dict[Setting, Array]]


def measure(context: Context) -> Data:
    """Fluctuations about one minimum a seed, at every setting."""
    shown = [context.kept(small_steps, seed=seed) for seed in range(context.seeds)]
    return Data(context.at, shown)


def small_steps(context: Context, seed: int) -> dict[Setting, Array]:
    """The noise scale that fluctuations show at small steps, by setting, in blocks of time."""
    place = find_place(context, seed)
    length = _RELAXATIONS[context.scale]
    shown = {}
    for setting in SMALL_STEPS[:: 4 if context.scale == "smoke" else 1]:
        context.progress.line(f"small steps: {setting}, seed {seed}")
        shown[setting] = shown_by_network(context, setting, place, seed, length)
    return shown


def judge(data: Data) -> Findings:
    """R29: equal g alike within a tenth, twice g apart by half."""
    equal, twice = paired_ratios(data.shown), paired_ratios(data.shown, DOUBLED)
    return Findings(
        statement=(
            "In appendix D settings of equal g fluctuated alike on a quadratic, on the network "
            "only roughly. The equation behind g is a limit of small steps: here the effective "
            "learning rate is at most 0.01, and settings are compared within each seed."
        ),
        readings=(_judge(data, equal, twice),),
        measurements=tuple(_measurements(equal | twice)),
    )


def _judge(data: Data, equal: Ratios, twice: Ratios) -> Judgement:
    furthest = max(equal.values(), key=lambda ratio: abs(ratio.value - 1), default=None)
    least = min(twice.values(), key=lambda ratio: ratio.value, default=None)
    return conclude(
        "R29",
        [
            *(inside(ratio, *ALIKE) for ratio in equal.values()),
            *(above(ratio, _APART, by=2) for ratio in twice.values()),
        ],
        decidable=data.at.decides_readings,
        measured={
            "ratio at equal g furthest from 1": str(furthest and furthest.interval()),
            "least ratio at twice g": str(least and least.interval()),
        },
        uncertainty={"pairs of equal g": len(equal), "pairs of twice g": len(twice)},
    )


def _measurements(ratios: Ratios) -> Iterator[Measurement]:
    for (a, b), ratio in ratios.items():
        yield Measurement(
            f"fluctuations at {a} over those at {b}",
            str(ratio.interval()),
            f"g = {a.noise_scale:.3g} over {b.noise_scale:.3g}; {ratio.n} seeds, paired",
        )


def draw(data: Data) -> tuple[Picture, ...]:
    """The noise scale shown, setting by setting."""
    by_setting = {
        setting: mean_of([float(np.mean(one[setting])) for one in data.shown])
        for setting in data.shown[0]
    }
    with house_style():
        figure = Figure(figsize=(6.5, 3.2), layout="constrained")
        draw_settings(figure.add_subplot(), by_setting, "the paper's network, small steps")
        svg = to_svg(figure)
    return (
        Picture(
            name="reading-R29",
            svg=svg,
            caption="The noise scale that the stationary fluctuations show at small steps (dashed "
            "lines: g and 2g); bars are three standard errors over seeds.",
            alt="A chart of the noise scale shown by fluctuations, one point a setting: "
            + "; ".join(f"{setting}: {seen}" for setting, seen in by_setting.items()),
        ),
    )


SECTION = Section(
    "R29", "Reading R29: equal noise scales at small steps", measure, judge, draw, reading=True
)
