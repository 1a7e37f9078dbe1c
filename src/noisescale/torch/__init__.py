"""The same questions for PyTorch: ``log_evidence``, ``gradient_noise`` and a function to tune.

PyTorch computes derivatives (``torch.func``), everything else is noisescale's own: the same
methods, the same results. The module is copied, in evaluation mode: batch normalisation uses its
running statistics, dropout is off, and your module, its mode, gradients, device and precision stay
as they are. Parameters with ``requires_grad=False`` are fixed and not part of the model.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from noisescale.errors import InputError
from noisescale.evidence.laplace import check_accuracy, evidence_of
from noisescale.evidence.result import Evidence
from noisescale.noise.gradients import GradientNoise, summarise

try:
    import torch
    from torch.func import grad, jvp, vmap
except ImportError:
    raise ImportError("noisescale.torch needs PyTorch: pip install 'noisescale[torch]'.") from None

from noisescale.torch.problem import BLOCK_BYTES, TorchProblem, to_numpy
from noisescale.torch.train_function import train_function

__all__ = ["gradient_noise", "log_evidence", "train_function"]


def log_evidence(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precision: Any,
    likelihood: str = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
    tolerance: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Evidence:
    """The evidence of a trained ``torch.nn.Module``, from the training data alone.

    Args:
        module: its outputs are logits (or means), one row an example.
        data: the training set: a ``Dataset`` of pairs, a ``DataLoader``, or tensors ``(x, y)``. A
            loader is gone through once, so it should neither augment nor leave examples out.
        prior_precision: lambda > 0, a mapping from parameter names to numbers or tensors,
            ``"auto"`` or ``"per_layer"``.
        likelihood: ``"categorical"``, ``"bernoulli"`` or ``"gaussian"`` (noise precision 1).
        curvature, method, log_null, log_degeneracy, tolerance, max_probes, seed, progress: as in
            :func:`noisescale.log_evidence`; ``"kfac"`` is for JAX networks alone.
    """
    accuracy = check_accuracy(tolerance, max_probes, seed, progress)
    problem = TorchProblem(module, data, likelihood)
    if isinstance(prior_precision, dict):
        prior_precision = {name: to_numpy(value) for name, value in prior_precision.items()}
    return evidence_of(
        problem,
        problem.params,
        prior_precision=prior_precision,
        curvature=curvature,
        method=method,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=accuracy,
    )


def gradient_noise(
    module: torch.nn.Module, data: Any, *, likelihood: str = "categorical"
) -> GradientNoise:
    """The noise of per-example gradients; see :func:`noisescale.gradient_noise`.

    ``mean`` and ``variance`` are mappings from parameter names to arrays.
    """
    problem = TorchProblem(module, data, likelihood)
    N, p = len(problem.x), len(problem.w)
    if N < 3:
        raise InputError(f"a covariance needs at least 3 examples, got {N}.")
    w = problem.tensor(problem.w, "float32")
    size = int(np.clip(BLOCK_BYTES // (4 * p), 1, N))
    parts = [slice(start, start + size) for start in range(0, N, size)]

    def nll(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return problem.nll(problem.apply("float32", w, x[None]), y[None])[0]

    each = vmap(grad(nll), in_dims=(None, 0, 0))
    sq_norms, along = np.empty(N), np.empty(N)
    total, squares = np.zeros(p), np.zeros(p)
    for rows in parts:
        g = each(w, problem.inputs(rows, "float32"), problem.targets(rows, "float32"))
        total += to_numpy(g.sum(0))
        g = g.square_()
        squares += to_numpy(g.sum(0))
        sq_norms[rows] = to_numpy(g.sum(1))
    mean = total / N
    direction = problem.tensor(mean, "float32")
    for rows in problem.blocks(1, "float32"):
        x, y = problem.inputs(rows, "float32"), problem.targets(rows, "float32")
        function = lambda w: problem.nll(problem.apply("float32", w, x), y)  # noqa: B023, E731
        along[rows] = to_numpy(jvp(function, (w,), (direction,))[1])
    if not (np.isfinite(sq_norms).all() and np.isfinite(along).all()):
        raise InputError("the gradients of some examples are not finite at these parameters.")
    variance = np.maximum(squares / N - mean**2, 0) * N / (N - 1)
    return summarise(
        sq_norms, along, float(mean @ mean), p, problem.named(mean), problem.named(variance)
    )
