"""Posterior samples of a model by Langevin dynamics."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisescale.arrays import (
    check_data,
    check_inputs,
    check_params,
    count_examples,
    forgets_constants,
)
from noisescale.checks import check_choice
from noisescale.errors import InputError
from noisescale.evidence.jax_leaves import leaf_names, selected
from noisescale.evidence.select import Select
from noisescale.likelihood import LIKELIHOODS, Likelihood
from noisescale.noise.diagnostics import effective_sample_size, split_r_hat
from noisescale.noise.langevin import corrected_sgld, run_chains
from noisescale.noise.samples import LangevinSettings, PosteriorSamples, kept_chains
from noisescale.training.per_example import ApplyFn, sums

__all__ = ["PosteriorSamples", "langevin"]


@forgets_constants
def langevin(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    prior_precision: float,
    likelihood: str = "categorical",
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
    """Sample exp(-C/T), C = sum of nll + prior_precision/2 |w|^2, starting from ``params``.

    Args:
        apply_fn, params, data, likelihood: the model, a point near a minimum, and ``(x, y)``.
        prior_precision: lambda > 0, or there is no posterior.
        temperature: T; 1 samples the posterior.
        step_size: d; chosen from the largest curvature at ``params`` unless given.
        momentum: m, for the momentum form of appendix D.
        batch_size: minibatches drawn with replacement, their noise estimated within each batch and
            counted in; None for the full gradient.
        n_chains, burn_in, n_samples, thin: chains, updates before the first draw, draws a chain,
            and updates between them.
        select: as in :func:`noisescale.log_evidence`; the samples are a list of what is selected.
        seed: decides starts, batches and noise.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 0, 1, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> samples = ns.langevin(model, model.init(0), (x, y), prior_precision=1.0, n_samples=20)
    >>> samples.predict_proba(x).shape
    (4, 2)
    """
    nll = LIKELIHOODS[check_choice("likelihood", likelihood, LIKELIHOODS)]
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
    lam, T, m = float(prior_precision), float(temperature), float(momentum)
    n_train = count_examples(data, "data")
    if select is not None:
        names = leaf_names(check_params(params))
        apply_fn, params, _ = selected(apply_fn, params, names, select)
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), check_params(params))
    x, y, _ = check_data(apply_fn, start, data, nll, "data")
    settings.check_sizes(n_train, sum(leaf.size for leaf in jax.tree.leaves(start)))

    gradient = _gradient(apply_fn, nll, lam, jnp.asarray(x), jnp.asarray(y))
    curvature = _largest_curvature(gradient, start)
    d = settings.step_for(curvature)
    noisy = _noisy_gradient(apply_fn, nll, lam, jnp.asarray(x), jnp.asarray(y), batch_size)
    dynamics = corrected_sgld(noisy, step_size=d, momentum=m, temperature=T)

    spread_key, run_key = jax.random.split(jax.random.key(seed))
    positions = _spread(spread_key, start, n_chains, math.sqrt(max(T, 1e-12) / curvature))
    chains = run_chains(
        dynamics, positions, key=run_key, burn_in=burn_in, n_samples=n_samples, thin=thin
    )
    finite = kept_chains(_arrays(chains.draws), d)
    samples = jax.tree.map(lambda leaf: np.asarray(leaf)[finite], chains.draws)
    ended = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, -1]), samples)
    curvature = max(curvature, _largest_curvature(gradient, ended))
    return PosteriorSamples(
        samples=samples,
        r_hat=jax.tree.map(split_r_hat, samples),
        ess=jax.tree.map(effective_sample_size, samples),
        step_size=d,
        largest_curvature=curvature,
        discretisation=settings.discretisation(d, curvature),
        n_diverged=int((~finite).sum()),
        temperature=T,
        momentum=m,
        batch_size=batch_size,
        _arrays=_arrays,
        _predict=partial(_probabilities, apply_fn, nll, samples),
    )


def _arrays(tree: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a pytree by their path."""
    named, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/") or "w": np.asarray(leaf)
        for path, leaf in named
    }


def _probabilities(
    apply_fn: ApplyFn, likelihood: Likelihood, samples: Any, x: ArrayLike
) -> NDArray[np.float64]:
    """Class probabilities of new inputs, averaged over samples (chains, draws, ...)."""
    inputs = jnp.asarray(check_inputs(x, "x"))
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), samples)

    def one(total: jax.Array, w: Any) -> tuple[jax.Array, None]:
        outputs = apply_fn(w, inputs).reshape(len(inputs), -1)
        if likelihood.name == "bernoulli":
            p = jax.nn.sigmoid(outputs[:, 0])
            return total + jnp.stack([1 - p, p], axis=1), None
        return total + jax.nn.softmax(outputs), None

    first = jax.tree.map(lambda leaf: leaf[0], flat)
    n_classes = max(2, apply_fn(first, inputs[:1]).reshape(1, -1).shape[1])
    total, _ = jax.lax.scan(one, jnp.zeros((len(inputs), n_classes)), flat)
    return np.asarray(total, float) / len(jax.tree.leaves(flat)[0])


def _gradient(
    apply_fn: ApplyFn, nll: Likelihood, lam: float, x: jax.Array, y: jax.Array
) -> Callable[[Any], Any]:
    def cost(w: Any) -> jax.Array:
        penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(w))
        return jnp.sum(nll.nll(apply_fn(w, x), y)) + 0.5 * lam * penalty

    return jax.grad(cost)


def _noisy_gradient(
    apply_fn: ApplyFn,
    nll: Likelihood,
    lam: float,
    x: jax.Array,
    y: jax.Array,
    batch_size: int | None,
) -> Callable[[jax.Array, Any], tuple[Any, Any]]:
    """The gradient of C, or its estimate from a batch with the variance of that."""
    if batch_size is None:
        gradient = _gradient(apply_fn, nll, lam, x, y)
        return lambda key, w: (gradient(w), None)
    N, B = len(y), batch_size

    def estimate(key: jax.Array, w: Any) -> tuple[Any, Any]:
        rows = jax.random.randint(key, (B,), 0, N)
        batch = sums(apply_fn, nll, w, x[rows], y[rows])  # type: ignore[arg-type]
        gradient = jax.tree.map(lambda g, leaf: N / B * g + lam * leaf, batch.gradient, w)
        variance = jax.tree.map(
            lambda sq, g: N**2 / B * jnp.maximum(sq - g**2 / B, 0) / (B - 1),
            batch.squares,
            batch.gradient,
        )
        return gradient, variance

    return estimate


def _largest_curvature(gradient: Callable[[Any], Any], w: Any, iterations: int = 40) -> float:
    """The Hessian's largest eigenvalue at ``w``, by power iteration."""

    @partial(jax.jit)
    def product(v: Any) -> Any:
        return jax.jvp(gradient, (w,), (v,))[1]

    leaves, tree = jax.tree.flatten(w)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    v = jax.tree.unflatten(
        tree, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )
    value = 0.0
    for _ in range(iterations):
        size = math.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(v)))
        v = product(jax.tree.map(lambda leaf: leaf / size, v))  # noqa: B023
        value = math.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(v)))
    if not (math.isfinite(value) and value > 0):
        raise InputError("the cost's curvature is not finite at these params: start elsewhere.")
    return value


def _spread(key: jax.Array, start: Any, n_chains: int, scale: float) -> Any:
    """Starts around ``start``, as far as the stiffest direction fluctuates."""
    leaves, tree = jax.tree.flatten(start)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        tree,
        [
            leaf + scale * jax.random.normal(k, (n_chains, *leaf.shape))
            for k, leaf in zip(keys, leaves, strict=True)
        ],
    )
