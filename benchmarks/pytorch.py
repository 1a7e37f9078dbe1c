"""Evidence and gradient noise of PyTorch modules beside their peers: time, memory, value.

    python benchmarks/pytorch.py [SECONDS] [--small]

Every cell is a process of its own: a module (``models.py``) that was trained before, then one
evidence by one method of noisescale, of laplace-torch (full, kfac, diagonal, and the last layer's
full matrix) or from curvlinops' operators; or gradient noise by noisescale, by BackPACK's
extensions, or by a loop over examples. Its time is that of the whole call, its memory the peak
beyond what was there before. noisescale's prediction stands beside; cells that it puts above
SECONDS (300 by default) are not run, and peers are stopped there. "Plain rows" is the
exact value as anyone would write it, from a product of the Jacobian's rows. ``--small`` tries the
script out: few examples, few steps of training, two probes where a method draws them, and 20 for
SECONDS.

Results go to results/pytorch.csv.
"""

import contextlib
import csv
import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "pytorch.csv"
PRIOR = 1.0
START = 20  # seconds to load what a cell needs
SHAPES = [("cnn", 200), ("cnn", 2_000), ("gpt", 200), ("mlp", 1_000)]
SMALL = [("mlp", 20), ("gpt", 4), ("cnn", 20)]
EVIDENCES = [
    *(("noisescale", method) for method in ("dense", "dual", "lanczos", "kfac", "diagonal")),
    ("plain rows", "dual"),
    *(("laplace-torch", method) for method in ("full", "kron", "diag", "last layer")),
    ("curvlinops", "lanczos"),
    ("curvlinops", "kfac"),
]
NOISES = [("noisescale", "noise"), ("loop", "noise"), ("backpack", "noise")]
_WHOLE = {("full", "laplace-torch"), ("kfac", "curvlinops")}  # p x p matrices, dense
_PACKAGES = {"laplace-torch": "laplace", "curvlinops": "curvlinops", "backpack": "backpack"}
COLUMNS = [
    "model",
    "n_params",
    "n_train",
    "library",
    "method",
    "seconds",
    "gib",
    "value",
    "predicted_seconds",
    "predicted_gib",
    "note",
]


def peak() -> float:
    """The process's own peak in GiB, by the kernel's count."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**20


def begin_again() -> float:
    """Let the peak start from what is there now, and say how much that is, in GiB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def evidence_by(library: str, method: str, module, data, probes: int) -> Callable[[], float]:
    """The function that a cell measures; it returns the log evidence."""
    if library == "noisescale":
        import noisescale.torch as nst

        return lambda: (
            nst.log_evidence(
                module, data, prior_precision=PRIOR, method=method, max_probes=probes
            ).log_evidence
        )
    if library == "plain rows":
        return lambda: plain_rows(module, data)
    if library == "curvlinops":
        return lambda: by_curvlinops(module, data, method, probes)
    return lambda: by_laplace(module, data, method)


def plain_rows(module, data) -> float:
    """The dual kernel as anyone would write it: rows by vmap of reverse mode, one product."""
    import numpy as np
    import scipy.linalg
    import torch

    x, y = data
    module = module.double()
    params = {name: p.detach() for name, p in module.named_parameters()}

    def outputs(params, x):
        return torch.func.functional_call(module, params, (x[None],))[0]

    def rows(x):
        J = torch.func.jacrev(outputs)(params, x)
        q = torch.softmax(outputs(params, x), 0)  # below, root' root is diag(q) - q q'
        root = torch.diag(q.sqrt()) - torch.outer(q.sqrt(), q)
        flat = torch.cat([part.flatten(1) for part in J.values()], 1)
        return root @ flat

    each = torch.func.vmap(rows)
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        nll = float(torch.nn.functional.cross_entropy(module(x), y, reduction="sum"))
    A = np.concatenate([each(x[s : s + 10]).flatten(0, 1).numpy() for s in range(0, len(x), 10)])
    K = A @ A.T / PRIOR
    K[np.diag_indices(len(K))] += 1
    factor = scipy.linalg.cholesky(K, lower=True, overwrite_a=True)
    penalty = 0.5 * PRIOR * sum(float((p**2).sum()) for p in params.values())
    return -nll - penalty - float(np.log(np.diag(factor)).sum())


def by_laplace(module, data, method: str) -> float:
    import torch
    from laplace import Laplace

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=100)
    last = method == "last layer"
    laplace = Laplace(
        module,
        "classification",
        subset_of_weights="last_layer" if last else "all",
        hessian_structure="full" if last else method,
        prior_precision=PRIOR,
    )
    laplace.fit(loader)
    return float(laplace.log_marginal_likelihood())


def by_curvlinops(module, data, method: str, probes: int) -> float:
    """The same formula from curvlinops' Gauss-Newton operators."""
    import torch
    from curvlinops import GGNLinearOperator, KFACLinearOperator

    x, y = data
    params = [p for p in module.parameters() if p.requires_grad]
    loss = torch.nn.CrossEntropyLoss(reduction="sum")
    if y.ndim > 1:
        raise NotImplementedError("a loss over sequences needs another module")
    nll = float(loss(module(x), y))
    penalty = 0.5 * PRIOR * sum(float((p**2).sum()) for p in params)
    blocks = [(x[s : s + 100], y[s : s + 100]) for s in range(0, len(x), 100)]
    if method == "kfac":
        operator = KFACLinearOperator(
            module, loss, params, blocks, fisher_type="type-2", check_deterministic=False
        )
        log_det = float((operator.to_dense() / PRIOR + torch.eye(operator.shape[0])).logdet())
        return -nll - penalty - 0.5 * log_det
    import noisescale as ns

    operator = GGNLinearOperator(module, loss, params, blocks, check_deterministic=False)
    return ns.log_evidence_from_operator(
        operator.to_scipy(),
        nll=nll,
        penalty=penalty,
        prior_precision=PRIOR,
        n_train=len(x),
        n_classes=10,
        method="lanczos",
        max_probes=probes,
    ).log_evidence


def noise_by(library: str, module, data) -> Callable[[], float]:
    """The function that a cell measures; it returns tr S."""
    if library == "noisescale":
        import noisescale.torch as nst

        return lambda: nst.gradient_noise(module, data).trace
    return lambda: trace_of(*(by_loop if library == "loop" else by_backpack)(module, data))


def trace_of(sq_norms: float, total: list, n: int) -> float:
    sq_total = sum(float((g.double() ** 2).sum()) for g in total)
    return (sq_norms - sq_total / n) / (n - 1)


def by_loop(module, data) -> tuple[float, list, int]:
    """One backward pass an example, keeping the sums that noisescale reports."""
    import torch

    x, y = data
    params = list(module.parameters())
    total, squares = ([torch.zeros_like(p) for p in params] for _ in range(2))
    sq_norms = 0.0
    for i in range(len(x)):
        module.zero_grad(set_to_none=True)
        outputs = module(x[i : i + 1])
        torch.nn.functional.cross_entropy(
            outputs.flatten(0, -2), y[i : i + 1].flatten(), reduction="sum"
        ).backward()
        for p, g, s in zip(params, total, squares, strict=True):
            sq_norms += float((p.grad**2).sum())
            g += p.grad
            s.addcmul_(p.grad, p.grad)
    return sq_norms, total, len(x)


def by_backpack(module, data) -> tuple[float, list, int]:
    import torch
    from backpack import backpack, extend
    from backpack.extensions import BatchL2Grad, SumGradSquared

    x, y = data
    if y.ndim > 1:
        raise NotImplementedError("no extension for attention and embeddings over sequences")
    module, loss = extend(module), extend(torch.nn.CrossEntropyLoss(reduction="sum"))
    total = [torch.zeros_like(p) for p in module.parameters()]
    sq_norms = 0.0
    for s in range(0, len(x), 100):
        module.zero_grad(set_to_none=True)
        with backpack(BatchL2Grad(), SumGradSquared()):
            loss(module(x[s : s + 100]), y[s : s + 100]).backward()
        for p, g in zip(module.parameters(), total, strict=True):
            sq_norms += float(p.batch_l2.sum())
            g += p.grad
    return sq_norms, total, len(x)


def predicted(module, data, method: str) -> dict:
    """noisescale's preflight of the same cell."""
    from noisescale.checks import memory_limit
    from noisescale.errors import InputError
    from noisescale.evidence.preflight import preflight
    from noisescale.torch.problem import TorchProblem

    problem = TorchProblem(module, data, "categorical")
    try:
        plan = preflight(problem.facts(), method, "ggn", problem)
    except InputError as error:
        return {"note": str(error)}
    (cost,) = (c for c in plan.costs if c.method == method)
    fits = cost.memory <= memory_limit()
    return {
        "predicted_seconds": cost.seconds,
        "predicted_gib": cost.memory / 2**30,
        "note": "" if fits else "does not fit",
    }


def train(name: str, n: int, steps: int, path: str) -> None:
    """Once for all cells of a model and a number of examples."""
    import models

    make, read = models.MODELS[name]
    models.torch.manual_seed(0)
    module = models.trained(make(), read(n), prior=PRIOR, steps=steps)
    models.torch.save(module.state_dict(), path)


def cell(
    name: str, n: int, library: str, method: str, patience: float, path: str, probes: int
) -> dict:
    """Measured in this process, which does nothing else."""
    import models
    from noisescale.checks import memory_limit

    warnings.simplefilter("ignore")
    make, read = models.MODELS[name]
    data, module = read(n), make()
    module.load_state_dict(models.torch.load(path))
    module.eval()
    row: dict = {"n_params": sum(p.numel() for p in module.parameters())}
    if method == "noise":
        run = noise_by(library, module, data)
    else:
        run = evidence_by(library, method, module, data, probes)
        if library == "noisescale":
            row |= predicted(module, data, method)
            if row["note"] or row["predicted_seconds"] > patience:
                return row | {"note": row["note"] or "not run: would take too long"}
        elif name == "gpt":
            return row | {"note": "no likelihood over sequences"}
        elif (method, library) in _WHOLE and 12.0 * row["n_params"] ** 2 > memory_limit():
            return row | {"note": "not run: p x p matrices do not fit"}
    if library in _PACKAGES:  # what importing takes is not the method's
        importlib.import_module(_PACKAGES[library])
    before, began = begin_again(), time.perf_counter()
    try:
        row["value"] = run()
    except (NotImplementedError, RuntimeError, MemoryError, ValueError) as error:
        return row | {"note": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    return row | {"seconds": time.perf_counter() - began, "gib": peak() - before}


def this_file(
    what: str, arguments: list, limit: float | None = None
) -> subprocess.CompletedProcess:
    """A part of this script as a process of its own."""
    command = [sys.executable, __file__, what, json.dumps(arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)


def measured(name: str, n: int, library: str, method: str, patience: float, *how) -> dict:
    """A cell's row, or why there is none."""
    limit = patience + START if library != "noisescale" else 2 * patience + START
    try:
        done = this_file("--cell", [name, n, library, method, patience, *how], limit)
    except subprocess.TimeoutExpired:
        return {"note": f"stopped after {limit - START:.0f} s"}
    if done.returncode:
        return {"note": (done.stderr.strip().splitlines() or ["killed"])[-1][:160]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    small = "--small" in sys.argv
    patience = float(arguments[0]) if arguments else 20.0 if small else 300.0
    shapes = SMALL if small else SHAPES
    steps, probes = (5, 2) if small else (1_500, 64)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, n in shapes:
            path = str(Path(folder) / f"{name}-{n}.pt")
            this_file("--train", [name, n, steps, path]).check_returncode()
            for library, method in [*EVIDENCES, *NOISES]:
                found = measured(name, n, library, method, patience, path, probes)
                row = {"model": name, "n_train": n, "library": library, "method": method}
                rows.append(row | found)
                print(json.dumps(rows[-1]), flush=True)
    if small:
        return
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    if "--cell" in sys.argv:
        print(json.dumps(cell(*json.loads(sys.argv[-1]))))
    elif "--train" in sys.argv:
        train(*json.loads(sys.argv[-1]))
    else:
        main()
