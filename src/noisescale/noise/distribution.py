"""How far from Gaussian a gradient is: over single examples, and over batches.

The central limit theorem makes a batch's mean gradient Gaussian as the batch grows; how soon
depends on the tails. Effect sizes are given, no p-values: with many batches any difference is
significant.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.signal import find_peaks

from noisescale.arrays import check_data, check_params, count_examples
from noisescale.checks import check_batch_size, check_choice, check_whole
from noisescale.errors import InputError
from noisescale.likelihood import LIKELIHOODS
from noisescale.seeds import random_stream
from noisescale.training.per_example import ApplyFn, blocks
from noisescale.training.sampling import BatchStream

Array = NDArray[np.float64]

_GRID = 512  # points on which a density is looked at for modes


@dataclass(frozen=True)
class Shape:
    """How a sample differs from a Gaussian of its own mean and variance.

    Attributes:
        ks_distance: the largest distance between the distribution functions.
        skewness, excess_kurtosis: both 0 for a Gaussian.
        tail_index: Hill's estimate from the largest tenth of |x - mean|; small is heavy.
        n_modes: peaks of a kernel density with Silverman's bandwidth, values at exactly 0 apart.
        at_zero: the share of values that are exactly 0.
        n: the sample's size.
    """

    ks_distance: float
    skewness: float
    excess_kurtosis: float
    tail_index: float
    n_modes: int
    at_zero: float
    n: int

    def to_dict(self) -> dict[str, Any]:
        """The values by name."""
        return asdict(self)


def describe_shape(values: ArrayLike) -> Shape:
    """How ``values`` differ from a Gaussian."""
    x = np.asarray(values, float).ravel()
    if len(x) < 8 or not np.isfinite(x).all():
        raise InputError(f"a distribution needs at least 8 finite values, got {len(x)}.")
    spread = x.std(ddof=1)
    if spread == 0:
        raise InputError("all values are the same: there is no distribution to describe.")
    return Shape(
        ks_distance=ks_distance(x),
        skewness=float(stats.skew(x)),
        excess_kurtosis=float(stats.kurtosis(x)),
        tail_index=_hill(np.abs(x - x.mean())),
        n_modes=count_modes(x[x != 0]),
        at_zero=float(np.mean(x == 0)),
        n=len(x),
    )


def ks_distance(values: ArrayLike) -> float:
    """The largest distance to the distribution function of a Gaussian of its mean and variance."""
    x = np.asarray(values, float)
    return float(stats.kstest(x, "norm", args=(x.mean(), x.std(ddof=1))).statistic)


def count_modes(values: ArrayLike, *, prominence: float = 0.0) -> int:
    """Peaks of the Gaussian kernel density with Silverman's bandwidth.

    A few far values make a bump of their own, so even a Gaussian sample often has several such
    peaks; ``prominence`` asks that a peak rise above its surroundings by that share of the highest.
    """
    x = np.asarray(values, float)
    if len(x) < 2 or x.std() == 0:
        return min(len(x), 1)
    density = stats.gaussian_kde(x, bw_method="silverman")
    margin = 3 * x.std() * density.factor
    heights = density(np.linspace(x.min() - margin, x.max() + margin, _GRID))
    least = max(prominence, 1e-12) * heights.max()
    peaks, _ = find_peaks(np.pad(heights, 1), prominence=least)
    return len(peaks)


def entry_gradients(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    entries: Sequence[int],
    *,
    likelihood: str = "categorical",
) -> Array:
    """Each example's gradient (N, k) at ``entries``, indices into the flattened params."""
    nll = LIKELIHOODS[check_choice("likelihood", likelihood, LIKELIHOODS)]
    n_train = count_examples(data, "data")
    w = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), check_params(params))
    x, y, _ = check_data(apply_fn, w, data, nll, "data")
    n_params = sum(leaf.size for leaf in jax.tree.leaves(w))
    chosen = np.array([check_whole("an entry", entry, at_least=0) for entry in entries])
    if len(chosen) == 0 or chosen.max() >= n_params:
        raise InputError(f"entries must be indices below {n_params}, the number of parameters.")

    @jax.jit
    def gradients(x: jax.Array, y: jax.Array) -> jax.Array:
        def one(x: jax.Array, y: jax.Array) -> jax.Array:
            gradient = jax.grad(lambda w: nll.nll(apply_fn(w, x[None]), y[None])[0])(w)
            flat = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(gradient)])
            return flat[chosen]

        return jax.vmap(one)(x, y)

    # A function that is not known to be a dense network is sized by all its gradients.
    parts = blocks(lambda w, x: x, w, n_train, int(np.prod(x.shape[1:])))
    return np.concatenate([np.asarray(gradients(x[rows], y[rows]), float) for rows in parts])


def batch_means(
    gradients: Array,
    batch_size: int,
    *,
    n_batches: int,
    sampler: str = "without_replacement",
    seed: int = 0,
) -> Array:
    """Means (n_batches, k) of per-example ``gradients`` (N, k) over drawn batches."""
    check_batch_size(batch_size, len(gradients))
    check_whole("n_batches", n_batches, at_least=1)
    rng = random_stream(seed, f"batch means {batch_size}")
    stream = BatchStream(sampler, n_train=len(gradients), batch_size=batch_size, rng=rng)
    return np.array([gradients[batch].mean(axis=0) for batch in stream.take(n_batches)])


def _hill(distances: Array) -> float:
    """One over the mean log excess of the largest tenth."""
    ordered = np.sort(distances[distances > 0])
    k = max(2, len(ordered) // 10)
    if len(ordered) <= k:
        return float("nan")
    excess = np.log(ordered[-k:] / ordered[-k - 1]).mean()
    return float(1 / excess) if excess > 0 else float("inf")
