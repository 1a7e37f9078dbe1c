"""How far preflight's predictions hold: time and peak memory, predicted and measured.

    python benchmarks/preflight.py [SECONDS] [--small]

Every cell (framework, model, N, method) is a process of its own: the prediction first, which
compiles and loads what it needs, then the evidence; its memory is the peak beyond what was there
before the evidence. A cell holds if both lie within a factor of two, or within two seconds and a
quarter of a GiB, below which starting up decides. Cells predicted above SECONDS (300 by default)
are not run. For an idle machine: what runs beside slows what is measured or the rest, not both.
Ten to fifteen minutes on two cores; ``python tools/measured.py --write`` then puts the table into
docs/pytorch.md.
``--small`` tries the script out with few examples, and 20 for SECONDS.

Results go to results/preflight.csv.
"""

import csv
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

from pytorch import begin_again, peak

RESULTS = Path(__file__).parent / "results" / "preflight.csv"
CELLS = [
    *(("torch", "cnn", 200, m) for m in ("dual", "lanczos", "kfac", "diagonal")),
    *(("torch", "cnn", 1_000, m) for m in ("dual", "kfac", "diagonal")),
    *(("torch", "mlp", 300, m) for m in ("dual", "lanczos", "kfac", "diagonal")),
    ("torch", "mlp", 1_000, "dual"),
    *(("torch", "gpt", 20, m) for m in ("kfac", "diagonal", "lanczos")),
    ("torch", "softmax", 500, "dense"),
    *(("jax", "layers", 1_000, m) for m in ("dual", "lanczos", "kfac", "diagonal")),
    *(("jax", "function", 300, m) for m in ("dual", "diagonal")),
    *(("jax", "conv", 200, m) for m in ("dual", "lanczos", "diagonal")),
    ("jax", "conv", 1_000, "dual"),
    *(("jax", "softmax", 2_000, m) for m in ("dense", "dual", "lanczos")),
]
COLUMNS = [
    "framework",
    "model",
    "n_train",
    "method",
    "predicted_seconds",
    "seconds",
    "predicted_gib",
    "gib",
    "holds",
    "note",
]


def problem_of(framework: str, model: str, n: int):
    """The model at its initialisation, and its data."""
    if framework == "torch":
        import models
        from noisescale.torch.problem import TorchProblem

        models.torch.manual_seed(0)
        make, read = models.MODELS[model]
        return TorchProblem(make().eval(), read(n), "categorical")
    import noisescale as ns
    from noisescale.data import load_mnist
    from noisescale.evidence.jax_problem import jax_problem

    data = load_mnist().subset(n_train=n, seed=0)
    network = (
        ns.softmax_regression(784, 10) if model == "softmax" else ns.DenseNetwork((784, 100, 10))
    )
    function, params = network, network.init(0)
    if model == "function":
        function = lambda params, x: network(params, x)  # noqa: E731 which hides the layers
    if model == "conv":
        function, params = convolution()
    return jax_problem(function, params, (data.x_train, data.y_train), "categorical")


def convolution():
    """A 5 x 5 convolution of 16 channels, pooled, and a linear layer, in plain JAX."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    params = {
        "kernel": rng.normal(0, 0.1, (5, 5, 1, 16)).astype(np.float32),
        "head": rng.normal(0, 0.05, (16 * 49, 10)).astype(np.float32),
    }

    def apply(params, x):
        h = jax.lax.conv_general_dilated(
            x.reshape(-1, 28, 28, 1),
            params["kernel"],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        h = jnp.tanh(h).reshape(-1, 7, 4, 7, 4, 16).mean(axis=(2, 4))
        return h.reshape(len(x), -1) @ params["head"]

    return apply, params


def cell(framework: str, model: str, n: int, method: str, patience: float) -> dict:
    """Measured in this process, which does nothing else."""
    from noisescale.evidence.laplace import evidence_of
    from noisescale.evidence.preflight import preflight

    warnings.simplefilter("ignore")
    problem = problem_of(framework, model, n)
    plan = preflight(problem.facts(), method, "ggn", problem)
    (cost,) = (c for c in plan.costs if c.method == method)
    row = {"predicted_seconds": cost.seconds, "predicted_gib": cost.memory / 2**30}
    if cost.seconds > patience:
        return row | {"note": "not run: would take too long"}
    before, began = begin_again(), time.perf_counter()
    evidence_of(problem, prior_precision=1.0, method=method)
    row |= {"seconds": time.perf_counter() - began, "gib": peak() - before}
    times, sizes = (row["predicted_seconds"], row["seconds"]), (row["predicted_gib"], row["gib"])
    row["holds"] = all(
        max(pair) <= 2 * min(pair) or max(pair) - min(pair) <= room
        for pair, room in ((times, 2.0), (sizes, 0.25))
    )
    return row


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    small = "--small" in sys.argv
    patience = float(arguments[0]) if arguments else 20.0 if small else 300.0
    rows = []
    for framework, model, n, method in CELLS:
        if small:
            n = 4 if model == "gpt" else 20
        asked = json.dumps([framework, model, n, method, patience])
        done = subprocess.run(
            [sys.executable, __file__, "--cell", asked],
            capture_output=True,
            text=True,
            check=False,
        )
        found = (
            json.loads(done.stdout.strip().splitlines()[-1])
            if done.returncode == 0
            else {"note": (done.stderr.strip().splitlines() or ["killed"])[-1][:160]}
        )
        rows.append(
            {"framework": framework, "model": model, "n_train": n, "method": method} | found
        )
        row = {key: float("nan") for key in COLUMNS[4:8]} | rows[-1]
        print(
            f"{framework:5} {model:8} N = {n:>5,} {method:8} "
            f"{row['predicted_seconds']:>7.1f} s predicted, {row['seconds']:>7.1f} s;  "
            f"{row['predicted_gib']:>5.2f} GiB predicted, {row['gib']:>5.2f} GiB  "
            f"{'' if row.get('holds', True) else 'MISSED'}{row.get('note', '')}",
            flush=True,
        )
        if not small:  # what is measured so far is kept
            with RESULTS.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
    held = [row["holds"] for row in rows if "holds" in row]
    print(f"{sum(held)} of {len(held)} cells hold")


if __name__ == "__main__":
    if "--cell" in sys.argv:
        print(json.dumps(cell(*json.loads(sys.argv[-1]))))
    else:
        main()
