"""Figure 1: accuracy and margin against the prior precision, random and informative labels."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from noisescale.drawing import house_style, to_svg
from noisescale.paper.claims import Judgement
from noisescale.paper.logistic import (
    LABELS,
    PREPROCESSINGS,
    Curves,
    CurvesBy,
    judge_under,
    measure_curves,
    n_test,
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


@dataclass(frozen=True)
class Data(Measured):
    """Accuracies and margins along the path of prior precisions."""

    curves: CurvesBy


def measure(context: Context) -> Data:
    """The exact MAP at every prior precision, shared with figure 2."""
    return Data(context.at, context.once(measure_curves))


def judge(data: Data) -> Findings:
    """C01 to C05 under each preprocessing."""
    return Findings(
        statement=(
            "A logistic regression on 800 MNIST images of zeros and ones generalises from the true "
            "labels when it is weakly regularised, yet memorises random labels of the same images. "
            "Raising the regularisation hardly improves its accuracy; the mean margin of the "
            "training images grows with it, and is said to be about 50 % larger for true labels "
            "than for random ones when the regularisation is weak."
        ),
        judgements=tuple(
            judgement
            for preprocessing in PREPROCESSINGS
            for judgement in judge_one(data.at, data.curves, preprocessing)
        ),
        remarks=(
            "The margin is the mean of y (w.x + b)/|w| over the training images, misclassified "
            "ones counted as negative. Every point is the exact minimum of the cost (Newton "
            "decrement below 1e-10), bias and weights under the same prior.",
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """One picture for each preprocessing."""
    return tuple(_draw(data.curves, preprocessing) for preprocessing in PREPROCESSINGS)


def judge_one(at: Circumstances, curves: CurvesBy, preprocessing: str) -> list[Judgement]:
    """C01 to C05 under one preprocessing."""
    true, random = (curves[preprocessing, labels] for labels in LABELS)
    verdict = judge_under(at, preprocessing)
    weakest_test = true.test_accuracy[:, 0]
    chance = float(random.test_accuracy[:, 0].mean())
    # Test labels are random: the accuracy of any prediction is binomial around one half.
    chance_error = np.sqrt(0.25 / n_test(at) / random.n_seeds)
    memorised = random.train_accuracy[:, 0] == 1
    gain = _gain(true)
    ratio = true.margin[:, 0] / random.margin[:, 0]
    correlations = {labels: _rank_correlations(curves[preprocessing, labels]) for labels in LABELS}
    grows = [
        all(
            curves[preprocessing, labels].margin[seed, 0]
            < curves[preprocessing, labels].margin[seed, -1]
            and correlations[labels][seed] > 0.9
            for labels in LABELS
        )
        for seed in range(true.n_seeds)
    ]
    return [
        verdict("C01", weakest_test >= 0.95, *_rounded(weakest_test)),
        verdict(
            "C02",
            memorised & (abs(chance - 0.5) <= 3 * chance_error),
            {
                "train accuracy": round(float(random.train_accuracy[:, 0].min()), 4),
                "test accuracy": round(chance, 4),
            },
            round(float(chance_error), 4) if random.n_seeds > 1 else None,
        ),
        verdict("C03", gain <= 0.01, *_rounded(gain)),
        verdict(
            "C04",
            grows,
            {f"rank correlation, {k}": round(float(v.mean()), 3) for k, v in correlations.items()},
        ),
        verdict("C05", (ratio >= 1.3) & (ratio <= 1.7), *_rounded(ratio)),
    ]


def _gain(true: Curves) -> np.ndarray:
    """Of the best test accuracy over that at the weakest prior, by seed."""
    return np.asarray(true.test_accuracy.max(axis=1) - true.test_accuracy[:, 0])


def _rounded(values: np.ndarray) -> tuple[float, float | None]:
    mean = mean_of(values)
    return float(f"{mean.value:.4g}"), float(f"{mean.std:.2g}") if len(values) > 1 else None


def _rank_correlations(curves: Curves) -> np.ndarray:
    """Of the margin with the prior precision, for each seed."""
    order = np.arange(len(curves.prior_precision))
    return np.array([spearmanr(order, margin).statistic for margin in curves.margin])


def _draw(curves: CurvesBy, preprocessing: str) -> Picture:
    with house_style():
        figure = Figure(figsize=(9, 3.8), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, labels, letter in zip(panels, reversed(LABELS), "ab", strict=True):
            along = curves[preprocessing, labels]
            x = along.prior_precision
            draw_band(axes, x, along.train_accuracy, "training accuracy", 0)
            draw_band(axes, x, along.test_accuracy, "test accuracy", 1)
            axes.set(
                xscale="log",
                ylim=(0.35, 1.02),
                ylabel="accuracy",
                xlabel="prior precision λ",
                title=f"({letter}) {labels} labels",
            )
            right = axes.twinx()
            right.spines["right"].set_visible(True)
            right.grid(visible=False)
            draw_band(right, x, along.margin, "mean margin (right)", 2, linestyle="--")
            right.set(ylabel="mean margin", ylim=(0, None))
            handles = [h for a in (axes, right) for h in a.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        svg = to_svg(figure)
    true, random = (curves[preprocessing, labels] for labels in LABELS)
    return Picture(
        name="figure1" if preprocessing == PREPROCESSINGS[0] else "figure1-whitened",
        svg=svg,
        caption=f"Accuracy and mean training margin against the prior precision, {preprocessing}. "
        "Lines are means over seeds, bands reach from the lowest to the highest.",
        alt=f"Two charts for {preprocessing}. At the weakest prior, random labels are memorised "
        f"with training accuracy {random.train_accuracy[:, 0].mean():.3f} and test accuracy "
        f"{random.test_accuracy[:, 0].mean():.3f}; informative labels give test accuracy "
        f"{true.test_accuracy[:, 0].mean():.3f}. The margin changes from "
        f"{true.margin[:, 0].mean():.3g} to {true.margin[:, -1].mean():.3g} (informative) and from "
        f"{random.margin[:, 0].mean():.3g} to {random.margin[:, -1].mean():.3g} (random).",
    )


SECTION = Section(
    "1", "Figure 1: a linear model memorises random labels", measure, judge, draw, quick_seeds=3
)
