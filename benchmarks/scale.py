"""The evidence at the size people train: run, not extrapolated, each cell up to ten minutes.

    scale.py [--small] [--seconds 600] [--minutes 60] [CELL ...]

A cell is a process of its own with a time limit; its seconds and its peak memory beyond what it had
loaded go into ``results/scale.json``, which keeps cells that were not asked for again, and from
which ``tools/measured.py --write`` fills docs/evidence.md. Cells come in the order of what they are
worth; none is begun when the ``--minutes`` are over, and models that cells share are trained once,
outside of a cell's time. ``--small`` does the same on a few hundred examples, to see that
everything runs, and writes nothing.

paper:*   The paper's network (784-800-10, 636,010 parameters) on N = 60,000 MNIST images, trained
          to the minimum of prior precision 1: bounds (with their distance by rows and time),
          lanczos, kfac and diagonal; laplace-torch's KFAC, and curvlinops' Gauss-Newton operator
          with a plain Lanczos, whose products are timed and probes counted.
exact:*   The same network on N = 1,000: the exact evidence, and bounds of several tolerances, in
          units of one float32 Cholesky factorisation of 10,000 rows; a curve over prior precisions
          in units of the one exact evidence.
resnet:*  A residual network of ten million parameters (batch norm frozen) on 5,000 images: the last
          layer, kfac, diagonal. ``resnet300k:*`` and ``gpt:*`` (300,000 and a million parameters,
          500 examples): bounds, lanczos, kfac, diagonal.

The ``gpt`` classifies what follows a window of 32 characters.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "scale.json"
KEPT = Path(tempfile.gettempdir()) / "noisescale-scale"  # trained models, between cells
PRIOR = 1.0
TOLERANCES = (100.0, 10.0, 1.0, 0.1)
NEAR = 0.01  # of the log Occam factor: what the bounds are to be apart
GIB = 8.0  # of memory for bounds, of which the columns may take three quarters


def peak() -> float:
    """Of this process's memory so far, in GiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**20


def measured(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    before, began = peak(), time.perf_counter()
    found = function()
    return {"seconds": time.perf_counter() - began, "gib": peak() - before} | found


def heard(line: str) -> None:
    """How far a cell was, in case its time is up."""
    print(line, file=sys.stderr, flush=True)


def told(evidence: Any) -> dict[str, Any]:
    """What a table has of an evidence."""
    kept = (
        "rows",
        "rows_that_matter",
        "kernel_rows",
        "n_probes",
        "n_steps",
        "products",
        "spread_left",
    )
    return {
        "log_evidence": evidence.log_evidence,
        "log_occam_factor": evidence.log_occam_factor,
        "std": evidence.log_evidence_std,
        "bounds": evidence.log_evidence_bounds,
        "newton_decrement": evidence.newton_decrement,
    } | {name: evidence.details[name] for name in kept if name in evidence.details}


# The paper's network


def mnist(n: int) -> tuple[Any, Any]:
    from noisescale.data import load_mnist

    data = load_mnist()
    if n < len(data.y_train):
        data = data.subset(n_train=n, seed=0)
    return data.x_train, data.y_train


def paper_params(n: int) -> Any:
    """Trained with SGD under the prior, then L-BFGS over the whole set; kept for other cells."""
    import jax

    import noisescale as ns
    from noisescale.evidence.descent import Cost, descend
    from noisescale.evidence.jax_problem import jax_problem

    network, pair = ns.paper_network(), mnist(n)
    path = KEPT / f"paper-{n}.npz"
    start = network.init(0)
    if path.exists():
        leaves = [np.load(path)[f"leaf{i}"] for i in range(len(jax.tree.leaves(start)))]
        return jax.tree.unflatten(jax.tree.structure(start), leaves)
    params = start
    for learning_rate, batch, steps in ((0.1, 100, 12_000), (0.1, 1_000, 1_000)):
        params = ns.train(
            network,
            params,
            pair,
            learning_rate=learning_rate,
            momentum=0.9,
            batch_size=min(batch, n // 4),
            steps=max(1, steps // (1 if n > 10_000 else 4 if n >= 1_000 else 100)),
            prior_precision=PRIOR,
            evaluate_at="final",
        ).params
    problem = jax_problem(network, params, pair, "categorical")
    cost = Cost(problem, np.full(len(problem.w), PRIOR), None)
    n_steps = 150 if n >= 1_000 else 5
    lowest = descend(cost, problem.w * cost.root, "float32", n_steps, exactly=False)
    params = problem.structured(lowest.u / cost.root)
    KEPT.mkdir(exist_ok=True)
    np.savez(path, **{f"leaf{i}": leaf for i, leaf in enumerate(jax.tree.leaves(params))})
    return params


def log_determinant(M: Any) -> float:
    return float(np.linalg.slogdet(np.eye(len(M)) + M)[1])


def paper_bounds(n: int, seconds: float) -> dict[str, Any]:
    """Columns until the bounds are near or the time is up; their distance on the way."""
    import noisescale as ns
    from noisescale.evidence.jax_problem import jax_problem
    from noisescale.evidence.occam import bounds

    problem = jax_problem(ns.paper_network(), paper_params(n), mnist(n), "categorical")
    L = np.full(len(problem.w), PRIOR)

    def run() -> dict[str, Any]:
        began, trail = time.perf_counter(), []
        found = bounds.begun(problem, L, 30.0 if n > 10_000 else 1.0)
        known = 0.0
        width = np.dtype(found.precision).itemsize * max(len(found.rows), 1)
        room = min(found.room, int(0.75 * GIB * 2**30 / width))
        while found.gap > NEAR * known and (found.residual > 0).any():
            # The determinant at the end takes about as long as all columns together.
            passed = time.perf_counter() - began
            trail.append((len(found.pivots), passed, found.gap / 2))
            if passed > 0.45 * seconds or len(found.pivots) >= room:
                break
            found.extend(min(found.builder.columns_at_once, room - len(found.pivots)))
            if len(found.blocks) % 4 == 0:
                F = found.at_pivots()
                known = log_determinant(F @ F.T)  # of these rows alone: less than of all
        trail.append((len(found.pivots), time.perf_counter() - began, found.gap / 2))
        known = log_determinant(found.inner())
        lower, upper = known - found.rounding, known + found.gap + found.rounding
        return {
            "log_occam_bounds": (-upper / 2, -lower / 2),
            "rows": found.n_rows,
            "rows_that_matter": len(found.rows),
            "kernel_rows": len(found.pivots),
            "products": found.precision,
            "distance_by_rows_and_seconds": trail,
        }

    return measured(run)


def paper_method(method: str) -> Callable[[int, float], dict[str, Any]]:
    def cell(n: int, seconds: float) -> dict[str, Any]:
        import noisescale as ns

        network, params, pair = ns.paper_network(), paper_params(n), mnist(n)
        return measured(
            lambda: told(
                ns.log_evidence(
                    network,
                    params,
                    pair,
                    prior_precision=PRIOR,
                    method=method,
                    at="point",
                    progress=heard,
                )
            )
        )

    return cell


def paper_laplace_torch(n: int, seconds: float) -> dict[str, Any]:
    import torch
    from laplace import Laplace

    from twins import torch_twin

    (x, y), params = mnist(n), paper_params(n)
    module = torch_twin(params).float()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y.astype(np.int64))),
        batch_size=500,
    )

    def run() -> dict[str, Any]:
        laplace = Laplace(
            module,
            "classification",
            subset_of_weights="all",
            hessian_structure="kron",
            prior_precision=PRIOR,
        )
        laplace.fit(loader)
        return {"log_evidence": float(laplace.log_marginal_likelihood())}

    return measured(run)


def paper_curvlinops(n: int, seconds: float) -> dict[str, Any]:
    """Its Gauss-Newton operator with Lanczos as it is usually written, in float32."""
    import torch
    from curvlinops import GGNLinearOperator

    from twins import torch_twin

    (x, y), params = mnist(n), paper_params(n)
    module = torch_twin(params).float()
    batches = [
        (torch.tensor(x[s : s + 2_000]), torch.tensor(y[s : s + 2_000].astype(np.int64)))
        for s in range(0, n, 2_000)
    ]
    operator = GGNLinearOperator(
        module,
        torch.nn.CrossEntropyLoss(reduction="sum"),
        list(module.parameters()),
        batches,
        check_deterministic=False,
    )
    p = sum(parameter.numel() for parameter in module.parameters())

    def run() -> dict[str, Any]:
        generator, began = torch.Generator().manual_seed(0), time.perf_counter()
        values, products, steps = [], 0, 64
        while time.perf_counter() - began < 0.9 * seconds:
            z = torch.randint(0, 2, (p,), generator=generator).float() * 2 - 1
            q, Q, alpha, beta = z / z.norm(), [], [], []
            for _ in range(steps):
                if time.perf_counter() - began > 0.95 * seconds:
                    break
                Q.append(q)
                w = operator @ q / PRIOR
                products += 1
                alpha.append(float(w @ q))
                basis = torch.stack(Q)
                w = w - basis.T @ (basis @ w)
                beta.append(float(w.norm()))
                q = w / w.norm()
            if len(alpha) < steps:
                break
            T = np.diag(alpha) + np.diag(beta[:-1], 1) + np.diag(beta[:-1], -1)
            nodes, vectors = np.linalg.eigh(T)
            values.append(-p / 2 * float(vectors[0] ** 2 @ np.log1p(np.maximum(nodes, 0))))
        took = time.perf_counter() - began
        spread = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
        return {
            "seconds_a_product": took / max(products, 1),
            "n_probes": len(values),
            "log_occam_factor": float(np.mean(values)) if values else None,
            "std": spread,
        }

    return measured(run)


# Exact, at N = 1,000


def exact(n: int, seconds: float) -> dict[str, Any]:
    import scipy.linalg

    import noisescale as ns

    network, params, pair = ns.paper_network(), paper_params(n), mnist(n)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(10 * n, 200)).astype(np.float32)
    M = root @ root.T
    M[np.diag_indices(len(M))] += len(M)

    def cholesky() -> float:
        began = time.perf_counter()
        scipy.linalg.cholesky(M, lower=True, check_finite=False)
        return time.perf_counter() - began

    def evidence(tolerance: float) -> dict[str, Any]:
        return measured(
            lambda: told(
                ns.log_evidence(
                    network,
                    params,
                    pair,
                    prior_precision=PRIOR,
                    method="dual",
                    at="point",
                    tolerance=tolerance,
                )
            )
        )

    evidence(0.0), cholesky()
    rounds = [(evidence(0.0), cholesky()) for _ in range(3)]
    unit = float(np.median([b for _, b in rounds]))
    once = float(np.median([a["seconds"] for a, _ in rounds]))
    curve = measured(lambda: {"best": ns.evidence_curve(network, params, pair, method="dual").best})
    bounds = [evidence(t) | {"tolerance": t} for t in TOLERANCES]
    return {
        "cholesky_seconds": unit,
        "exact": rounds[0][0] | {"seconds": once, "ratio": once / unit},
        "bounds": [found | {"choleskys": found["seconds"] / unit} for found in bounds],
        "curve": curve | {"evidences": curve["seconds"] / once},
    }


# PyTorch's own


def residual(widths: tuple[int, ...]) -> Any:
    """A residual network on 28 x 28 images, batch norms and all."""
    from torch import nn

    class Shortcut(nn.Module):
        def __init__(self, i: int, o: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(i, o, 3, stride, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.ReLU(),
                nn.Conv2d(o, o, 3, 1, 1, bias=False),
                nn.BatchNorm2d(o),
            )
            self.beside = (
                nn.Identity()
                if i == o and stride == 1
                else nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))
            )

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.beside(x))

    first = widths[0]
    parts = [
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, first, 5, 2, 2, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    before = first
    for k, width in enumerate(widths):
        parts += [Shortcut(before, width, 1 if k == 0 else 2), Shortcut(width, width, 1)]
        before = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def torch_model(name: str, n: int) -> tuple[Any, Any]:
    """A module, trained a little under the prior, and its data."""
    import torch

    from models import GPT, characters, images, trained

    class Last(torch.nn.Module):
        """What is said of a sequence's last place."""

        def forward(self, x: Any) -> Any:
            return x[:, -1]

    torch.manual_seed(0)
    if name == "gpt":
        # What comes next, as one of ten groups of characters: nine rows an example.
        module = torch.nn.Sequential(GPT(width=144, depth=4), Last(), torch.nn.Linear(65, 10))
        x, y = characters(n)
        data = x, y[:, -1] // 7
    else:
        widths = {"resnet": (64, 128, 256, 512), "resnet300k": (16, 32, 48, 64)}[name]
        if name == "resnet":
            widths = tuple(int(0.95 * w) for w in widths)
        module, data = residual(widths), images(n)
    path = KEPT / f"{name}-{n}.pt"
    if path.exists():
        module.load_state_dict(torch.load(path))
    else:
        trained(module, data, prior=PRIOR, steps=300 if n >= 500 else 5)
        KEPT.mkdir(exist_ok=True)
        torch.save(module.state_dict(), path)
    return module.eval(), data


def torch_method(name: str, method: str) -> Callable[[int, float], dict[str, Any]]:
    def cell(n: int, seconds: float) -> dict[str, Any]:
        import noisescale.torch as nst

        module, data = torch_model(name, n)
        last = list(dict(module.named_parameters()))[-1].rpartition(".")[0]
        settings: dict[str, Any] = {"prior_precision": PRIOR, "at": "point", "method": method}
        if method == "last layer":
            settings |= {"method": "auto", "select": last}
        if method == "dual":
            settings["tolerance"] = 10.0
        found = measured(lambda: told(nst.log_evidence(module, data, progress=heard, **settings)))
        return found | {"p": sum(v.numel() for v in module.parameters())}

    return cell


CELLS: dict[str, tuple[Callable[[int, float], dict[str, Any]], int, int]] = {
    "exact:N = 1,000": (exact, 1_000, 60),
    "paper:bounds": (paper_bounds, 60_000, 400),
    "paper:kfac": (paper_method("kfac"), 60_000, 400),
    "paper:diagonal": (paper_method("diagonal"), 60_000, 400),
    "paper:laplace-torch kfac": (paper_laplace_torch, 60_000, 400),
    "paper:lanczos": (paper_method("lanczos"), 60_000, 400),
    **{
        f"resnet:{method}": (torch_method("resnet", method), 5_000, 40)
        for method in ("last layer", "diagonal", "kfac")
    },
    **{
        f"{name}:{method}": (torch_method(name, method), 500, 20)
        for method in ("kfac", "diagonal", "dual", "lanczos")
        for name in ("resnet300k", "gpt")
    },
    "paper:curvlinops lanczos": (paper_curvlinops, 60_000, 400),
}


def prepared(name: str, n: int) -> None:
    """Train what a cell needs, outside of its time."""
    kind = name.partition(":")[0]
    if kind in ("paper", "exact"):
        paper_params(n)
    else:
        torch_model(kind, n)


def in_a_process(arguments: list[str], seconds: float | None) -> dict[str, Any]:
    command = [sys.executable, __file__, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        lines = (late.stderr or b"").decode(errors="replace").strip().splitlines()
        return {"status": f"not done after {seconds:.0f} s", "heard": (lines or [""])[-1][:200]}
    if done.returncode:
        return {"status": (done.stderr.strip().splitlines() or ["failed"])[-1][:200]}
    return {"status": "done"} | json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.cell or given.prepare:
        name = given.cell or given.prepare
        function, large, small = CELLS[name]
        n = small if given.small else large
        print(json.dumps(function(n, given.seconds) if given.cell else (prepared(name, n) or {})))
        return
    document = json.loads(RESULTS.read_text()) if RESULTS.exists() and not given.small else {}
    size, began = ["--small"] if given.small else [], time.monotonic()
    for name in given.cells or CELLS:
        if time.monotonic() - began > 60 * given.minutes:
            print(f"{name}: not begun, {given.minutes:.0f} minutes are over", flush=True)
            continue
        ready = in_a_process(["--prepare", name, *size], None)
        left = max(60 * given.minutes - (time.monotonic() - began), 60.0)
        seconds = min(given.seconds, left)
        allowed = ["--seconds", str(seconds), *size]
        found = (
            in_a_process(["--cell", name, *allowed], seconds + 60)
            if ready["status"] == "done"
            else ready
        )
        document[name] = {"n": CELLS[name][2 if given.small else 1]} | found
        print(name, json.dumps(document[name])[:400], flush=True)
        if not given.small:
            RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
