"""The same questions for PyTorch: evidence, spectrum, prediction, gradient noise, tuning, watching.

PyTorch computes derivatives (``torch.func``), everything else is noisescale's own: the same
methods, the same results, without JAX. The module is copied, in evaluation mode: batch
normalisation uses its running statistics, dropout is off, and your module, its mode, gradients,
device and precision stay as they are. Parameters with ``requires_grad=False`` are fixed and not
part of the model, and so are those that ``select=`` leaves out. Only ``watch`` looks at your own
module, as it trains, and changes nothing about it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import torch
except ImportError as error:
    raise ImportError(
        "noisescale.torch needs PyTorch: pip install 'noisescale[torch]'.", name="torch"
    ) from error

from noisescale.arrays import one_blas_thread
from noisescale.errors import InputError
from noisescale.evidence.curvature.spectrum import Spectrum, spectrum_of
from noisescale.evidence.laplace import evidence_of
from noisescale.evidence.map import MAX_STEPS, MapEstimate, map_of
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.predict import predictions_of
from noisescale.evidence.prior_choice import EvidenceCurve, curve_of
from noisescale.evidence.result import Evidence
from noisescale.evidence.select import Select
from noisescale.noise.gradients import GradientNoise, noise_of, noise_of_examples
from noisescale.noise.watch.record import WatchWarning
from noisescale.torch.autocast import without_autocast
from noisescale.torch.batches import by_length
from noisescale.torch.fit_function import fit_function
from noisescale.torch.model import unwrapped
from noisescale.torch.problem import TorchProblem
from noisescale.torch.several import Several
from noisescale.torch.tensors import as_prior
from noisescale.torch.train_function import train_function
from noisescale.torch.watching import Watch, watch
from noisescale.torch.weight_decay import prior_precision_of

__all__ = [
    "Watch",
    "WatchWarning",
    "evidence_curve",
    "fit_function",
    "gradient_noise",
    "log_evidence",
    "map_estimate",
    "posterior_predict",
    "prior_precision_of",
    "spectrum",
    "train_function",
    "watch",
]


@without_autocast
def log_evidence(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precision: Any,
    likelihood: Any = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    at: str = "check",
    conditional_on: int | None = None,
    null: str = "uniform",
    select: Select | None = None,
    log_null: float | None = None,
    log_degeneracy: float = 0.0,
    tolerance: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Evidence:
    """The evidence of a trained ``torch.nn.Module``, from the training data alone.

    Args:
        module: its outputs are logits (or means), one row an example: a tensor, ``logits`` of a
            dict or object, or the first of a tuple. A model of transformers is one as it is.
        data: the training set: a ``Dataset`` of pairs, a ``DataLoader``, or tensors ``(x, y)``; the
            last of more than two is the target, in dicts it is ``"labels"``, and the others are
            what the module is called with. A loader is gone through once, so it should neither
            augment nor leave examples out.
        prior_precision: lambda > 0, which is ``weight_decay`` times the number of training
            examples (:func:`prior_precision_of` for other optimisers than SGD); a mapping from
            the names of layers or of parameters to numbers or tensors; ``"auto"`` or
            ``"per_layer"``. A layer is a module that holds parameters of its own.
        likelihood: ``"categorical"`` (sequences too: labels (N, T), outputs (N, T, C), padding with
            the label -100), ``"bernoulli"``, ``"gaussian"`` (``ns.gaussian(precision)`` for a noise
            precision other than 1, ``ns.gaussian("estimate")`` for that of the residuals),
            ``"poisson"``, or a function ``(outputs, y) -> nats`` of tensors, one an example.
        select: the parameters that are the model, the others being fixed: the name of a module or
            parameter, a pattern (``"*.bias"``), a sequence of those, or a function of the name.
        curvature, method, at, conditional_on, null, log_null, log_degeneracy: as in
            :func:`noisescale.log_evidence`.
        tolerance, max_probes, seed, progress: likewise.

    >>> import torch
    >>> import noisescale.torch as nst
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(40, 3)
    >>> module = torch.nn.Linear(3, 2)
    >>> evidence = nst.log_evidence(
    ...     module, (x, (x[:, 0] > 0).long()), prior_precision=1.0, select="weight"
    ... )
    >>> evidence.n_params
    6
    """
    return evidence_of(
        TorchProblem(module, data, likelihood, select),
        prior_precision=as_prior(prior_precision),
        curvature=curvature,
        method=method,
        at=at,
        conditional_on=conditional_on,
        null=null,
        log_null=log_null,
        log_degeneracy=log_degeneracy,
        accuracy=Accuracy(tolerance, max_probes, seed=seed, progress=progress),
    )


@without_autocast
def map_estimate(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precision: Any,
    likelihood: Any = "categorical",
    select: Select | None = None,
    max_steps: int = MAX_STEPS,
    progress: Callable[[str], None] | None = None,
) -> MapEstimate:
    """The minimum of the regularised cost near a module's parameters, full batch.

    The module stays as it is. ``params`` of the result are tensors by name, for
    ``module.load_state_dict(found.params, strict=False)``; ``select`` is that of
    :func:`log_evidence`, the rest as in :func:`noisescale.map_estimate`.
    """
    found = map_of(
        TorchProblem(module, data, likelihood, select),
        prior_precision=as_prior(prior_precision),
        max_steps=max_steps,
        progress=progress,
    )
    own = dict(unwrapped(module).named_parameters())
    names = {id(p): name for name, p in module.named_parameters()}  # a wrapper has its own
    params = {
        names[id(own[name])]: torch.as_tensor(value, dtype=own[name].dtype, device=own[name].device)
        for name, value in found.params.items()
    }
    return replace(found, params=params)


@without_autocast
def evidence_curve(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precisions: Sequence[float] | None = None,
    likelihood: Any = "categorical",
    curvature: str = "ggn",
    method: str = "auto",
    select: Select | None = None,
    null: str = "uniform",
    log_null: float | None = None,
    max_probes: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> EvidenceCurve:
    """The evidence against a single prior precision; see :func:`noisescale.evidence_curve`."""
    return curve_of(
        TorchProblem(module, data, likelihood, select),
        prior_precisions=prior_precisions,
        curvature=curvature,
        method=method,
        null=null,
        log_null=log_null,
        accuracy=Accuracy(max_probes=max_probes, seed=seed, progress=progress),
    )


@without_autocast
def spectrum(
    module: torch.nn.Module,
    data: Any,
    *,
    likelihood: Any = "categorical",
    curvature: str = "hessian",
    top_k: int | None = None,
    n_probes: int = 4,
    n_steps: int = 64,
    select: Select | None = None,
    seed: int = 0,
) -> Spectrum:
    """The spectrum of the curvature of the summed nll; see :func:`noisescale.spectrum`."""
    return spectrum_of(
        TorchProblem(module, data, likelihood, select),
        curvature=curvature,
        top_k=top_k,
        n_probes=n_probes,
        n_steps=n_steps,
        seed=seed,
    )


@without_autocast
def posterior_predict(
    module: torch.nn.Module,
    data: Any,
    x_new: Any,
    *,
    prior_precision: Any,
    likelihood: Any = "categorical",
    predictive: str = "probit",
    method: str = "auto",
    select: Select | None = None,
    n_samples: int = 1000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Class probabilities averaged over the posterior; see :func:`noisescale.posterior_predict`.

    ``x_new`` are inputs as the module is called with: a tensor, or a tuple or dict of them.

    >>> import torch
    >>> import noisescale.torch as nst
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(40, 3)
    >>> data = (x, (x[:, 0] > 0).long())
    >>> nst.posterior_predict(torch.nn.Linear(3, 2), data, x[:4], prior_precision=1.0).shape
    (4, 2)
    """
    return predictions_of(
        TorchProblem(module, data, likelihood, select),
        x_new,
        prior_precision=as_prior(prior_precision),
        predictive=predictive,
        method=method,
        n_samples=n_samples,
        seed=seed,
    )


@without_autocast
def gradient_noise(
    module: torch.nn.Module,
    data: Any,
    *,
    likelihood: Any = "categorical",
    n_eigenvalues: int = 0,
    curvature: str = "ggn",
    select: Select | None = None,
    reduction: str = "sum",
) -> GradientNoise:
    """The noise of per-example gradients; see :func:`noisescale.gradient_noise`.

    ``mean`` and ``variance`` are mappings from parameter names to arrays. Batches of a loader that
    pads each to its own length are taken as they come.
    """
    groups = by_length(data)
    with one_blas_thread():  # NumPy's would wait for PyTorch's over a dot product
        if len(groups) > 1:
            if n_eigenvalues:
                raise InputError("eigenvalues need examples of one length: pad sequences to one.")
            several = Several(module, groups, likelihood, select)
            return noise_of_examples(several, several.tokens, reduction)[0]
        problem = TorchProblem(module, groups[0], likelihood, select)
        return noise_of(
            problem, n_eigenvalues=n_eigenvalues, curvature=curvature, reduction=reduction
        )
