"""The evidence, side by side with scikit-learn and laplace-torch: times and values in one run.

1. The path of figure 2: the MAP and its evidence at 50 prior precisions from 1e-8 to 1e6, on 800
   MNIST zeros and ones, with true and with permuted labels. The peer is a loop over scikit-learn's
   ``LogisticRegression`` (lbfgs and newton-cholesky, warm-started from strong to weak priors, the
   faster of those that reach the solution reported) with NumPy's slogdet of the Hessian.
2. One evidence over all parameters, of a softmax regression and of a small network on the digits.
   The peer is laplace-torch's full Laplace with its curvlinops and BackPACK backends.

Conventions: both peers are given the same prior on every parameter, bias included (scikit-learn
through a column of ones). laplace-torch's log marginal likelihood is noisescale's log evidence, the
Gauss-Newton matrix in place of the Hessian; it has no null model, so E is not compared.
"""

import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import sklearn
import torch
from laplace import Laplace
from laplace.curvature import BackPackGGN, CurvlinopsGGN
from sklearn.linear_model import LogisticRegression

import noisescale as ns
from noisescale.data import balanced_binary, load_digits
from noisescale.evidence.linear.path import lambda_path
from noisescale.evidence.linear.regression import fit_map, linear_problem

GRID = np.logspace(-8, 6, 50)
ROUNDS = 3
PATIENCE = 60.0  # seconds after which a peer's path is given up
RESULTS = Path(__file__).parent / "results" / "evidence.json"


def timed(function: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def logistic_evidence(x: np.ndarray, y: np.ndarray, w: np.ndarray, lam: float) -> float:
    """Log evidence at w, literally, with NumPy's slogdet."""
    sign = 2 * y - 1
    z = sign * (x @ w)
    p = 1 / (1 + np.exp(np.clip(z, -700, 700)))  # of the wrong label
    H = x.T @ ((p * (1 - p))[:, None] * x) + lam * np.eye(len(w))
    cost = np.logaddexp(0, -z).sum() + 0.5 * lam * w @ w
    return -cost - 0.5 * np.linalg.slogdet(H / lam)[1]


def scikit_learn_path(x: np.ndarray, y: np.ndarray, solver: str) -> np.ndarray:
    """Log evidences from the strongest prior on; NaN where the time was up."""
    wide = np.hstack([x, np.ones((len(x), 1))])
    # At weak priors the whole cost is 1e-5 nats: a looser tolerance misses the minimum's curvature.
    model = LogisticRegression(
        solver=solver, fit_intercept=False, warm_start=True, tol=1e-12, max_iter=1000
    )
    found = np.full(len(GRID), np.nan)
    began = time.perf_counter()
    for k in reversed(range(len(GRID))):
        model.set_params(C=1 / GRID[k])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(wide, y)
        found[k] = logistic_evidence(wide, y, model.coef_[0], GRID[k])
        if time.perf_counter() - began > PATIENCE:
            break
    return found


def compare_paths() -> dict:
    data = balanced_binary(0, 1, n_train=800, n_test=2, seed=0)
    x = data.x_train.astype(float)
    cases = {
        "true labels": data.y_train,
        "permuted labels": np.random.default_rng(0).permutation(data.y_train),
    }
    report: dict = {"grid_points": len(GRID)}
    total = {"noisescale": 0.0, "scikit-learn": 0.0}
    for name, y in cases.items():
        ours_seconds, peers = [], {}
        for solver in ("newton-cholesky", "lbfgs"):
            seconds, path = timed(lambda y=y: lambda_path(linear_problem(x, y), GRID))
            ours_seconds.append(seconds)
            peers[solver] = timed(lambda s=solver, y=y: scikit_learn_path(x, y, s))
        ours_seconds.append(timed(lambda y=y: lambda_path(linear_problem(x, y), GRID))[0])
        ours = statistics.median(ours_seconds)
        evidences = np.array([fit.log_evidence for fit in path])
        row: dict = {
            "noisescale_seconds": ours,
            "peers": {},
            "worst_decrement": max(fit.newton_decrement for fit in path),
        }
        for solver, (seconds, found) in peers.items():
            difference = np.abs(found - evidences)
            row["peers"][solver] = {
                "seconds": seconds,
                "points_within_0.01_nat": int((difference < 0.01).sum()),
                "largest_difference": float(np.nanmax(difference)),
            }
        solved = [
            s for s, p in row["peers"].items() if p["points_within_0.01_nat"] == len(GRID)
        ] or ["newton-cholesky"]
        best = min(solved, key=lambda s: row["peers"][s]["seconds"])
        row |= {"best_peer": best, "speedup": row["peers"][best]["seconds"] / ours}
        report[name] = row
        total["noisescale"] += ours
        total["scikit-learn"] += row["peers"][best]["seconds"]
        print(f"{name}: noisescale {ours:.2f} s, {row['speedup']:.1f} x faster than {best}")
        for solver, peer in row["peers"].items():
            print(
                f"  {solver}: {peer['seconds']:.1f} s, {peer['points_within_0.01_nat']} of "
                f"{len(GRID)} log evidences within 0.01 nat"
            )
    report["speedup"] = total["scikit-learn"] / total["noisescale"]
    print(f"both paths of figure 2: {report['speedup']:.1f} x")
    return report


def torch_network(params: list, hidden: int | None) -> torch.nn.Module:
    shapes = [(64, 10)] if hidden is None else [(64, hidden), (hidden, 10)]
    layers: list[torch.nn.Module] = []
    for (fan_in, fan_out), layer in zip(shapes, params, strict=True):
        linear = torch.nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(np.array(layer["w"], np.float64).T))
            linear.bias.copy_(torch.tensor(np.array(layer["b"], np.float64)))
        layers += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def compare_with_laplace() -> dict:
    torch.set_default_dtype(torch.float64)
    warnings.filterwarnings("ignore", category=UserWarning)
    data = load_digits()
    x, y = data.x_train.astype(float), data.y_train.astype(int)
    prior = 1.5
    fit = fit_map(linear_problem(x, y), prior_precision=prior)
    regression = [{"w": fit.coef.T, "b": fit.intercept}]

    def apply(params: list, x: jnp.ndarray) -> jnp.ndarray:
        *inner, last = params
        for layer in inner:
            x = jnp.tanh(x @ layer["w"] + layer["b"])
        return x @ last["w"] + last["b"]

    start = ns.DenseNetwork((64, 16, 10)).init(0)
    trained = ns.train(
        apply,
        list(start),
        (x, y),
        learning_rate=0.1,
        momentum=0.9,
        batch_size=len(y),
        steps=3000,
        prior_precision=prior,
        evaluate_at="final",
    )
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)), batch_size=512
    )
    report = {}
    for name, params, hidden in (
        ("softmax regression", regression, None),
        ("64-16-10 network", trained.params, 16),
    ):
        module = torch_network(params, hidden)

        def ours(params: list = params) -> float:
            found = ns.log_evidence(apply, params, (x, y), prior_precision=prior, method="dense")
            return found.log_evidence

        def theirs(backend: type, module: torch.nn.Module = module) -> float:
            laplace = Laplace(
                module,
                "classification",
                subset_of_weights="all",
                hessian_structure="full",
                prior_precision=prior,
                backend=backend,
            )
            laplace.fit(loader)
            return laplace.log_marginal_likelihood().item()

        methods = {
            "noisescale": ours,
            "curvlinops": lambda: theirs(CurvlinopsGGN),
            "backpack": lambda: theirs(BackPackGGN),
        }
        seconds: dict[str, list[float]] = {method: [] for method in methods}
        values = {}
        for method, function in methods.items():
            values[method] = function()  # compiles, warms caches
        for _ in range(ROUNDS):
            for method, function in methods.items():
                seconds[method].append(timed(function)[0])
        median = {method: statistics.median(times) for method, times in seconds.items()}
        best = min(("curvlinops", "backpack"), key=median.__getitem__)
        differences = {method: abs(values[method] / values["noisescale"] - 1) for method in methods}
        report[name] = {
            "n_params": sum(np.size(leaf) for layer in params for leaf in layer.values()),
            "log_evidence": values,
            "relative_difference": differences,
            "seconds": median,
            "best_peer": best,
            "speedup": median[best] / median["noisescale"],
        }
        print(
            f"{name}: log evidence {values['noisescale']:.6f}, laplace-torch ({best}) differs "
            f"by {differences[best]:.1e}; {report[name]['speedup']:.1f} x faster"
        )
    return report


def main() -> None:
    document = {
        "path": compare_paths(),
        "laplace": compare_with_laplace(),
        "machine": {"architecture": platform.machine()},
        "versions": {
            "noisescale": ns.__version__,
            "scikit-learn": sklearn.__version__,
            "torch": torch.__version__,
        },
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(f"Written to {RESULTS}")


if __name__ == "__main__":
    main()
