"""How each method of the evidence grows with the number of parameters p and of examples N.

A cell is a process of its own that does one evidence of a 784-w-10 network at initialisation; its
time (compilation included) and its peak memory beyond what it had loaded are reported. Cells that
the preflight estimate puts above the patience (``growth.py SECONDS``, ten minutes by default), or
whose memory is not there, are not run, and have no time. ``lanczos`` does two probes of at most 64
steps: more probes are a matter of accuracy, and cost time in proportion.

About ten minutes. Results go to results/growth.json, from which ``tools/measured.py --write`` fills
the table in docs/evidence.md.
"""

import json
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "growth.json"
METHODS = ("dual", "lanczos", "kfac", "diagonal", "dense")
WIDTHS = (13, 126, 800, 6_290)  # 1e4, 1e5, 6.4e5, 5e6 parameters
EXAMPLES = (100, 1_000, 10_000, 60_000)
PAPER = (800, 1_000)

CELL = """
import json, re, sys, time, warnings
from pathlib import Path
import noisescale as ns
from noisescale.checks import memory_limit
from noisescale.data import load_mnist
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam.lanczos import PROBES
from noisescale.evidence.preflight import cost
warnings.simplefilter("ignore")
method, width, n, patience = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 2**20

data = load_mnist().subset(n_train=n, seed=0)
pair = data.x_train, data.y_train
network = ns.DenseNetwork((784, width, 10))
params = network.init(0)
problem = jax_problem(network, params, pair, "categorical")
expected = cost(method, "ggn", problem.facts())
seconds = expected.seconds * (2.5 / PROBES if method == "lanczos" else 1)
told = {"method": method, "p": len(problem.w), "N": n, "estimate_seconds": seconds,
        "estimate_gib": expected.memory / 2**30, "fits": expected.memory <= memory_limit()}
if told["fits"] and seconds <= patience:
    before, began = peak(), time.perf_counter()
    ns.log_evidence(network, params, pair, prior_precision=1.0, method=method, max_probes=2)
    told |= {"seconds": time.perf_counter() - began, "gib": peak() - before}
print(json.dumps(told))
"""


def measure(method: str, width: int, n: int, patience: float) -> dict:
    command = [sys.executable, "-c", CELL, method, str(width), str(n), str(patience)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    patience = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    shapes = sorted({(w, PAPER[1]) for w in WIDTHS} | {(PAPER[0], n) for n in EXAMPLES})
    cells = []
    for method in METHODS:
        for width, n in shapes:
            cells.append(measure(method, width, n, patience))
            print(json.dumps(cells[-1]), flush=True)
    RESULTS.write_text(json.dumps({"patience": patience, "cells": cells}, indent=1) + "\n")


if __name__ == "__main__":
    main()
