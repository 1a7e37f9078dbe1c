"""Appendix E: the heuristic for large batches, tried on the paper's network."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from noisescale.data import Dataset, DataUnavailableError, load_fashion_mnist
from noisescale.drawing import house_style, to_svg
from noisescale.noise import AdamRecipe, Recipe
from noisescale.paper.claims import Judgement, conclude
from noisescale.paper.runs import Array, short
from noisescale.paper.section import (
    Circumstances,
    Context,
    Findings,
    Measured,
    Measurement,
    Picture,
    Section,
)
from noisescale.training import DenseNetwork
from noisescale.tune import TuneResult, train_function, tune_large_batch
from noisescale.tune.scores import scores_of
from noisescale.uncertainty import Estimate, mean_of

_FRESH = 1_000  # seeds from here on play no part in the tuning
MARGIN = 0.002  # of validation accuracy: what the tuner may lose
_FACTOR = 9  # by which C31 wants the batch to grow


@dataclass(frozen=True)
class Size:
    """How much a scale does."""

    n_train: int
    n_validation: int
    epochs: float
    widths: tuple[int, ...]
    seeds: int
    max_seeds: int
    n_fresh: int
    fashion: bool
    first: tuple[int, ...] | None = None  # batch sizes of stage 1


SIZES = {
    "smoke": Size(200, 200, 3, (784, 20, 10), 2, 2, 2, False, first=(16, 64)),
    "quick": Size(1_000, 4_000, 20, (784, 800, 10), 2, 3, 3, False),
    "full": Size(4_000, 5_000, 50, (784, 800, 10), 3, 9, 5, True),
}


@dataclass(frozen=True)
class Tuned:
    """A tuning on one data set, and the test scores of its first and last recipe."""

    name: str
    result: TuneResult
    before: Array  # by fresh seed
    after: Array

    @property
    def difference(self) -> Estimate:
        """After minus before, paired by seed."""
        return mean_of(self.after - self.before)


@dataclass(frozen=True)
class Data(Measured):
    """The tunings, MNIST's first, and why one is missing."""

    tuned: list[Tuned]
    missing: list[str]


def measure(context: Context) -> Data:
    """Tune on validation images, compare first and last recipe on test images."""
    size = SIZES[context.scale]
    tuned, missing = [tune_and_test(context, context.data, size)], []
    if size.fashion:
        try:
            fashion = load_fashion_mnist()
        except DataUnavailableError as error:
            missing.append(f"Fashion-MNIST was not tried: {error}")
        else:
            tuned.append(tune_and_test(context, fashion, size))
    return Data(context.at, tuned, missing)


def judge(data: Data) -> Findings:
    """C31 on each data set; MNIST decides."""
    size = SIZES[data.at.scale]
    return Findings(
        statement=(
            "The paper ends with a recipe for large batches: find the best batch size at learning "
            "rate 0.1 and momentum 0.9, then enlarge the batch threefold with the learning rate in "
            "proportion until validation accuracy falls, go on with 1/(1 - m) in proportion, and "
            "retune the batch nearby. Here it is followed with a fixed number of epochs, and every "
            "comparison is of paired seeds. Test images are seen only at the end, by the first "
            "recipe and the last, trained from fresh seeds."
        ),
        judgements=tuple(_judge(data.at, one, primary=k == 0) for k, one in enumerate(data.tuned)),
        measurements=tuple(m for one in data.tuned for m in _measurements(one, size)),
        remarks=(
            "Learning rates in this section are in the usual unit, a cost averaged over the "
            "examples of a batch.",
            *(f"{one.name}, {note}." for one in data.tuned for note in one.result.notes),
            *data.missing,
        ),
    )


def draw(data: Data) -> tuple[Picture, ...]:
    """The trail of each tuning."""
    return tuple(draw_trail(one) for one in data.tuned)


def tune_and_test(
    context: Context,
    data: Dataset,
    size: Size,
    *,
    learning_rate: float | None = None,
) -> Tuned:
    """Tune on validation images; test scores of the first and last recipe from fresh seeds."""
    n = min(size.n_train, len(data.y_train) // 2)
    drawn = data.subset(n_train=min(n + size.n_validation, len(data.y_train)), seed=0)
    x, y = drawn.x_train, drawn.y_train
    network = DenseNetwork((*size.widths[:-1], data.n_classes))
    training, validation = (x[:n], y[:n]), (x[n:], y[n:])
    context.progress.line(f"appendix E: {data.name}")
    result = tune_large_batch(
        train_function(network, network.init, training, validation),
        n,
        epochs=size.epochs,
        learning_rate=learning_rate,
        tolerance=MARGIN,
        confirm=False,  # test images do that
        batch_sizes=size.first,
        seeds=size.seeds,
        max_seeds=size.max_seeds,
        store=context.store,
        executor=context.engine,
        progress=context.progress,
    )
    tested = train_function(network, network.init, training, (data.x_test, data.y_test))
    scores = scores_of(
        tested,
        n,
        [result.start, result.recipe],
        epochs=size.epochs,
        n_seeds=size.n_fresh,
        first_seed=_FRESH,
        store=context.store,
        engine=context.engine,
        progress=context.progress,
    )
    scores = np.where(np.isnan(scores), 1 / data.n_classes, scores)  # diverged: chance
    before, after = scores
    return Tuned(data.name, result, before, after)


def _judge(at: Circumstances, tuned: Tuned, *, primary: bool) -> Judgement:
    ratio = tuned.result.recipe.batch_size / tuned.result.start.batch_size
    difference = tuned.difference
    no_loss = difference.value >= -difference.std
    return conclude(
        "C31",
        [ratio >= _FACTOR, no_loss],
        decidable=at.scale == "full" and at.complete and len(tuned.before) >= 5,
        measured={
            "batch size, before": tuned.result.start.batch_size,
            "after": tuned.result.recipe.batch_size,
            "updates, before": tuned.result.updates_before,
            "updates, after": tuned.result.updates_after,
            "test accuracy, after minus before": short(difference.value),
        },
        uncertainty={"standard error": short(difference.std), "fresh seeds": difference.n},
        convention=tuned.name,
        primary=primary,
    )


def _measurements(tuned: Tuned, size: Size) -> list[Measurement]:
    result = tuned.result
    how = f"{len(tuned.before)} fresh seeds, {size.epochs:g} epochs, N = {result.recipe.n_train:,}"
    runs = f"{result.n_runs} runs, {result.n_updates:,} updates, {result.seconds:.0f} s of training"
    return [
        Measurement(
            f"{tuned.name}: first recipe",
            _in_words(result.start),
            f"{result.updates_before:,} updates",
        ),
        Measurement(
            f"{tuned.name}: last recipe",
            _in_words(result.recipe),
            f"{result.updates_after:,} updates; the tuning took {runs}",
        ),
        Measurement(f"{tuned.name}: test accuracy, first recipe", str(mean_of(tuned.before)), how),
        Measurement(f"{tuned.name}: test accuracy, last recipe", str(mean_of(tuned.after)), how),
        Measurement(f"{tuned.name}: difference, paired by seed", str(tuned.difference), how),
        Measurement(
            f"{tuned.name}: projected speed-up",
            ", ".join(f"{result.projected_speedup(k):.2g} on {k}" for k in (1, 4, 16)) + " devices",
            "from the timings of these runs on one core, communication not counted",
        ),
        Measurement(f"{tuned.name}: conclusion", result.conclusion, "on validation images"),
    ]


def _in_words(recipe: Recipe | AdamRecipe) -> str:
    assert isinstance(recipe, Recipe)
    return (
        f"B = {recipe.batch_size}, ε = {recipe.learning_rate:.4g}, m = {recipe.momentum:.4g}, "
        f"g = {recipe.noise_scale:.3g}"
    )


def draw_trail(tuned: Tuned) -> Picture:
    """The accuracies that the tuning saw, by batch size."""
    with house_style():
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        tuned.result.plot(axes)
        axes.set(ylabel="validation accuracy ± standard error")
        svg = to_svg(figure)
    taken = [d for d in tuned.result.trail if d.accepted]
    return Picture(
        name=f"appendixE-{tuned.name}",
        svg=svg,
        caption=f"The trail of the tuning on {tuned.name}: filled where it went on from, hollow "
        "where it turned back; the dashed line is the final batch size.",
        alt="Validation accuracy against batch size, by stage. Taken: "
        + "; ".join(f"B = {d.recipe.batch_size}, accuracy {d.score:.4f}" for d in taken)
        + ".",
    )


# Version 2: looks of a comparison share 5 %, and the usual spread is a floor (tune/comparison.py).
# Version 3: with a tolerance. What ships is of version 2, which took a larger batch as long as no
# fall was told from noise; C31 asks for the test accuracy of fresh seeds in either.
SECTION = Section("E", "Appendix E: large batches", measure, judge, draw, version=3)
