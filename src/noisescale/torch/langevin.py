"""Posterior samples of a module by Langevin dynamics: appendix D of the paper, in PyTorch.

    A <- m A + grad C + sqrt(max(2 T (1 - m)/d - v, 0)) xi,    w <- w - d A,

with v the variance that a minibatch brings to its gradient, 0 for the full one: the same dynamics
as :mod:`noisescale.noise.langevin`, chains side by side.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import grad

from noisescale.errors import InputError
from noisescale.evidence.problem import Array
from noisescale.evidence.select import Select
from noisescale.noise.diagnostics import effective_sample_size, split_r_hat
from noisescale.noise.samples import LangevinSettings, PosteriorSamples, kept_chains
from noisescale.seeds import random_stream
from noisescale.torch.autocast import without_autocast
from noisescale.torch.problem import TorchProblem
from noisescale.torch.tensors import to_numpy

_ITERATIONS = 40  # of the power iteration for the largest curvature

# Of positions (chains, p): gradients of C, and the variance of each entry; None if exact.
NoisyGradient = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]


@without_autocast
def langevin(
    module: torch.nn.Module,
    data: Any,
    *,
    prior_precision: float,
    likelihood: Any = "categorical",
    temperature: float = 1.0,
    step_size: float | None = None,
    momentum: float = 0.0,
    batch_size: int | None = None,
    n_chains: int = 4,
    burn_in: int = 1_000,
    n_samples: int = 500,
    thin: int = 10,
    select: Select | None = None,
    seed: int = 0,
) -> PosteriorSamples:
    """Sample exp(-C/T) from the module's parameters on; see :func:`noisescale.langevin`.

    ``samples``, ``r_hat`` and ``ess`` are mappings from parameter names to arrays. Module and data
    are as in :func:`noisescale.torch.log_evidence`, and every likelihood there is one here.

    >>> import torch
    >>> import noisescale.torch as nst
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(20, 2)
    >>> data = (x, (x[:, 0] > 0).long())
    >>> module = torch.nn.Linear(2, 2)
    >>> made = nst.langevin(module, data, prior_precision=1.0, burn_in=9, n_samples=8)
    >>> made.samples["weight"].shape
    (4, 8, 2, 2)
    """
    settings = LangevinSettings(
        prior_precision=prior_precision,
        temperature=temperature,
        step_size=step_size,
        momentum=momentum,
        batch_size=batch_size,
        n_chains=n_chains,
        burn_in=burn_in,
        n_samples=n_samples,
        thin=thin,
        seed=seed,
    )
    problem = TorchProblem(module, data, likelihood, select)
    settings.check_sizes(problem.n_train, len(problem.w))
    curvature = _largest_curvature(problem, settings)
    d = settings.step_for(curvature)
    draws = _draws(problem, settings, d, math.sqrt(max(temperature, 1e-12) / curvature))
    named = _by_name(problem, draws)
    finite = kept_chains(named, d)
    samples = {name: leaf[finite] for name, leaf in named.items()}
    ended = problem.at(draws[finite][0, -1])
    curvature = max(curvature, _largest_curvature(ended, settings))
    return PosteriorSamples(
        samples=samples,
        r_hat={name: split_r_hat(leaf) for name, leaf in samples.items()},
        ess={name: effective_sample_size(leaf) for name, leaf in samples.items()},
        step_size=d,
        largest_curvature=curvature,
        discretisation=settings.discretisation(d, curvature),
        n_diverged=int((~finite).sum()),
        temperature=float(temperature),
        momentum=float(momentum),
        batch_size=batch_size,
        _arrays=dict,
        _predict=partial(_probabilities, problem, draws[finite].reshape(-1, draws.shape[2])),
    )


def _draws(problem: TorchProblem, settings: LangevinSettings, d: float, spread: float) -> Array:
    """Positions (chains, draws, p)."""
    m, T = settings.momentum, settings.temperature
    wanted = 2 * T * (1 - m) / d  # of noise; at T = 0 this is plain SGD with momentum
    normals = torch.Generator().manual_seed(settings.seed)

    def xi() -> torch.Tensor:
        return torch.randn(shape, generator=normals).to(problem.model.device)

    shape = (settings.n_chains, len(problem.w))
    w = problem.tensor(problem.w, "float32") + spread * xi()
    A = torch.zeros_like(w)
    noisy = _noisy_gradient(problem, settings)
    draws = np.empty((settings.n_chains, settings.n_samples, len(problem.w)))
    for step in range(1, settings.burn_in + settings.n_samples * settings.thin + 1):
        g, v = noisy(w)
        if wanted > 0:
            scale = math.sqrt(wanted) if v is None else (wanted - v).clamp(min=0).sqrt()
            g = g + scale * xi()
        A = m * A + g
        w = w - d * A
        drawn, between = divmod(step - settings.burn_in, settings.thin)
        if drawn > 0 and between == 0:
            draws[:, drawn - 1] = to_numpy(w)
    return draws


def _noisy_gradient(problem: TorchProblem, settings: LangevinSettings) -> NoisyGradient:
    lam, N = settings.prior_precision, problem.n_train
    if settings.batch_size is None:
        blocks = list(problem.blocks(settings.n_chains, "float32"))
        slopes = [
            problem.ways.directions(grad(problem.nll_sum("float32", rows))) for rows in blocks
        ]
        return lambda w: (lam * w + sum(slope(w) for slope in slopes), None)
    B, rng = settings.batch_size, random_stream(settings.seed, "langevin batches")

    def nll(w: torch.Tensor, x: Any, y: torch.Tensor) -> torch.Tensor:
        return problem.nll(problem.apply_one("float32", w, x)[None], y[None])[0]

    each = problem.ways.directions(problem.ways.each(grad(nll)))

    def estimate(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.from_numpy(rng.integers(N, size=(len(w), B)))
        g = each(w, problem.inputs(rows, "float32"), problem.targets(rows, "float32"))
        total, squares = g.sum(1), (g**2).sum(1)  # of (chains, B, p)
        variance = N**2 / B * (squares - total**2 / B).clamp(min=0) / (B - 1)
        return N / B * total + lam * w, variance

    return estimate


def _largest_curvature(problem: TorchProblem, settings: LangevinSettings) -> float:
    """The largest eigenvalue of the cost's Hessian, by power iteration."""
    H, lam = problem.operator("hessian", "float32"), settings.prior_precision
    v = random_stream(0, "largest curvature").normal(size=len(problem.w))
    value = 0.0
    for _ in range(_ITERATIONS):
        v = v / np.linalg.norm(v)
        v = H @ v + lam * v
        value = float(np.linalg.norm(v))
    if not (math.isfinite(value) and value > 0):
        raise InputError("the cost's curvature is not finite at these parameters: start elsewhere.")
    return value


def _by_name(problem: TorchProblem, draws: Array) -> dict[str, Array]:
    """Draws (chains, draws, p) as (chains, draws, ...) of each parameter."""
    sizes = [math.prod(shape) for shape in problem.shapes.values()]
    parts = np.split(draws, np.cumsum(sizes)[:-1], axis=2)
    return {
        name: part.reshape(*draws.shape[:2], *shape)
        for (name, shape), part in zip(problem.shapes.items(), parts, strict=True)
    }


def _probabilities(problem: TorchProblem, samples: Array, x: Any) -> NDArray[np.float64]:
    """Class probabilities of new inputs, averaged over samples (n, p)."""
    K = problem.n_classes
    if K is None:
        raise InputError("predict_proba gives class probabilities: use a likelihood of classes.")
    new = problem.with_inputs(x)
    total = 0.0
    for w in samples:
        outputs = torch.from_numpy(new.at(w).outputs(slice(None)))
        if problem.likelihood.name == "bernoulli":
            p = torch.sigmoid(outputs)
            total = total + torch.cat([1 - p, p], dim=1).numpy()
        else:  # classes of whole examples, or of each token
            logits = outputs.reshape(*new.observed.shape, K)
            total = total + torch.softmax(logits, dim=-1).numpy()
    return np.asarray(total) / len(samples)
