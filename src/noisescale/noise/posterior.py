"""Posterior samples of a model by Langevin dynamics."""

import math
from collections.abc import Callable
from dataclasses import dataclass
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
from noisescale.checks import (
    check_batch_size,
    check_choice,
    check_memory,
    check_momentum,
    check_number,
    check_whole,
)
from noisescale.errors import InputError
from noisescale.likelihood import LIKELIHOODS, Likelihood
from noisescale.noise.diagnostics import effective_sample_size, split_r_hat
from noisescale.noise.langevin import check_step, corrected_sgld, run_chains
from noisescale.training.per_example import ApplyFn, sums

_SAFE = 0.1  # of the unstable step size, halved: the stiffest variance is 5 % too large


@dataclass(frozen=True, eq=False, repr=False)
class PosteriorSamples:
    """Draws from exp(-C/T), with what is needed to trust them.

    Attributes:
        samples: as the params, each array with leading axes (chains, draws).
        r_hat, ess: split R-hat and effective sample size, as the params.
        step_size: the step taken.
        largest_curvature: the Hessian's largest eigenvalue, where the chains started or where they
            ended, whichever is larger.
        discretisation: by how much of itself the variance in the stiffest direction is too large;
            infinite if the step is unstable there.
        n_diverged: chains that did not stay finite; their draws are left out.
        temperature, momentum, batch_size: as given.

    >>> import noisescale as ns
    >>> model = ns.softmax_regression(1, 2)
    >>> pair = ([[-1.0], [1.0]], [0, 1])
    >>> samples = ns.langevin(model, model.init(0), pair, prior_precision=1.0, n_samples=20)
    >>> samples.samples[0]["w"].shape
    (4, 20, 1, 2)
    >>> samples.to_dict()["n_diverged"]
    0
    """

    samples: Any
    r_hat: Any
    ess: Any
    step_size: float
    largest_curvature: float
    discretisation: float
    n_diverged: int
    temperature: float
    momentum: float
    batch_size: int | None
    _model: tuple[ApplyFn, Likelihood]

    @property
    def worst_r_hat(self) -> float:
        """The largest R-hat of any parameter."""
        return float(max(np.nanmax(leaf) for leaf in jax.tree.leaves(self.r_hat)))

    @property
    def smallest_ess(self) -> float:
        """The smallest effective sample size of any parameter."""
        return float(min(np.nanmin(leaf) for leaf in jax.tree.leaves(self.ess)))

    def predict_proba(self, x: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities averaged over the samples, one row an example."""
        apply_fn, likelihood = self._model
        inputs = jnp.asarray(check_inputs(x, "x"))
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.samples)

        def one(total: jax.Array, w: Any) -> tuple[jax.Array, None]:
            outputs = apply_fn(w, inputs).reshape(len(inputs), -1)
            if likelihood.name == "bernoulli":
                p = jax.nn.sigmoid(outputs[:, 0])
                return total + jnp.stack([1 - p, p], axis=1), None
            return total + jax.nn.softmax(outputs), None

        first = jax.tree.map(lambda leaf: leaf[0], flat)
        n_classes = max(2, apply_fn(first, inputs[:1]).reshape(1, -1).shape[1])
        total, _ = jax.lax.scan(one, jnp.zeros((len(inputs), n_classes)), flat)
        n_samples = len(jax.tree.leaves(flat)[0])
        return np.asarray(total, float) / n_samples

    def to_arviz(self) -> dict[str, dict[str, NDArray[Any]]]:
        """What ``arviz.from_dict`` takes: parameters by name, axes (chain, draw, ...)."""
        named, _ = jax.tree_util.tree_flatten_with_path(self.samples)
        return {
            "posterior": {
                jax.tree_util.keystr(path, simple=True, separator="/") or "w": np.asarray(leaf)
                for path, leaf in named
            }
        }

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, without the draws; None for what is not finite."""
        chains, draws = jax.tree.leaves(self.samples)[0].shape[:2]
        names = ("step_size", "largest_curvature", "discretisation", "n_diverged", "temperature")
        values = {name: getattr(self, name) for name in (*names, "momentum", "batch_size")}
        values |= {
            "n_chains": chains,
            "n_samples": draws,
            "worst_r_hat": self.worst_r_hat,
            "smallest_ess": self.smallest_ess,
        }
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    def __repr__(self) -> str:
        chains, draws = jax.tree.leaves(self.samples)[0].shape[:2]
        return (
            f"PosteriorSamples: {chains} chains of {draws} draws at T = {self.temperature:g}, "
            f"{self.n_diverged} diverged\n"
            f"  worst R-hat {self.worst_r_hat:.3f}, smallest effective sample size "
            f"{self.smallest_ess:.0f}, step {self.step_size:.3g} ({self._bias()})"
        )

    def _bias(self) -> str:
        if math.isinf(self.discretisation):
            return "unstable where the chains ended: choose a smaller one"
        return f"variance up to {self.discretisation:.1%} too large"


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
        seed: decides starts, batches and noise.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 0, 1, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> samples = ns.langevin(model, model.init(0), (x, y), prior_precision=1.0, n_samples=20)
    >>> samples.predict_proba(x).shape
    (4, 2)
    """
    nll = LIKELIHOODS[check_choice("likelihood", likelihood, LIKELIHOODS)]
    lam = check_number("prior_precision", prior_precision, "above 0", lambda v: v > 0)
    T = check_number("temperature", temperature, "at least 0", lambda v: v >= 0)
    m = check_momentum(momentum)
    counts = {
        "n_chains": (n_chains, 1),
        "burn_in": (burn_in, 0),
        "n_samples": (n_samples, 4),
        "thin": (thin, 1),
        "seed": (seed, 0),
    }
    for name, (value, least) in counts.items():
        check_whole(name, value, at_least=least)
    n_train = count_examples(data, "data")
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), check_params(params))
    x, y, _ = check_data(apply_fn, start, data, nll, "data")
    if batch_size is not None and check_batch_size(batch_size, n_train) < 2:
        raise InputError("batch_size must be at least 2, so that a batch shows its noise, got 1.")
    n_params = sum(leaf.size for leaf in jax.tree.leaves(start))
    check_memory("the samples", 4.0 * n_chains * n_samples * n_params, "draw fewer, or thin more")

    gradient = _gradient(apply_fn, nll, lam, jnp.asarray(x), jnp.asarray(y))
    curvature = _largest_curvature(gradient, start)
    d = _SAFE * (1 + m) / curvature if step_size is None else step_size
    check_number("step_size", d, "above 0", lambda v: v > 0)
    check_step(d, curvature, m)
    noisy = _noisy_gradient(apply_fn, nll, lam, jnp.asarray(x), jnp.asarray(y), batch_size)
    dynamics = corrected_sgld(noisy, step_size=d, momentum=m, temperature=T)

    spread_key, run_key = jax.random.split(jax.random.key(seed))
    positions = _spread(spread_key, start, n_chains, math.sqrt(max(T, 1e-12) / curvature))
    chains = run_chains(
        dynamics, positions, key=run_key, burn_in=burn_in, n_samples=n_samples, thin=thin
    )
    finite = np.all(
        [
            np.isfinite(leaf).reshape(n_chains, -1).all(axis=1)
            for leaf in jax.tree.leaves(chains.draws)
        ],
        axis=0,
    )
    if not finite.any():
        raise InputError(
            f"all {n_chains} chains diverged at step_size {d:.3g}: choose a smaller one, the "
            "curvature away from the start is larger than at it."
        )
    samples = jax.tree.map(lambda leaf: np.asarray(leaf)[finite], chains.draws)
    ended = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, -1]), samples)
    curvature = max(curvature, _largest_curvature(gradient, ended))
    used = d * curvature / (2 * (1 + m))  # of the largest stable step
    return PosteriorSamples(
        samples=samples,
        r_hat=jax.tree.map(split_r_hat, samples),
        ess=jax.tree.map(effective_sample_size, samples),
        step_size=float(d),
        largest_curvature=curvature,
        discretisation=1 / (1 - used) - 1 if used < 1 else math.inf,
        n_diverged=int((~finite).sum()),
        temperature=T,
        momentum=m,
        batch_size=batch_size,
        _model=(apply_fn, nll),
    )


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
