"""Evidence that may be bet on, for the paper's network: what it costs, and who believes what.

The network (784-800-10, 636,010 parameters), N = 1,000 MNIST images, trained at B = 30 without L2,
with true labels and with labels drawn at random: laplace-torch's post-hoc marginal likelihood
(Kronecker factors, the prior precision that maximises it) at the trained network, our exact
determinant at the same point and precision, and the prequential evidence of the recipe (one order
and seed), as log odds for the network against uniform guessing, and seconds.

What the MAP gives and costs is in map_evidence.py.

    python benchmarks/betting.py [--small]     # three minutes; --small tries it in one
"""

import json
import math
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

import noisescale as ns
from noisescale.data import load_mnist
from twins import torch_twin

RESULTS = Path(__file__).parent / "results" / "betting.json"


@dataclass(frozen=True)
class Size:
    n_train: int
    widths: tuple[int, ...]
    steps: int


FULL = Size(1_000, (784, 800, 10), 10_000)
SMALL = Size(100, (784, 20, 10), 200)


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    return function(), time.perf_counter() - began


def laplace_torch(params: tuple, pair: tuple) -> tuple[float, float, float]:
    """Their log marginal likelihood, its prior precision, and seconds."""
    from laplace import Laplace

    x, y = pair
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y.astype(np.int64))),
        batch_size=250,
    )

    def fit() -> tuple[float, float]:
        found = Laplace(
            torch_twin(params),
            "classification",
            subset_of_weights="all",
            hessian_structure="kron",
        )
        found.fit(loader)
        found.optimize_prior_precision(method="marglik")
        return float(found.log_marginal_likelihood()), float(found.prior_precision.mean())

    (value, precision), seconds = timed(fit)
    return value, precision, seconds


def beliefs(size: Size, network: ns.DenseNetwork, data: Any) -> list[dict]:
    rng = np.random.default_rng(0)
    random = rng.integers(0, 10, size.n_train).astype(np.int32)
    recipe = {"batch_size": 30, "learning_rate": 0.1, "momentum": 0.9, "steps": size.steps}
    log_null = -size.n_train * math.log(10)
    rows = []
    for labels, y in (("true", data.y_train), ("random", random)):
        pair = data.x_train, y
        params = ns.train(network, network.init(0), pair, **recipe, evaluate_at="final").params
        fit = ns.fit_function(network, network.init, **recipe)
        bet, bet_seconds = timed(
            lambda fit=fit, pair=pair: ns.prequential_evidence(fit, pair, orders=1, n_classes=10)
        )
        theirs, precision, their_seconds = laplace_torch(params, pair)
        point, point_seconds = timed(
            lambda params=params, pair=pair, precision=precision: ns.log_evidence(
                network, params, pair, prior_precision=precision, method="dual", at="point"
            )
        )
        rows.append(
            {
                "labels": labels,
                "prequential": {"log_bayes_factor": bet.log_bayes_factor, "seconds": bet_seconds},
                "exact_at_the_point": {
                    "log_bayes_factor": point.log_bayes_factor,
                    "seconds": point_seconds,
                },
                "laplace_torch": {
                    "log_bayes_factor": theirs - log_null,
                    "prior_precision": precision,
                    "seconds": their_seconds,
                },
            }
        )
        print(
            f"{labels} labels, log odds for the network against guessing: laplace-torch "
            f"{theirs - log_null:+.0f} ({their_seconds:.1f} s), exactly at the same point and "
            f"prior {point.log_bayes_factor:+.0f} ({point_seconds:.1f} s), prequential "
            f"{bet.log_bayes_factor:+.1f} ({bet_seconds:.0f} s)",
            flush=True,
        )
    return rows


def main() -> None:
    warnings.filterwarnings("ignore")
    size = SMALL if "--small" in sys.argv else FULL
    data = load_mnist().subset(n_train=size.n_train, seed=0)
    network = ns.DenseNetwork(size.widths)
    document = {
        "machine": platform.machine(),
        "cores": 2,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "beliefs": beliefs(size, network, data),
    }
    if size is FULL:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
