"""Evidence and gradient noise of PyTorch modules beside their peers: time, memory, value.

    python benchmarks/pytorch.py [SECONDS] [MODEL,N ...] [--small]

Each module (``models.py``) is trained for some steps first. Then every cell is a process of its
own: one evidence by one method of noisescale, of laplace-torch (full, kfac, diagonal, and the last
layer's full matrix) or from curvlinops' operators; or gradient noise by noisescale, by BackPACK's
extensions, or by a loop over examples. Its time is that of the whole call, after one on a few
examples that loads what is needed, in seconds of CPU on one thread, so that what else the machine
does matters little; its memory the peak beyond what was there before. noisescale's prediction
stands beside; cells whose counted operations would take more than SECONDS (300 by default) are not
run, and peers are stopped some time after. Nobody gets more than most of the memory that is free.
"Plain rows" is the exact value as anyone would write it, from a product of the Jacobian's rows.
``--small`` tries the script out: few examples, few steps of training, two probes where a method
draws them, and 20 for SECONDS.

Results go to results/pytorch.csv, row by row; a run that was stopped goes on where it was, or with
the shapes that are named (cnn,2000), so delete that file for measurements anew.
"""

import contextlib
import copy
import csv
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "pytorch.csv"
PRIOR = 1.0
SHAPES = [("cnn", 200), ("gpt", 200), ("cnn", 2_000), ("mlp", 1_000)]
STEPS = {"cnn": 300, "mlp": 300, "gpt": 50}  # of training
SMALL = [("mlp", 20), ("gpt", 4), ("cnn", 20)]
EVIDENCES = [
    *(("noisescale", method) for method in ("kfac", "dual", "diagonal", "last layer")),
    *(("laplace-torch", method) for method in ("kron", "last layer", "full")),
    ("plain rows", "dual"),
    *(("noisescale", method) for method in ("dense", "lanczos")),
    ("laplace-torch", "diag"),
    ("curvlinops", "lanczos"),
    ("curvlinops", "kfac"),
]
NOISES = [("noisescale", "noise"), ("loop", "noise"), ("backpack", "noise")]
_WHOLE = {("full", "laplace-torch"), ("kfac", "curvlinops")}  # p x p matrices, dense
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LAST = {"cnn": "10", "mlp": "2", "gpt": "head"}  # layers
_RATE = 2e10  # operations a second that one thread may be expected to do
_MOST = 0.5  # of the memory that is free
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


def bounded() -> None:
    """Let an allocation fail rather than the machine."""
    free = int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) * 1024
    used = int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (used + int(_MOST * free),) * 2)


def evidence_by(
    library: str, method: str, module, data, probes: int, last: str
) -> Callable[[], float]:
    """The function that a cell measures; it returns the log evidence."""
    if library == "noisescale":
        import noisescale.torch as nst

        settings = {"prior_precision": PRIOR, "method": method, "max_probes": probes}
        if method == "last layer":
            settings |= {"method": "dense", "select": last}
        return lambda: nst.log_evidence(module, data, **settings).log_evidence
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


def predicted(module, data, method: str, patience: float) -> dict:
    """noisescale's preflight of the same cell."""
    from noisescale.checks import memory_limit
    from noisescale.errors import InputError
    from noisescale.evidence import timing
    from noisescale.evidence.preflight import preflight
    from noisescale.torch.problem import TorchProblem

    timing.clock = time.process_time  # as the time that stands beside it: seconds of CPU
    problem = TorchProblem(module, data, "categorical")
    try:
        plan = preflight(problem.facts(), method, "ggn", problem)
    except InputError as error:
        return {"note": str(error)}
    (cost,) = (c for c in plan.costs if c.method == method)
    fits = cost.memory <= memory_limit()
    short = cost.work <= patience * _RATE
    return {
        "predicted_seconds": cost.seconds,
        "predicted_gib": cost.memory / 2**30,
        "note": "does not fit" if not fits else "" if short else "not run: would take too long",
    }


def trained(name: str, n: int, steps: int, file: str) -> None:
    """Into a file."""
    import models

    make, read = models.MODELS[name]
    models.torch.manual_seed(0)
    data = read(n)
    module = models.trained(make(), data, prior=PRIOR, steps=steps)
    models.torch.save(module.state_dict(), file)


def cell(
    name: str, n: int, library: str, method: str, patience: float, probes: int, file: str
) -> dict:
    """Measured in this process, which does nothing else."""
    import models
    from noisescale.checks import memory_limit

    warnings.simplefilter("ignore")
    models.torch.set_num_threads(1)
    make, read = models.MODELS[name]
    module, data = make(), read(n)
    module.load_state_dict(models.torch.load(file))
    module.eval()
    row: dict = {"n_params": sum(p.numel() for p in module.parameters())}

    def run(module, data) -> float:
        if method == "noise":
            return noise_by(library, module, data)()
        return evidence_by(library, method, module, data, probes, _LAST[name])()

    if method != "noise":
        if library == "noisescale" and method != "last layer":
            row |= predicted(module, data, method, patience)
            if row["note"]:
                return row
        elif library != "noisescale" and name == "gpt":
            return row | {"note": "no likelihood over sequences"}
        elif (method, library) in _WHOLE and 12.0 * row["n_params"] ** 2 > memory_limit():
            return row | {"note": "not run: p x p matrices do not fit"}
    if library in _PACKAGES:  # what importing takes is not the method's
        importlib.import_module(_PACKAGES[library])
    with contextlib.suppress(Exception):  # whatever it is will be met again below
        run(copy.deepcopy(module), tuple(part[:4] for part in data))
    bounded()
    before, began = begin_again(), time.process_time()
    try:
        row["value"] = run(module, data)
    except (NotImplementedError, RuntimeError, MemoryError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["out of memory"])[0][:120]
        return row | {"note": f"{type(error).__name__}: {reason}"}
    return row | {"seconds": time.process_time() - began, "gib": peak() - before}


def asked(*arguments, patience: float) -> dict:
    """What a process of this script prints, or why it does not."""
    command = [sys.executable, __file__, *map(str, arguments)]
    one = os.environ | dict.fromkeys(_ONE_THREAD, "1")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patience, check=False, env=one
        )
    except subprocess.TimeoutExpired:
        return {"note": f"stopped after {patience:.0f} s"}
    if done.returncode:
        return {"note": (done.stderr.strip().splitlines() or ["killed"])[-1][:160]}
    return json.loads((done.stdout.strip().splitlines() or ["{}"])[-1])


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--") and "," not in a]
    named = [a for a in sys.argv[1:] if "," in a]
    small = "--small" in sys.argv
    patience = float(arguments[0]) if arguments else 20.0 if small else 300.0
    probes = 2 if small else 64
    known = {}
    if RESULTS.exists() and not small:
        with RESULTS.open(newline="", encoding="utf-8") as file:
            key = ("model", "library", "method", "n_train")
            known = {tuple(row[name] for name in key): row for row in csv.DictReader(file)}
    rows = []
    for name, n in SMALL if small else SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/module.pt"
            for library, method in [*NOISES, *EVIDENCES]:
                row = known.get((name, library, method, str(n)))
                if row is None and named and f"{name},{n}" not in named:
                    continue
                if row is None:
                    if not Path(file).exists():
                        training = [name, n, 5 if small else STEPS[name], file]
                        asked("--train", json.dumps(training), patience=3600)
                    cell = [name, n, library, method, patience, probes, file]
                    found = asked("--cell", json.dumps(cell), patience=2 * patience + 60)
                    row = {"model": name, "n_train": n, "library": library, "method": method}
                    row |= found
                rows.append(row)
                print(json.dumps(row), flush=True)
                known.pop((name, library, method, str(n)), None)
                if not small:
                    keep([*rows, *known.values()])


def keep(rows: list[dict]) -> None:
    """All that is measured so far."""
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    if "--train" in sys.argv:
        print(json.dumps(trained(*json.loads(sys.argv[-1]))))
    elif "--cell" in sys.argv:
        print(json.dumps(cell(*json.loads(sys.argv[-1]))))
    else:
        main()
