"""The same questions for PyTorch: evidence, spectrum, gradient noise, and a function to tune.

PyTorch computes derivatives (``torch.func``), everything else is noisescale's own: the same
methods, the same results. The module is copied, in evaluation mode: batch normalisation uses its
running statistics, dropout is off, and your module, its mode, gradients, device and precision stay
as they are. Parameters with ``requires_grad=False`` are fixed and not part of the model.
"""

from collections.abc import Callable, Sequence
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError(
        "noisescale.torch needs PyTorch: pip install 'noisescale[torch]'.", name="torch"
    ) from error

from noisescale.evidence.curvature.spectrum import Spectrum, spectrum_of
from noisescale.evidence.laplace import evidence_of
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.prior_choice import EvidenceCurve, curve_of
from noisescale.evidence.result import Evidence
from noisescale.noise.gradients import GradientNoise, noise_of
from noisescale.torch.problem import TorchProblem
from noisescale.torch.tensors import to_numpy
from noisescale.torch.train_function import train_function
from noisescale.torch.watch import Watch, watch

__all__ = [
    "Watch",
    "evidence_curve",
    "gradient_noise",
    "log_evidence",
    "spectrum",
    "train_function",
    "watch",
]


def log_evidence(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precision: Any,
    likelihood: Any = "categorical",
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
        prior_precision: lambda > 0, which is ``weight_decay`` times the number of training
            examples; a mapping from the names of layers or of parameters to numbers or tensors;
            ``"auto"`` or ``"per_layer"``. A layer is a module that holds parameters of its own.
        likelihood: ``"categorical"``, ``"bernoulli"``, ``"gaussian"`` (``ns.gaussian(precision)``
            for a noise precision other than 1).
        curvature, method, log_null, log_degeneracy, tolerance, max_probes, seed, progress: as in
            :func:`noisescale.log_evidence`; ``"kfac"`` is for JAX networks alone.
    """
    if isinstance(prior_precision, dict):
        prior_precision = {
            name: to_numpy(value) if isinstance(value, torch.Tensor) else value
            for name, value in prior_precision.items()
        }
    return evidence_of(
        TorchProblem(module, data, likelihood),
        prior_precision=prior_precision,
        curvature=curvature,
        method=method,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=Accuracy(tolerance, max_probes, seed=seed, progress=progress),
    )


def evidence_curve(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precisions: Sequence[float] | None = None,
    likelihood: Any = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    log_null: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
) -> EvidenceCurve:
    """The evidence against a single prior precision; see :func:`noisescale.evidence_curve`."""
    return curve_of(
        TorchProblem(module, data, likelihood),
        prior_precisions=prior_precisions,
        curvature=curvature,
        method=method,
        log_null=log_null,
        accuracy=Accuracy(max_probes=max_probes, seed=seed),
    )


def spectrum(
    module: torch.nn.Module,
    data: Any,
    *,
    likelihood: Any = "categorical",
    curvature: str = "hessian",
    top_k: int = 10,
    n_probes: int = 4,
    n_steps: int = 64,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of the curvature of the summed nll; see :func:`noisescale.spectrum`."""
    return spectrum_of(
        TorchProblem(module, data, likelihood),
        curvature=curvature,
        top_k=top_k,
        n_probes=n_probes,
        n_steps=n_steps,
        seed=seed,
    )


def gradient_noise(
    module: torch.nn.Module,
    data: Any,
    *,
    likelihood: Any = "categorical",
    n_eigenvalues: int = 0,
    curvature: str = "ggn",
) -> GradientNoise:
    """The noise of per-example gradients; see :func:`noisescale.gradient_noise`.

    ``mean`` and ``variance`` are mappings from parameter names to arrays.
    """
    problem = TorchProblem(module, data, likelihood)
    return noise_of(problem, n_eigenvalues=n_eigenvalues, curvature=curvature)
