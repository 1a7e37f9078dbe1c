"""The evidence of the paper's network, side by side with its peers: times and values in one run.

The network (784-800-10, 636,010 parameters) is trained at B = 30 on N = 1,000 MNIST images; the
prior precision is 0.1.

1. ``ns.log_evidence(..., method="dual")``, exact in the Gauss-Newton sense, against one float32
   Cholesky factorisation of an N C x N C matrix by LAPACK: what a perfect kernel would still cost.
2. The same by noisescale's KFAC and diagonal and by laplace-torch's KFAC, whose error against the
   exact value is reported. (laplace-torch's diagonal was not done after ten minutes.)
3. A product with the Hessian, float32, against curvlinops.

Rounds take turns, all on both cores; ratios are medians over rounds.
"""

import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import scipy.linalg
import torch
from curvlinops import HessianLinearOperator
from laplace import Laplace

import noisescale as ns
from noisescale.data import load_mnist
from noisescale.evidence.curvature.products import curvature_operator
from noisescale.evidence.jax_problem import jax_problem
from twins import torch_twin

N_TRAIN, PRIOR = 1_000, 0.1
ROUNDS = 3
PRODUCTS = 20
RESULTS = Path(__file__).parent / "results" / "deep_evidence.json"


def seconds_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def exact(network: ns.DenseNetwork, params: tuple, pair: tuple) -> tuple[dict, ns.Evidence]:
    n = N_TRAIN * 10
    rng = np.random.default_rng(0)
    root = rng.normal(size=(n, 200)).astype(np.float32)
    M = root @ root.T
    M[np.diag_indices(n)] += n

    def cholesky() -> None:
        scipy.linalg.cholesky(M, lower=True, check_finite=False)

    def ours() -> ns.Evidence:
        return ns.log_evidence(network, params, pair, prior_precision=PRIOR, method="dual")

    found = ours()
    cholesky()
    rounds = [(seconds_of(ours), seconds_of(cholesky)) for _ in range(ROUNDS)]
    ratio = statistics.median(a / b for a, b in rounds)
    evidence, factorisation = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"exact evidence: {evidence:.1f} s, {ratio:.2f} x one float32 Cholesky of {n:,} rows "
        f"({factorisation:.1f} s)"
    )
    return {
        "seconds": evidence,
        "cholesky_seconds": factorisation,
        "ratio": ratio,
        "log_evidence": found.log_evidence,
    }, found


def approximations(
    network: ns.DenseNetwork, params: tuple, pair: tuple, value: ns.Evidence
) -> list[dict]:
    x, y = pair
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y.astype(np.int64))),
        batch_size=250,
    )
    module = torch_twin(params)

    def ours(method: str) -> float:
        return ns.log_evidence(
            network, params, pair, prior_precision=PRIOR, method=method
        ).log_evidence

    def theirs(structure: str) -> float:
        laplace = Laplace(
            module,
            "classification",
            subset_of_weights="all",
            hessian_structure=structure,
            prior_precision=PRIOR,
        )
        laplace.fit(loader)
        return float(laplace.log_marginal_likelihood())

    rows = []
    for name, function in {
        "noisescale kfac": lambda: ours("kfac"),
        "laplace-torch kron": lambda: theirs("kron"),
        "noisescale diagonal": lambda: ours("diagonal"),
    }.items():
        found = function()
        seconds = statistics.median(seconds_of(function) for _ in range(ROUNDS))
        error = found - value.log_evidence
        rows.append({"method": name, "log_evidence": found, "error": error, "seconds": seconds})
        print(
            f"{name}: log evidence {found:.1f}, {error:+.1f} nats from the exact "
            f"{value.log_evidence:.1f} (log Occam factor {value.log_occam_factor:.1f}), "
            f"{seconds:.2f} s"
        )
    return rows


def products(network: ns.DenseNetwork, params: tuple, pair: tuple) -> dict:
    x, y = pair
    ours = curvature_operator(jax_problem(network, params, pair, "categorical").model, "hessian")
    module = torch_twin(params)
    data = [(torch.tensor(x), torch.tensor(y.astype(np.int64)))]
    theirs = HessianLinearOperator(
        module,
        torch.nn.CrossEntropyLoss(reduction="sum"),
        list(module.parameters()),
        data,
        check_deterministic=False,
    )
    v = np.random.default_rng(0).normal(size=ours.shape[0]).astype(np.float32)
    w = torch.tensor(v)
    norms = [float(np.linalg.norm(ours @ v)), float(torch.linalg.norm(theirs @ w))]
    rounds = [
        (
            seconds_of(lambda: [ours @ v for _ in range(PRODUCTS)]),
            seconds_of(lambda: [theirs @ w for _ in range(PRODUCTS)]),
        )
        for _ in range(ROUNDS + 2)
    ]
    ratio = statistics.median(b / a for a, b in rounds)
    each = statistics.median(a for a, _ in rounds) / PRODUCTS
    print(
        f"Hessian product: {1e3 * each:.1f} ms, {ratio:.2f} x faster than curvlinops "
        f"(curvlinops took {1e3 * ratio * each:.1f} ms)"
    )
    return {"seconds": each, "speedup": ratio, "norms_in_own_order": norms}


def main() -> None:
    warnings.filterwarnings("ignore")
    data = load_mnist().subset(n_train=N_TRAIN, seed=0)
    pair = data.x_train, data.y_train
    network = ns.paper_network()
    params = ns.train(
        network,
        network.init(0),
        pair,
        learning_rate=0.1,
        momentum=0.9,
        batch_size=30,
        steps=5_000,
        prior_precision=PRIOR,
        evaluate_at="final",
    ).params
    first, value = exact(network, params, pair)
    document = {
        "machine": platform.machine(),
        "cores": 2,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "exact": first,
        "approximations": approximations(network, params, pair, value),
        "hessian_products": products(network, params, pair),
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
