"""The learning-rate unit: what the paper's "epsilon = 1" may have meant.

The paper trains a 784-800-10 network at learning rate 1 and momentum 0.9 and says that batches of
30 train and batches of 10 or less do not. This section tries that with the usual mean
cross-entropy and with the cost also averaged over the 10 classes, a tenth of the learning rate.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from noisescale.paper.section import Context, Measurement, Outcome, Picture, Section
from noisescale.paper.style import COLOURS, house_style, to_svg
from noisescale.training import TrainResult, paper_network, train

_STEPS = {"smoke": 300, "quick": 5_000, "full": 10_000}
_N_TRAIN = 1_000


@dataclass(frozen=True)
class _Case:
    label: str
    cost_convention: str
    batch_size: int


_CASES = (
    _Case("cost per example and class, B = 30", "per_class", 30),
    _Case("cost per example and class, B = 3", "per_class", 3),
    _Case("cost per example, B = 30", "per_example", 30),
)


def measure(context: Context) -> Outcome:
    """Train the paper's network in both units and compare."""
    runs: dict[str, list[TrainResult]] = {case.label: [] for case in _CASES}
    for case in _CASES:
        for seed in range(context.seeds):
            context.report(f"units: {case.label}, seed {seed}")
            runs[case.label].append(_run(context, case, seed))
    steps = _STEPS[context.scale]
    measurements = tuple(
        Measurement(
            what=f"test accuracy, {case.label}",
            value=_describe(runs[case.label], context.data.n_classes),
            how=f"{context.seeds} seeds, {steps:,} updates, epsilon = 1, m = 0.9, N = {_N_TRAIN:,}",
        )
        for case in _CASES
    )
    return Outcome(
        statement=(
            "The paper trains at learning rate 1 and momentum 0.9 and finds that batches of 30 "
            "train while batches of about 10 or less do not. It does not say how its cost is "
            "normalised, and without that a learning rate has no unit. The same training is run "
            "here with the cross-entropy averaged over the examples of a batch, as is usual, and "
            "averaged over the ten classes as well. Wherever this report quotes the paper's "
            "learning rates it uses the second: the training cost, penalty included, divided by "
            "the number of classes, which is exactly a change of unit by a factor of ten. "
            "Cross-entropies are always reported undivided, in nats per example."
        ),
        pictures=(_draw(runs, steps),),
        measurements=measurements,
    )


def _run(context: Context, case: _Case, seed: int) -> TrainResult:
    data = context.data.subset(n_train=_N_TRAIN, seed=seed)
    model = paper_network()
    return train(
        model,
        model.init(seed),
        (data.x_train, data.y_train),
        learning_rate=1.0,
        momentum=0.9,
        batch_size=case.batch_size,
        steps=_STEPS[context.scale],
        cost_convention=case.cost_convention,
        test_data=(data.x_test, data.y_test),
        n_evaluations=12,
        seed=seed,
    )


def _final_accuracies(results: list[TrainResult], n_classes: int) -> NDArray[np.float64]:
    """Final test accuracies; a diverged run has learnt nothing, so it counts as chance."""
    return np.array([r.final.test_accuracy if r.final else 1 / n_classes for r in results])


def _describe(results: list[TrainResult], n_classes: int) -> str:
    accuracies = _final_accuracies(results, n_classes)
    text = f"{accuracies.mean():.3f}"
    if len(accuracies) > 1:
        text += f" ± {accuracies.std(ddof=1) / len(accuracies) ** 0.5:.3f} (standard error)"
    if diverged := sum(result.final is None for result in results):
        text += f", {diverged} diverged and counted as chance"
    return text


def _draw(runs: dict[str, list[TrainResult]], steps: int) -> Picture:
    with house_style():
        figure = Figure(figsize=(7.5, 4.2))
        axes = figure.add_subplot()
        for colour, (label, results) in zip(COLOURS, runs.items(), strict=False):
            # Diverged runs have shorter histories: draw what all seeds have.
            shared = min(len(result.history) for result in results)
            at = [row.step for row in results[0].history[:shared]]
            curves = np.array(
                [[row.test_accuracy for row in result.history[:shared]] for result in results]
            )
            axes.plot(at, curves.mean(axis=0), color=colour, label=label)
            axes.fill_between(
                at, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.2, linewidth=0
            )
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel="gradient updates", ylabel="test accuracy", ylim=(0, 1), xlim=(0, steps))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1))
        svg = to_svg(figure)
    return Picture(
        name="units",
        svg=svg,
        caption="Test accuracy during training at the paper's learning rate, in two units. "
        "Lines are means over seeds, bands reach from the lowest to the highest.",
        alt="Line chart of test accuracy against gradient updates for three runs: "
        + "; ".join(
            f"{label} ends near {results[0].history[-1].test_accuracy:.2f}"
            for label, results in runs.items()
        )
        + ".",
    )


SECTION = Section(id="units", title="The learning-rate unit", measure=measure)
