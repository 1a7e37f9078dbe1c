"""The experiment behind figures 1 and 2: logistic regression on zeros and ones.

800 balanced MNIST images of zeros and ones, 10,000 balanced test images, labels as they are or
permuted at random, the exact MAP at every prior precision. The paper does not say how it
preprocessed its images, so raw pixels in [0, 1] (primary) and PCA-whitened images are both run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.data import Dataset, balanced_binary
from noisescale.evidence.linear.path import lambda_path
from noisescale.evidence.linear.regression import check_pair, linear_problem
from noisescale.paper.claims import Judgement, judge_each
from noisescale.paper.section import Circumstances, Context
from noisescale.seeds import random_stream

Array = NDArray[np.float64]

PREPROCESSINGS = ("raw pixels", "whitened")
LABELS = ("informative", "random")
_PER_DECADE = {"smoke": 1, "quick": 4, "full": 4}
_N_TEST = {"smoke": 1_000, "quick": 10_000, "full": 10_000}
_N_TRAIN = 800
_EMBEDDED_N_TEST = 400  # the embedded part has fewer zeros and ones than section 3 needs


@dataclass(frozen=True)
class Curves:
    """What was measured at each prior precision; one row a seed."""

    prior_precision: Array  # (P,), ascending
    train_accuracy: Array  # (S, P)
    test_accuracy: Array
    train_cross_entropy: Array
    test_cross_entropy: Array
    margin: Array
    E: Array

    @property
    def n_seeds(self) -> int:
        """The number of seeds."""
        return len(self.E)


CurvesBy = dict[tuple[str, str], Curves]  # (preprocessing, labels)


def judge_under(at: Circumstances, preprocessing: str) -> Callable[..., Judgement]:
    """``verdict(claim, holds, measured, uncertainty)`` under this preprocessing.

    ``holds`` is one answer, or one for each seed. Deciding takes at least 3 seeds and the paper's
    grid and data.
    """
    grid = _PER_DECADE[at.scale] >= _PER_DECADE["full"]
    decidable = at.decides(enough=grid and n_test(at) >= _N_TEST["full"])

    def verdict(claim: str, holds: Any, measured: Any, uncertainty: Any = None) -> Judgement:
        return judge_each(
            claim,
            np.atleast_1d(holds).tolist(),
            decidable=decidable,
            measured=measured,
            uncertainty=uncertainty,
            convention=preprocessing,
            primary=preprocessing == PREPROCESSINGS[0],
        )

    return verdict


def n_test(at: Circumstances) -> int:
    """Test images, half of each class."""
    return _N_TEST[at.scale] if at.complete else _EMBEDDED_N_TEST


def measure_curves(context: Context) -> CurvesBy:
    """The curves of both figures, by preprocessing and labels."""
    grid = np.logspace(-8, 6, 14 * _PER_DECADE[context.scale] + 1)
    rows: dict[tuple[str, str], list[Array]] = {key: [] for key in product(PREPROCESSINGS, LABELS)}
    for seed in range(context.seeds):
        drawn = balanced_binary(
            0, 1, n_train=_N_TRAIN, n_test=n_test(context.at), seed=seed, data=context.data
        )
        for preprocessing, labels in rows:
            context.progress.line(f"figures 1 and 2: {preprocessing}, {labels} labels, seed {seed}")
            rows[preprocessing, labels].append(_one_path(drawn, preprocessing, labels, seed, grid))
    return {key: Curves(grid, *np.stack(paths).transpose(2, 0, 1)) for key, paths in rows.items()}


def _one_path(data: Dataset, preprocessing: str, labels: str, seed: int, grid: Array) -> Array:
    """(P, 6): accuracies, cross-entropies, margin and E at each prior precision."""
    x, y = check_pair(data.x_train, data.y_train)
    x_test, y_test = check_pair(data.x_test, data.y_test)
    if preprocessing == "whitened":
        x, x_test = whiten(x, x_test)
    if labels == "random":  # permuted, so that both classes stay balanced
        rng = random_stream(seed, "random labels")
        y, y_test = rng.permutation(y), rng.permutation(y_test)
    rows = []
    for fit in lambda_path(linear_problem(x, y), grid):
        train_accuracy, train_cross_entropy = fit.scores(x, y)
        test_accuracy, test_cross_entropy = fit.scores(x_test, y_test)
        cross_entropies = train_cross_entropy, test_cross_entropy
        rows.append([train_accuracy, test_accuracy, *cross_entropies, fit.mean_margin(x, y), fit.E])
    return np.array(rows)


def whiten(x: Array, *others: Array, floor: float = 0.0) -> tuple[Array, ...]:
    """Centred, rotated and scaled so that the training images have unit covariance.

    Directions in which the training images do not vary are dropped. With a ``floor``, directions
    whose variance is below that share of the largest are scaled as if they had it.
    """
    mean = x.mean(axis=0)
    _, s, vt = np.linalg.svd(x - mean, full_matrices=False)
    kept = s > 1e-10 * s[0]
    scales = np.maximum(s[kept], np.sqrt(floor) * s[0])
    to_unit = vt[kept].T / scales * np.sqrt(len(x) - 1)
    return tuple((images - mean) @ to_unit for images in (x, *others))
