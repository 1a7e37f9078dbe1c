"""Which evidence ranks models as the test loss does: the plain one, or the conditional one?

    python benchmarks/conditional_evidence.py [N_TRAIN]          # 300 by default

Networks 64-w-10 (tanh) on the 8 x 8 digits, w = 5, 20, 80, under five prior precisions, each
at its MAP from one start: log evidence of all N examples, log evidence of the last fifth given the
others (both a training example, in nats), and the cross-entropy of the MAP on 800 test images.
"""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax
from scipy.stats import spearmanr

import noisescale as ns
from noisescale.data import load_digits

RESULTS = Path(__file__).parent / "results" / "conditional_evidence.json"
WIDTHS, PRIORS = (5, 20, 80), (0.001, 0.01, 0.1, 1.0, 10.0)


def network(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"] + params["c"]


def start(width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.normal(0, 0.3, (64, width)),
        "b": np.zeros(width),
        "v": rng.normal(0, 0.3, (width, 10)),
        "c": np.zeros(10),
    }


def measure(width: int, prior: float, n_train: int) -> dict[str, float]:
    data = load_digits()
    pair = data.x_train[:n_train], data.y_train[:n_train]
    n_first = 4 * n_train // 5
    settings = {"prior_precision": prior, "at": "map"}
    plain = ns.log_evidence(network, start(width), pair, **settings)
    assert plain.map is not None
    given = ns.log_evidence(network, plain.map.params, pair, conditional_on=n_first, **settings)
    outputs = np.asarray(network(plain.map.params, data.x_test[:800]))
    labels = data.y_test[:800]
    loss = -log_softmax(outputs, axis=1)[np.arange(len(labels)), labels].mean()
    return {
        "width": width,
        "prior_precision": prior,
        "log_evidence": plain.log_evidence / n_train,
        "conditional": given.log_evidence / (n_train - n_first),
        "test_cross_entropy": float(loss),
        "status": str(plain.map.status),
    }


def main() -> None:
    n_train = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    rows = []
    print("| width | prior precision | log evidence | of the last fifth | test cross-entropy |")
    print("|---|---|---|---|---|")
    for width in WIDTHS:
        for prior in PRIORS:
            row = measure(width, prior, n_train)
            rows.append(row)
            print(
                f"| {width} | {prior:g} | {row['log_evidence']:.3f} | {row['conditional']:.3f} | "
                f"{row['test_cross_entropy']:.3f} |",
                flush=True,
            )
    loss = [-row["test_cross_entropy"] for row in rows]
    ranks = {
        name: float(spearmanr([row[name] for row in rows], loss).statistic)
        for name in ("log_evidence", "conditional")
    }
    print("rank correlation with minus the test cross-entropy:", ranks)
    document = {"n_train": n_train, "rows": rows, "ranks": ranks}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
