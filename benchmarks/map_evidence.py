"""Evidence at the MAP: what it costs, and whether it believes random labels.

    python benchmarks/map_evidence.py [WIDTH N_TRAIN]      # 800 1000 by default: seven minutes

A 784-WIDTH-10 network is trained on N_TRAIN images of MNIST with B = 30 and without L2, on true and
on random labels. Then, for a prior precision of 0.1: E where training left it, and E at the MAP
nearby with the time that takes, Occam factor included. If laplace-torch is installed, its post-hoc
marginal likelihood (Kronecker-factored, prior optimised after training, as its manual does) stands
beside: which of them believes random labels? Other priors and seeds are in figure 11.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import noisescale as ns
from noisescale.data import load_mnist

RESULTS = Path(__file__).parent / "results" / "map_evidence.json"
PRIOR = 0.1
STEPS = 10_000


def measure(network: ns.DenseNetwork, params: object, pair: tuple, prior: float) -> dict:
    point = ns.log_evidence(network, params, pair, prior_precision=prior, at="point")
    began = time.perf_counter()
    found = ns.log_evidence(network, params, pair, prior_precision=prior, at="map")
    seconds = time.perf_counter() - began
    return {
        "prior_precision": prior,
        "E_at_the_point": point.E,
        "half_decrement_at_the_point": (point.newton_decrement or 0) / 2,
        "E_at_the_map": found.E,
        "seconds": seconds,
    } | (found.map.to_dict() if found.map else {})


def their_e(params: tuple, pair: tuple) -> float | None:
    """E by laplace-torch, from its log marginal likelihood and that of guessing."""
    try:
        from betting import laplace_torch

        log_marginal, _, _ = laplace_torch(params, pair)
    except ImportError:
        return None
    return -log_marginal - len(pair[1]) * np.log(10)


def main() -> None:
    width, n_train = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (800, 1000)
    warnings.simplefilter("ignore")
    data = load_mnist().subset(n_train=n_train, seed=0)
    random = np.random.default_rng(0).integers(10, size=n_train).astype(np.int32)
    network = ns.DenseNetwork((784, width, 10))
    rows = []
    for labels, y in (("true", data.y_train), ("random", random)):
        pair = (data.x_train, y)
        run = ns.train(
            network,
            network.init(0),
            pair,
            learning_rate=0.1,
            momentum=0.9,
            batch_size=30,
            steps=STEPS,
            evaluate_at="final",
        )
        row = {"labels": labels, **measure(network, run.params, pair, PRIOR)}
        row["laplace_torch_E"] = their_e(run.params, pair)
        rows.append(row)
        print(
            f"{labels} labels: E = {row['E_at_the_point']:.1f} at the point, "
            f"{row['E_at_the_map']} at the MAP ({row['status']}, {row['n_steps']} steps, "
            f"{row['seconds']:.0f} s), by laplace-torch {row['laplace_torch_E']}",
            flush=True,
        )
    document = {"width": width, "n_train": n_train, "steps": STEPS, "rows": rows}
    if (width, n_train) == (800, 1000):
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
