"""Evidence and gradient noise of PyTorch modules beside their peers: time, memory, value.

    python benchmarks/pytorch.py [SECONDS [MINUTES]] [MODEL,N | LIBRARY,METHOD ...]
                                 [--two] [--small]

Each module (``models.py``) is trained for some steps first. Then every cell is a process of its
own: one evidence by one method of noisescale, of laplace-torch (full, kfac, diagonal, and the last
layer's full matrix) or from curvlinops' operators; or gradient noise by noisescale, by BackPACK's
extensions, or by a loop over examples. Its time is that of the whole call, after one on a few
examples that loads what is needed, in seconds of CPU on one thread, so that what else the machine
does matters little; the median of three calls if the first takes less than two seconds. Its memory
is the peak of the first call beyond what was there before; noisescale's own count stands beside.
Gradient noise is timed by the clock as well, with all threads, as its user meets it; that needs an
idle machine, and is left out with ``--two``.

All of it takes less than MINUTES (25 by default). Cells whose counted operations would take more
than SECONDS (1,500 by default) are not run, and Lanczos comes last, with two probes: its standard
error is in the note. Nobody gets more than most of the memory that is free. What was not run says
why. A sequence of 32 characters among 65 has 2,048 rows of the Gauss-Newton matrix: exact values of
the transformer are those of 3 sequences. "Plain rows" is the exact value as anyone would write it,
from a product of the Jacobian's rows. ``--two`` has two processes at a time, a core each.
``--small`` tries the script out: few examples, few steps of training, and 20 for SECONDS. MODEL,N
and LIBRARY,METHOD choose cells (cnn,2000 noisescale,kfac).

Results go to results/pytorch.csv, row by row; a run that was stopped goes on where it was, so
delete that file for measurements anew.
"""

import contextlib
import copy
import csv
import importlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "pytorch.csv"
PRIOR = 1.0
SHAPES = [("cnn", 200), ("gpt", 200), ("gpt", 3), ("cnn", 2_000), ("mlp", 1_000)]
STEPS = {"cnn": 300, "mlp": 300, "gpt": 50}  # of training
SMALL = [("mlp", 20), ("gpt", 3), ("cnn", 20)]
CELLS = [
    *((library, "noise") for library in ("noisescale", "loop", "backpack")),
    *(("noisescale", method) for method in ("kfac", "dual", "diagonal", "last layer", "dense")),
    *(("laplace-torch", method) for method in ("kron", "diag", "last layer", "full")),
    ("plain rows", "dual"),
    ("curvlinops", "kfac"),
    *((library, "lanczos") for library in ("noisescale", "curvlinops")),
]
_FEW = {"cnn": 4, "mlp": 4, "gpt": 1}  # examples of a first call
_PROBES = 2
_SHORT, _TIMES = 2.0, 3  # seconds of a call that is made so many times
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
    "clock_seconds",
    "gib",
    "value",
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


def evidence_by(library: str, method: str, module, data, last: str) -> tuple[float, str]:
    """What a cell measures: the log evidence, and what there is to say of it."""
    if library == "noisescale":
        import noisescale.torch as nst

        settings = {"prior_precision": PRIOR, "method": method, "max_probes": _PROBES}
        if method == "last layer":
            settings |= {"method": "dense", "select": last}
        found = nst.log_evidence(module, data, **settings)
        return found.log_evidence, estimated(found) if method == "lanczos" else ""
    if library == "plain rows":
        return plain_rows(module, data), ""
    if library == "curvlinops":
        kfac = method == "kfac"
        return (kfac_of_curvlinops if kfac else lanczos_of_curvlinops)(module, data)
    return by_laplace(module, data, method)


def estimated(evidence) -> str:
    n_products = evidence.details["n_products"]
    error = f"standard error {evidence.log_evidence_std:.2g} from {_PROBES} probes"
    return f"{error}, {n_products} products"


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


def by_laplace(module, data, method: str) -> tuple[float, str]:
    import torch
    from laplace import Laplace

    size = 10 if method == "diag" else 100  # all of a batch's Jacobians are held at once
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=size)
    last = method == "last layer"
    laplace = Laplace(
        module,
        "classification",
        subset_of_weights="last_layer" if last else "all",
        hessian_structure="full" if last else method,
        prior_precision=PRIOR,
    )
    laplace.fit(loader)
    return float(laplace.log_marginal_likelihood()), "batches of 10" if method == "diag" else ""


def for_curvlinops(module, data) -> tuple:
    """A module whose classes come second, its loss, parameters, batches, nll and penalty."""
    import torch

    class ClassesSecond(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x).movedim(-1, 1)

    x, y = data
    module, loss = ClassesSecond(), torch.nn.CrossEntropyLoss(reduction="sum")
    params = [p for p in module.parameters() if p.requires_grad]
    size = 100 if y.ndim == 1 else 5
    blocks = [(x[s : s + size], y[s : s + size]) for s in range(0, len(x), size)]
    with torch.no_grad():
        nll = sum(float(loss(module(x), y)) for x, y in blocks)
        penalty = 0.5 * PRIOR * sum(float((p**2).sum()) for p in params)
    return module, loss, params, blocks, nll, penalty


def kfac_of_curvlinops(module, data) -> tuple[float, str]:
    """ln|I + B x A| and ln|I + B| from the eigenvalues of its factors, which it keeps."""
    import torch
    from curvlinops import KFACLinearOperator

    module, loss, params, blocks, nll, penalty = for_curvlinops(module, data)
    operator = KFACLinearOperator(
        module, loss, params, blocks, fisher_type="type-2", check_deterministic=False
    )
    operator.compute_kronecker_factors()
    state = operator.state_dict()
    log_det = 0.0
    for name, B in state["gradient_covariances"].items():
        gamma = torch.linalg.eigvalsh(B).clamp(min=0).double() / PRIOR
        alpha = torch.linalg.eigvalsh(state["input_covariances"][name]).clamp(min=0).double()
        log_det += float(torch.log1p(torch.outer(gamma, alpha)).sum())
        if module.get_submodule(name).bias is not None:
            log_det += float(torch.log1p(gamma).sum())
    return -nll - penalty - 0.5 * log_det, "the eigenvalues of its factors"


def lanczos_of_curvlinops(module, data) -> tuple[float, str]:
    """noisescale's quadrature with products by its operator, in float32."""
    import numpy as np
    import scipy.sparse.linalg
    from curvlinops import GGNLinearOperator
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import noisescale as ns

    module, loss, params, blocks, nll, penalty = for_curvlinops(module, data)
    operator = GGNLinearOperator(module, loss, params, blocks, check_deterministic=False)
    theirs = operator.to_scipy()

    def product(V):
        with sdpa_kernel(SDPBackend.MATH):  # whose second derivatives there are
            return theirs @ V.astype(np.float32)

    curvature = scipy.sparse.linalg.LinearOperator(
        operator.shape, matvec=product, rmatvec=product, matmat=product, dtype=np.float32
    )
    found = ns.log_evidence_from_operator(
        curvature,
        nll=nll,
        penalty=penalty,
        prior_precision=PRIOR,
        n_train=len(data[0]),
        log_null=0.0,
        method="lanczos",
        max_probes=_PROBES,
    )
    return found.log_evidence, estimated(found)


def noise_by(library: str, module, data) -> float:
    """What a cell measures: tr S."""
    if library == "noisescale":
        import noisescale.torch as nst

        return nst.gradient_noise(module, data).trace
    return trace_of(*(by_loop if library == "loop" else by_backpack)(module, data))


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
    """The memory that noisescale counts for the cell, and why it is not run if it is not."""
    from noisescale.errors import InputError
    from noisescale.evidence.occam.lanczos import PROBES
    from noisescale.evidence.preflight import preflight
    from noisescale.torch.problem import TorchProblem

    problem = TorchProblem(module, data, "categorical")
    try:
        plan = preflight(problem.facts(), method, "ggn")
    except InputError as error:
        return {"note": str(error)}
    (own,) = (c for c in plan.costs if c.method == method)
    share = _PROBES / PROBES if method == "lanczos" else 1.0
    counted = share * own.work / _RATE
    short = counted <= patience
    return {
        "predicted_gib": own.memory / 2**30,
        "note": "" if short else f"not run: {counted:,.0f} s by its count of operations",
    }


def excuse(name: str, n: int, library: str, method: str, n_params: int) -> str:
    """Why a cell is not begun at all; nothing if it is."""
    from noisescale.checks import memory_limit

    if (name, method) == ("gpt", "last layer") and n > 3 and library == "noisescale":
        return "not run: a square of 6,240 from 409,600 rows, a quarter of an hour"
    if name == "gpt" and library in ("laplace-torch", "plain rows"):
        return "not run: no likelihood over sequences"
    if name == "gpt" and library == "backpack":
        return "not run: no extension for attention and tables"
    if (library, method) == ("laplace-torch", "full") and 12.0 * n_params**2 > memory_limit():
        return "not run: p x p matrices do not fit"
    return ""


def trained(name: str, n: int, steps: int, file: str) -> None:
    """Into a file."""
    import models

    make, read = models.MODELS[name]
    models.torch.manual_seed(0)
    data = read(n)
    module = models.trained(make(), data, prior=PRIOR, steps=steps)
    models.torch.save(module.state_dict(), file)


def cell(
    name: str, n: int, library: str, method: str, patience: float, file: str, by_clock: bool
) -> dict:
    """Measured in this process, which does nothing else."""
    import models

    warnings.simplefilter("ignore")
    models.torch.set_num_threads(1)
    make, read = models.MODELS[name]
    module, data = make(), read(n)
    module.load_state_dict(models.torch.load(file))
    module.eval()
    row: dict = {"n_params": sum(p.numel() for p in module.parameters())}

    def run(data) -> tuple[float, str]:
        own = copy.deepcopy(module)
        if method == "noise":
            return noise_by(library, own, data), ""
        return evidence_by(library, method, own, data, _LAST[name])

    if reason := excuse(name, n, library, method, row["n_params"]):
        return row | {"note": reason}
    if library == "noisescale" and method not in ("noise", "last layer"):
        row |= predicted(module, data, method, patience)
        if row["note"]:
            return row
    if library in _PACKAGES:  # what importing takes is not the method's
        importlib.import_module(_PACKAGES[library])
    with contextlib.suppress(Exception):  # whatever it is will be met again below
        run(tuple(part[: max(_FEW[name], 3 if method == "noise" else 1)] for part in data))
    bounded()
    before, took = begin_again(), []
    try:
        while not took or (took[0] < _SHORT and len(took) < _TIMES):
            began = time.process_time()
            row["value"], row["note"] = run(data)
            took.append(time.process_time() - began)
            row.setdefault("gib", peak() - before)
    except (NotImplementedError, RuntimeError, MemoryError, ValueError) as error:
        reason = (str(error).strip().splitlines() or ["out of memory"])[0][:120]
        return row | {"note": f"{type(error).__name__}: {reason}"}
    row["seconds"] = statistics.median(took)
    if method == "noise" and by_clock:
        models.torch.set_num_threads(os.cpu_count())
        run(data)
        row["clock_seconds"] = statistics.median(clocked(run, data) for _ in range(_TIMES))
    return row


def clocked(run: Callable, data) -> float:
    began = time.perf_counter()
    run(data)
    return time.perf_counter() - began


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
    began = time.monotonic()
    numbers = [float(a) for a in sys.argv[1:] if not a.startswith("--") and "," not in a]
    named = [tuple(a.split(",")) for a in sys.argv[1:] if "," in a]
    small = "--small" in sys.argv
    patience = numbers[0] if numbers else 20.0 if small else 1_500.0
    minutes = numbers[1] if len(numbers) > 1 else 25.0
    shapes, rows = SMALL if small else SHAPES, {}
    if RESULTS.exists() and not small:
        with RESULTS.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows[row["model"], int(row["n_train"]), row["library"], row["method"]] = row
    every = [(*shape, *way) for shape in shapes for way in CELLS]
    # What takes long comes last, when all else is there.
    wanted = sorted(
        (key for key in every if key not in rows and is_named(key, named)),
        key=lambda key: key[3] == "lanczos",
    )

    at_once = 2 if "--two" in sys.argv else 1

    def left() -> float:
        return 60 * minutes - (time.monotonic() - began)

    def measured(key: tuple) -> dict:
        name, n, library, method = key
        row = {"model": name, "n_train": n, "library": library, "method": method}
        if left() < 10:
            return row | {"note": f"not run: {minutes:.0f} minutes were over"}
        arguments = json.dumps([*key, patience, f"{folder}/{name}-{n}.pt", at_once == 1])
        return row | asked("--cell", arguments, patience=left())

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        for name, n in dict.fromkeys(key[:2] for key in wanted):
            training = [name, n, 5 if small else STEPS[name], f"{folder}/{name}-{n}.pt"]
            asked("--train", json.dumps(training), patience=left())
        futures = {pool.submit(measured, key): key for key in wanted}
        for future in as_completed(futures):
            rows[futures[future]] = row = future.result()
            print(json.dumps(row), flush=True)
            if not small:
                keep([rows[key] for key in every if key in rows])


def is_named(key: tuple, named: list[tuple[str, str]]) -> bool:
    """Whether a cell's shape and its way are among those that were named, if any were."""
    name, n, library, method = key
    ways = [pair for pair in named if pair in CELLS]
    shapes = [pair for pair in named if pair not in CELLS]
    return (not shapes or (name, str(n)) in shapes) and (not ways or (library, method) in ways)


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
