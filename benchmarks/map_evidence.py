"""Evidence at the MAP: what it costs, and whether it believes random labels.

    python benchmarks/map_evidence.py [WIDTH N_TRAIN STEPS]      # 800 1000 5000 by default

A 784-WIDTH-10 network is trained on N_TRAIN images of MNIST with B = 30 and without L2, on true and
on random labels. Then, for prior precisions 0.1, 1 and 10: E where training left it, and E at the
MAP nearby with the time that takes, Occam factor included. If laplace-torch is installed, its
post-hoc marginal likelihood (Kronecker-factored, prior optimised after training, as its manual
does) stands beside: which of them believes random labels?
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
PRIORS = (0.1, 1.0, 10.0)


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


def laplace_torch(params: object, pair: tuple) -> float | None:
    """E by laplace-torch: minus its log marginal likelihood, plus the null model's."""
    try:
        import torch
        from laplace import Laplace
    except ImportError:
        return None
    (first, second), (x, y) = params, pair
    module = torch.nn.Sequential(
        torch.nn.Linear(*first["w"].shape), torch.nn.ReLU(), torch.nn.Linear(*second["w"].shape)
    )
    with torch.no_grad():
        for layer, own in ((module[0], first), (module[2], second)):
            layer.weight.copy_(torch.tensor(np.asarray(own["w"]).T))
            layer.bias.copy_(torch.tensor(np.asarray(own["b"])))
    data = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y).long())
    model = Laplace(module, "classification", subset_of_weights="all", hessian_structure="kron")
    model.fit(torch.utils.data.DataLoader(data, batch_size=len(y)))
    model.optimize_prior_precision(method="marglik")
    return float(-model.log_marginal_likelihood()) - len(y) * np.log(10)


def main() -> None:
    width, n_train, steps = map(int, sys.argv[1:4]) if len(sys.argv) > 3 else (800, 1000, 5000)
    warnings.simplefilter("ignore", ns.NotAMinimumWarning)
    data = load_mnist().subset(n_train=n_train, seed=0)
    rows = []
    print("labels | prior precision | E at the point | E at the MAP | status | seconds")
    for labels in ("true", "random"):
        y = data.y_train
        if labels == "random":
            y = np.random.default_rng(0).integers(10, size=n_train)
        network = ns.DenseNetwork((784, width, 10))
        run = ns.train(
            network,
            network.init(0),
            (data.x_train, y),
            learning_rate=0.1,
            momentum=0.9,
            batch_size=30,
            steps=steps,
            evaluate_at="final",
        )
        for prior in PRIORS:
            row = measure(network, run.params, (data.x_train, y), prior)
            rows.append({"labels": labels} | row)
            print(
                f"{labels} | {prior:g} | {row['E_at_the_point']:.1f} | {row['E_at_the_map']:.1f} | "
                f"{row['status']} | {row['seconds']:.0f}",
                flush=True,
            )
        theirs = laplace_torch(run.params, (data.x_train, y))
        if theirs is not None:
            rows.append({"labels": labels, "laplace_torch_E": theirs})
            print(f"{labels} | laplace-torch, prior chosen after training | E = {theirs:.1f}")
    document = {"width": width, "n_train": n_train, "steps": steps, "rows": rows}
    if (width, n_train) == (800, 1000):
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
