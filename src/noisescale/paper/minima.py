"""The minima that SGD finds in the paper's network, and their evidence: behind figure 10."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisescale.evidence.curvature.products import curvature_operator
from noisescale.evidence.curvature.spectrum import leading
from noisescale.evidence.jax_problem import JaxProblem, jax_problem
from noisescale.evidence.laplace import log_evidence
from noisescale.evidence.occam.kernel import dual_kernel
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.prior_choice import (
    BOUNDS,
    layer_precisions_of_largest_evidence,
    trace_curve,
)
from noisescale.evidence.result import NotAMinimumWarning
from noisescale.paper.batches import LEARNING_RATE, MOMENTUM, N_CLASSES
from noisescale.paper.section import Context
from noisescale.seeds import random_stream
from noisescale.training import DenseNetwork, paper_network, train

PRIORS = ("largest evidence", "per layer", "0.01", "0.1", "1")
_FIXED = (0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Size:
    """How much a scale does."""

    n_train: int
    steps: int
    batch_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    per_layer: bool


SIZES = {
    "smoke": Size(60, 100, (10, 60), (784, 20, 10), True),
    "quick": Size(200, 1_000, (10, 30, 200), (784, 800, 10), False),
    "full": Size(1_000, 10_000, (14, 20, 30, 60, 150, 400, 1_000), paper_network().widths, True),
}
LABELS = ("true", "random")


@dataclass(frozen=True)
class Minimum:
    """One trained network.

    Attributes:
        E: the paper's log evidence ratio by the choice of the prior; E < 0 favours the network.
        prior_precision: the single one of largest evidence.
        gap: half the Newton decrement there, what the cost could still fall.
        top_curvature: the largest eigenvalue of the summed nll's Hessian.
    """

    seed: int
    batch_size: int
    labels: str
    l2: float
    train_accuracy: float
    train_cross_entropy: float
    test_accuracy: float
    test_cross_entropy: float
    E: dict[str, float]
    prior_precision: float
    gap: float
    top_curvature: float


def find_minimum(
    context: Context, seed: int, batch_size: int, labels: str, l2: float
) -> Minimum | None:
    """Train, and measure what was found; None if training diverged."""
    context.progress.line(f"figure 10: seed {seed}, B = {batch_size}, {labels} labels, L2 {l2:g}")
    size = SIZES[context.scale]
    network, params, pair, final = trained(context, size, seed, batch_size, labels, l2)
    if final is None:
        return None
    problem = jax_problem(network, params, pair, "categorical")
    E, best = _evidences(problem, per_layer=size.per_layer and labels == "true" and l2 == 0)
    with warnings.catch_warnings():  # how far from one is part of what is measured
        warnings.simplefilter("ignore", NotAMinimumWarning)
        at_best = log_evidence(
            network, params, pair, prior_precision=best, method="dual", at="point"
        )
    top = leading(curvature_operator(problem.model, "hessian", precision="float64"), 1)[0][0]
    return Minimum(
        seed=seed,
        batch_size=batch_size,
        labels=labels,
        l2=l2,
        train_accuracy=final.train_accuracy,
        train_cross_entropy=final.train_cross_entropy,
        test_accuracy=final.test_accuracy,
        test_cross_entropy=final.test_cross_entropy,
        E=E,
        prior_precision=best,
        gap=(at_best.newton_decrement or 0.0) / 2,
        top_curvature=float(top),
    )


def trained(
    context: Context, size: Size, seed: int, batch_size: int, labels: str, l2: float
) -> tuple[DenseNetwork, Any, tuple[Any, Any], Any]:
    """The network, its trained params, its data, and the last evaluation."""
    data = context.data.subset(n_train=size.n_train, seed=seed)
    y = data.y_train
    if labels == "random":
        y = random_stream(seed, "random labels").permutation(y)
    network = DenseNetwork(size.widths)
    run = train(
        network,
        network.init(seed),
        (data.x_train, y),
        learning_rate=LEARNING_RATE,
        momentum=MOMENTUM,
        batch_size=min(batch_size, size.n_train),
        steps=size.steps,
        prior_precision=l2,
        cost_convention="per_class",
        seed=seed,
        test_data=(data.x_test, data.y_test),
        evaluate_at="final",
    )
    return network, run.params, (data.x_train, y), run.final


def _evidences(problem: JaxProblem, *, per_layer: bool) -> tuple[dict[str, float], float]:
    """E under each prior, and the single precision of largest evidence."""
    nll, log_occam = trace_curve(
        problem, "dual", "ggn", Accuracy(), smallest=BOUNDS[0], n_values=1_000
    )
    sq_norm = float(problem.w @ problem.w)
    constant = nll - len(problem.model.y) * math.log(N_CLASSES)

    def ratio(precision: float) -> float:
        return constant + 0.5 * precision * sq_norm - log_occam(precision)

    grid = np.geomspace(*BOUNDS, 401)
    best = float(grid[int(np.argmin([ratio(value) for value in grid]))])
    E = {"largest evidence": ratio(best)} | {f"{value:g}": ratio(value) for value in _FIXED}
    if per_layer:
        chosen, _ = layer_precisions_of_largest_evidence(problem, "dual", "ggn")
        L = np.empty(len(problem.w))
        for name, index in problem.layers.items():
            L[index] = chosen[name]
        K = dual_kernel(problem, L, np.zeros(len(L))).matrix
        K[np.diag_indices(len(K))] += 1
        factor = np.linalg.cholesky(K)
        E["per layer"] = (
            constant + 0.5 * float(L @ problem.w**2) + float(np.log(np.diag(factor)).sum())
        )
    return E, best
