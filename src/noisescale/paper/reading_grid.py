"""Reading R05-11: figures 1 and 2 under other procedures.

How the images were prepared and how the fit was reached, the paper does not say. Every cell of a
grid is a way of both; in each the whole experiment of :mod:`noisescale.paper.logistic` is made
again, and E is that of the point reached,

    E = nll + lambda/2 |w|^2 + 1/2 ln det(I + X' D X/lambda) - N ln 2,   D = p (1 - p).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from noisescale.data import Dataset, balanced_binary
from noisescale.drawing import COLOURS, house_style, to_svg
from noisescale.evidence.linear.path import lambda_path
from noisescale.evidence.linear.regression import check_pair, linear_problem
from noisescale.paper import figure1, figure2
from noisescale.paper.claims import Judgement, Verdict, conclude
from noisescale.paper.logistic import LABELS, Array, Curves, CurvesBy, n_test, whiten
from noisescale.paper.section import Context, Findings, Measured, Measurement, Picture, Section
from noisescale.seeds import random_stream

_N_TRAIN = 800
_FLOOR = 1e-3  # of the largest variance: directions below it are scaled as if they had it
_PER_DECADE = {"smoke": 0.5, "quick": 1, "full": 4}
_STEPS = {"smoke": 20, "quick": 1_000, "full": 10_000}
IMAGES = ("raw", "whitened with a floor")
STARTS = {
    "exact minimum": None,
    "descent from 0": 0.0,
    "descent from sd 0.1": 0.1,
    "descent from sd 1": 1.0,
}
CELLS = tuple(f"{images}, {start}" for images, start in product(IMAGES, STARTS))


@dataclass(frozen=True)
class Data(Measured):
    """The curves of figures 1 and 2, by cell and labels."""

    curves: CurvesBy


def measure(context: Context) -> Data:
    """The whole experiment of figures 1 and 2 in every cell."""
    curves: CurvesBy = {}
    for images, start, labels in product(IMAGES, STARTS, LABELS):
        paths = [
            context.kept(one_path, images=images, start=start, labels=labels, seed=seed)
            for seed in range(context.seeds)
        ]
        curves[f"{images}, {start}", labels] = Curves(
            _grid(context), *np.stack(paths).transpose(2, 0, 1)
        )
    return Data(context.at, curves)


def judge(data: Data) -> Findings:
    """R05-11: whether all of C01 to C11 hold in one cell."""
    table = {cell: _verdicts(data, cell) for cell in CELLS}
    return Findings(
        statement=(
            "Four claims about figures 1 and 2 did not reproduce with raw or with whitened images "
            "at the exact minimum of the cost. The paper does not say how its images were prepared "
            "nor how its minima were reached. Is there one procedure under which all eleven claims "
            "hold? Raw images and images whitened with a floor, each at the exact minimum and "
            f"after {_STEPS[data.at.scale]:,} steps of gradient descent from three starts."
        ),
        readings=(_judge_cells(data, table),),
        measurements=tuple(_measurements(data, table)),
        remarks=(
            "E is that of the point reached: after few steps it is larger than at the minimum by "
            "the cost that is left, and by weights that have not yet shrunk.",
        ),
    )


Table = dict[str, dict[str, Verdict]]  # by cell, by claim


def _verdicts(data: Data, cell: str) -> dict[str, Verdict]:
    """The first criteria of both figures in one cell."""
    judged = [
        judgement
        for section in (figure1, figure2)
        for judgement in section.judge_one(data.at, data.curves, cell)
    ]
    return {judgement.id: judgement.verdict for judgement in judged}


def _held(verdicts: dict[str, Verdict]) -> list[str]:
    return [claim for claim, verdict in verdicts.items() if verdict is Verdict.REPRODUCED]


def _judge_cells(data: Data, table: Table) -> Judgement:
    whole = [cell for cell, verdicts in table.items() if len(_held(verdicts)) == len(verdicts)]
    broken = all(Verdict.NOT_REPRODUCED in verdicts.values() for verdicts in table.values())
    best = max(table, key=lambda cell: len(_held(table[cell])))
    missing = [claim for claim in table[best] if claim not in _held(table[best])]
    return conclude(
        "R05-11",
        [True if whole else False if broken else None],
        decidable=data.at.decides_readings,
        measured={"all hold": whole}
        if whole
        else {
            "most hold": best,
            "of 11": len(_held(table[best])),
            "not": ", ".join(missing),
        },
        uncertainty={
            f"cells of {len(table)} in which {claim} holds": sum(
                claim in _held(verdicts) for verdicts in table.values()
            )
            for claim in missing
        },
    )


def _measurements(data: Data, table: Table) -> Iterator[Measurement]:
    for cell, verdicts in table.items():
        true, random = (data.curves[cell, labels] for labels in LABELS)
        missing = [claim for claim in verdicts if claim not in _held(verdicts)]
        yield Measurement(
            cell,
            f"{len(_held(verdicts))} of {len(verdicts)} hold; not {', '.join(missing) or 'one'}",
            f"margins {true.margin[:, 0].mean():.3g} and {random.margin[:, 0].mean():.3g} at the "
            f"weakest prior, E there {true.E[:, 0].mean():.4g}, lowest {true.E.min():.4g}",
        )


def draw(data: Data) -> tuple[Picture, ...]:
    """Claims by cell."""
    table = {cell: _verdicts(data, cell) for cell in CELLS}
    claims = list(table[CELLS[0]])
    colours = {
        Verdict.REPRODUCED: COLOURS[2],
        Verdict.NOT_REPRODUCED: COLOURS[1],
        Verdict.UNDECIDED: "lightgrey",
    }
    with house_style():
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for row, cell in enumerate(CELLS):
            for column, claim in enumerate(claims):
                verdict = table[cell][claim]
                axes.scatter(column, row, s=220, marker="s", color=colours[verdict])
                axes.text(
                    column,
                    row,
                    {"reproduced": "+", "not reproduced": "-"}.get(verdict, "?"),
                    ha="center",
                    va="center",
                    color="white" if verdict is not Verdict.UNDECIDED else "black",
                )
        axes.set_xticks(range(len(claims)), claims)
        axes.set_yticks(range(len(CELLS)), CELLS)
        axes.set(xlim=(-0.6, len(claims) - 0.4), ylim=(len(CELLS) - 0.4, -0.6))
        axes.grid(visible=False)
        svg = to_svg(figure)
    told = "; ".join(f"{cell}: {len(_held(table[cell]))}" for cell in CELLS)
    return (
        Picture(
            name="reading-R05-11",
            svg=svg,
            caption="Which of the claims about figures 1 and 2 hold under which procedure: + "
            "holds, - does not, ? is mixed over seeds or not decided by runs of this size.",
            alt=f"A table of claims by procedure. Claims that hold, of {len(claims)}: {told}.",
        ),
    )


def _grid(context: Context) -> Array:
    return np.logspace(-8, 6, round(14 * _PER_DECADE[context.scale]) + 1)


def one_path(context: Context, images: str, start: str, labels: str, seed: int) -> Array:
    """(P, 6): accuracies, cross-entropies, margin and E at each prior precision."""
    context.progress.line(f"figures 1 and 2 again: {images}, {start}, {labels} labels, seed {seed}")
    x, y, x_test, y_test = _images(context, images, labels, seed)
    grid = _grid(context)
    if STARTS[start] is None:
        w = _minima(x, y, grid)
    else:
        w = _descend(x, y, grid, sd=STARTS[start] or 0.0, steps=_STEPS[context.scale], seed=seed)
    rows = []
    for precision, weights in zip(grid, w, strict=True):
        train_accuracy, train_cross_entropy = _scores(weights, x, y)
        test_accuracy, test_cross_entropy = _scores(weights, x_test, y_test)
        margin = float(np.mean(y * (x @ weights)) / max(np.linalg.norm(weights[:-1]), 1e-300))
        E = _ratio(weights, x, y, float(precision))
        cross_entropies = (train_cross_entropy, test_cross_entropy)
        rows.append([train_accuracy, test_accuracy, *cross_entropies, margin, E])
    return np.array(rows)


def _images(
    context: Context, images: str, labels: str, seed: int
) -> tuple[Array, Array, Array, Array]:
    """Training and test images with a column of ones, and labels of -1 and 1."""
    drawn: Dataset = balanced_binary(
        0, 1, n_train=_N_TRAIN, n_test=n_test(context.at), seed=seed, data=context.data
    )
    x, y = check_pair(drawn.x_train, drawn.y_train)
    x_test, y_test = check_pair(drawn.x_test, drawn.y_test)
    if images != "raw":
        x, x_test = whiten(x, x_test, floor=_FLOOR)
    if labels == "random":
        rng = random_stream(seed, "random labels")
        y, y_test = rng.permutation(y), rng.permutation(y_test)
    return _with_ones(x), _signs(y), _with_ones(x_test), _signs(y_test)


def _with_ones(x: Array) -> Array:
    return np.column_stack([x, np.ones(len(x))])


def _signs(y: NDArray[np.generic]) -> Array:
    return np.where(np.asarray(y) == np.max(y), 1.0, -1.0)


def _descend(x: Array, y: Array, grid: Array, *, sd: float, steps: int, seed: int) -> Array:
    """(P, d): gradient descent at all prior precisions at once, float32.

    The step is one over the largest curvature that the cost has anywhere, sigma^2/4 + lambda.
    """
    top = float(np.linalg.norm(x, 2) ** 2) / 4
    rates = (1 / (top + grid)).astype(np.float32)[:, None]
    shrink = (1 - rates * grid[:, None]).astype(np.float32)
    yx = (y[:, None] * x).astype(np.float32)  # (N, d)
    rng = random_stream(seed, "start of the descent")
    w = np.tile(sd * rng.standard_normal(x.shape[1]), (len(grid), 1)).astype(np.float32)
    for _ in range(steps):
        pull = 1 / (1 + np.exp(np.minimum(w @ yx.T, 80)))  # (P, N)
        w = shrink * w + rates * (pull @ yx)
    return w.astype(float)


def _minima(x: Array, y: Array, grid: Array) -> Array:
    """(P, d): the exact minimum at every prior precision, by Newton's method along the path."""
    problem = linear_problem(x[:, :-1], (y > 0).astype(int))
    return np.array([np.append(fit.coef, fit.intercept) for fit in lambda_path(problem, grid)])


def _scores(w: Array, x: Array, y: Array) -> tuple[float, float]:
    margins = y * (x @ w)
    return float(np.mean(margins > 0)), float(np.mean(np.logaddexp(0, -margins)))


def _ratio(w: Array, x: Array, y: Array, precision: float) -> float:
    margins = y * (x @ w)
    p = 1 / (1 + np.exp(-np.clip(margins, -700, 700)))
    rows = x * np.sqrt(p * (1 - p))[:, None]  # D^1/2 X
    kernel = rows @ rows.T / precision if len(x) < x.shape[1] else rows.T @ rows / precision
    kernel[np.diag_indices(len(kernel))] += 1
    log_det = 2 * float(np.log(np.diag(np.linalg.cholesky(kernel))).sum())
    nll = float(np.logaddexp(0, -margins).sum())
    return nll + precision / 2 * float(w @ w) + log_det / 2 - len(x) * math.log(2)


SECTION = Section(
    "R05-11",
    "Reading R05-11: one procedure for figures 1 and 2?",
    measure,
    judge,
    draw,
    reading=True,
)
