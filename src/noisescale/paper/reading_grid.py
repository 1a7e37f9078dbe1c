"""Figures 1 and 2 under other procedures: how the images were prepared, how the fit was reached.

The paper gives neither. Every cell of a grid is a way of both; in each the whole experiment of
:mod:`noisescale.paper.logistic` is made again, and E is that of the point reached,

    E = nll + lambda/2 |w|^2 + 1/2 ln det(I + X' D X/lambda) - N ln 2,   D = p (1 - p).
"""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from noisescale.data import Dataset, balanced_binary
from noisescale.evidence.linear.regression import check_pair, lambda_path, linear_problem
from noisescale.paper.logistic import LABELS, Array, Curves, CurvesBy, n_test, whiten
from noisescale.paper.section import Context
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


def measure_grid(context: Context) -> CurvesBy:
    """The curves of figures 1 and 2 in every cell, by cell and labels."""
    curves: CurvesBy = {}
    for images, start, labels in product(IMAGES, STARTS, LABELS):
        paths = [
            context.kept(one_path, images=images, start=start, labels=labels, seed=seed)
            for seed in range(context.seeds)
        ]
        curves[f"{images}, {start}", labels] = Curves(
            _grid(context), *np.stack(paths).transpose(2, 0, 1)
        )
    return curves


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
