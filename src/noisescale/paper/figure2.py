"""Figure 2: cross-entropy and log evidence ratio against the prior precision."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.paper.claims import Judgement
from noisescale.paper.invariance import Changes, judge_invariance, measure_invariance
from noisescale.paper.logistic import (
    LABELS,
    PREPROCESSINGS,
    Array,
    Curves,
    CurvesBy,
    judge_under,
    measure_curves,
)
from noisescale.paper.section import (
    Circumstances,
    Context,
    Findings,
    Measured,
    Picture,
    Section,
)
from noisescale.paper.style import draw_band
from noisescale.uncertainty import mean_of

_LN2 = math.log(2)


@dataclass(frozen=True)
class Data(Measured):
    """Cross-entropies and E along the path of prior precisions, and what invariances leave."""

    curves: CurvesBy
    invariance: Changes


def measure(context: Context) -> Data:
    """The exact MAP at every prior precision, shared with figure 1, and the invariances."""
    return Data(context.at, context.once(measure_curves), measure_invariance(context))


def judge(data: Data) -> Findings:
    """C06 to C11 under each preprocessing, C12 and C35."""
    judgements = [
        judgement
        for preprocessing in PREPROCESSINGS
        for judgement in judge_one(data.at, data.curves, preprocessing)
    ]
    return Findings(
        statement=(
            "The log evidence ratio E, computed from the training images alone, tells a model that "
            "is worth believing (E < 0) from one that is not. For random labels it is large and "
            "positive and falls towards zero as the regularisation grows. For true labels it is "
            "said to be positive at weak regularisation, negative in the middle and zero in the "
            "limit of strong regularisation, with its minimum where the test cross-entropy has its."
        ),
        judgements=(*judgements, *judge_invariance(data.invariance)),
        remarks=(
            *(_say_where_negative(data.curves, name) for name in PREPROCESSINGS),
            "Every point is the exact minimum of the cost. An optimiser that is stopped early at a "
            "weak prior sits above it, and the cost that is left makes E larger.",
            "Random labels are permuted, so both classes stay balanced; where |E| is below one "
            "half its sign depends on the permutation and is not judged.",
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """One picture for each preprocessing."""
    return tuple(_draw(data.curves, preprocessing) for preprocessing in PREPROCESSINGS)


def parabola_minimum(x: Array, y: Array) -> float:
    """Where the parabola through the lowest point and its neighbours has its minimum."""
    k = int(np.argmin(y))
    if k in (0, len(y) - 1):
        return float(x[k])
    a, b, _ = np.polyfit(x[k - 1 : k + 2] - x[k], y[k - 1 : k + 2], 2)
    return float(x[k] - b / (2 * a))


def judge_one(at: Circumstances, curves: CurvesBy, preprocessing: str) -> list[Judgement]:
    """C06 to C11 under one preprocessing."""
    true, random = (curves[preprocessing, labels] for labels in LABELS)
    verdict = judge_under(at, preprocessing)
    train_weak, test_weak = random.train_cross_entropy[:, 0], random.test_cross_entropy[:, 0]
    settled = np.abs(random.test_cross_entropy[:, -1] - _LN2)
    distances, correlation = _distances(true), _correlations(true)
    distance = mean_of(distances)
    return [
        verdict(
            "C06",
            (train_weak < 0.05) & (test_weak > 10 * _LN2),
            {"train": _short(train_weak.mean()), "test": _short(test_weak.mean())},
        ),
        verdict("C07", settled < 0.005, _short(settled.mean())),
        verdict(
            "C08",
            [_falls_and_stays_positive(E) for E in random.E],
            {
                "E at the weakest prior": _short(random.E[:, 0].mean()),
                "E at the strongest prior": _short(random.E[:, -1].mean()),
            },
        ),
        verdict(
            "C09",
            [_above_then_below(ce) for ce in true.test_cross_entropy],
            {
                "at the weakest prior": _short(true.test_cross_entropy[:, 0].mean()),
                "lowest": _short(true.test_cross_entropy.min(axis=1).mean()),
            },
        ),
        verdict(
            "C10",
            [_three_regimes(E) for E in true.E],
            {
                "E at the weakest prior": _short(true.E[:, 0].mean()),
                "lowest E": _short(true.E.min(axis=1).mean()),
                "E at the strongest prior": _short(true.E[:, -1].mean()),
            },
        ),
        verdict(
            "C11",
            distance.value <= 0.5 and correlation.mean() > 0.7,
            {
                "decades apart": _short(distance.value),
                "rank correlation": _short(correlation.mean()),
            },
            {"decades apart": _short(distance.std)} if len(distances) > 1 else None,
        ),
    ]


def _distances(true: Curves) -> Array:
    """Decades between the minima of E and of the test cross-entropy, by seed."""
    log10 = np.log10(true.prior_precision)
    return np.array(
        [
            abs(parabola_minimum(log10, E) - parabola_minimum(log10, ce))
            for E, ce in zip(true.E, true.test_cross_entropy, strict=True)
        ]
    )


def _correlations(true: Curves) -> Array:
    """Spearman's of E and the test cross-entropy over the grid, by seed."""
    return np.array(
        [spearmanr(E, ce).statistic for E, ce in zip(true.E, true.test_cross_entropy, strict=True)]
    )


def _say_where_negative(curves: CurvesBy, preprocessing: str) -> str:
    true = curves[preprocessing, "informative"]
    mean = true.E.mean(axis=0)
    where = true.prior_precision[mean < 0]
    span = f", from {where.min():.2g} to {where.max():.2g}" if len(where) else ""
    return (
        f"With {preprocessing}, E of the informative labels is negative (mean over seeds) at "
        f"{len(where)} of {len(mean)} prior precisions{span}."
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _falls_and_stays_positive(E: Array) -> bool:
    """E falls into and out of every point above 1, and is positive where it is not tiny."""
    falls = np.diff(E)[(E[:-1] > 1) | (E[1:] > 1)] < 0
    return bool(E[0] > 1 and falls.all() and (E[np.abs(E) > 0.5] > 0).all())


def _above_then_below(cross_entropy: Array) -> bool:
    """Above ln 2 at the weakest prior, below it at some stronger one."""
    return bool(cross_entropy[0] > _LN2 and (cross_entropy < _LN2).any())


def _three_regimes(E: Array) -> bool:
    """Positive at the weakest prior, negative in the middle, almost zero at the strongest."""
    lowest = E.min()
    return bool(E[0] > 0 > lowest and abs(E[-1]) < 0.01 * abs(lowest))


def _draw(curves: CurvesBy, preprocessing: str) -> Picture:
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, labels, letter in zip(panels, reversed(LABELS), "ab", strict=True):
            handles = _draw_panel(
                axes, curves[preprocessing, labels], f"({letter}) {labels} labels"
            )
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        svg = to_svg(figure)
    true, random = (curves[preprocessing, labels] for labels in LABELS)
    best = true.prior_precision[np.argmin(true.E.mean(axis=0))]
    return Picture(
        name="figure2" if preprocessing == PREPROCESSINGS[0] else "figure2-whitened",
        svg=svg,
        caption=f"Mean cross-entropy and log evidence ratio E against the prior precision, "
        f"{preprocessing}. Above the dotted line at E = 0 the null model is the more plausible. "
        "Lines are means over seeds, bands reach from the lowest to the highest.",
        alt=f"Two charts for {preprocessing}. With random labels E falls from "
        f"{random.E[:, 0].mean():.4g} to {random.E[:, -1].mean():.2g}; with informative labels it "
        f"is {true.E[:, 0].mean():.4g} at the weakest prior, lowest with "
        f"{true.E.mean(axis=0).min():.4g} near prior precision {best:.2g}, and "
        f"{true.E[:, -1].mean():.2g} at the strongest.",
    )


def _draw_panel(axes: Axes, along: Curves, title: str) -> list[Artist]:
    x = along.prior_precision
    draw_band(axes, x, along.train_cross_entropy, "training cross-entropy", 0)
    draw_band(axes, x, along.test_cross_entropy, "test cross-entropy", 1)
    axes.axhline(_LN2, color="grey", linewidth=0.8, linestyle=":")
    explodes = along.test_cross_entropy.max() > 2
    axes.set(xscale="log", xlabel="prior precision λ", title=title)
    axes.set(yscale="symlog" if explodes else "linear", ylim=(0, None))
    axes.set(ylabel="cross-entropy, nats per image")
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    draw_band(right, x, along.E, "E (right)", 2, linestyle="--")
    right.axhline(0, color=COLOURS[2], linewidth=0.8, linestyle=":")
    right.set(ylabel="log evidence ratio E, nats")
    return [h for a in (axes, right) for h in a.get_legend_handles_labels()[0]]


SECTION = Section(
    "2",
    "Figure 2: the evidence tells memorising from learning",
    measure,
    judge,
    draw,
    quick_seeds=3,
)
