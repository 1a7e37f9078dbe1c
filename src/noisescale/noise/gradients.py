"""How noisy a gradient is: the covariance of per-example gradients, measured.

With g_i the gradient of example i and their mean over N examples,

    tr S   = sum_i |g_i - mean|^2/(N - 1),
    |G|^2  = |mean|^2 - tr S/N            (the bias of |mean|^2 removed),
    critical batch size = tr S/|G|^2      (McCandlish et al. 2018).

Two passes over the data: the first for the mean and the squared norms, the second for each
gradient's component along the mean, from which the jackknife gives the intervals. Leading
eigenvalues of S, if asked for, take some tens of passes more.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from noisescale.arrays import check_data, check_params, count_examples, forgets_constants
from noisescale.checks import check_batch_size, check_choice, check_whole
from noisescale.errors import InputError
from noisescale.evidence.curvature.model import Model
from noisescale.likelihood import LIKELIHOODS
from noisescale.noise.per_example import ApplyFn, blocks, slopes, sums
from noisescale.noise.spectrum import NoiseSpectrum, noise_spectrum
from noisescale.training.sampling import SAMPLERS

Array = NDArray[np.float64]

_Z = float(stats.norm.ppf(0.975))


@dataclass(frozen=True, eq=False, repr=False)
class GradientNoise:
    """The noise of per-example gradients at one point.

    Attributes:
        n_train, n_params: N and p.
        trace, trace_error: tr S and its standard error.
        gradient_sq_norm, gradient_sq_norm_error: |G|^2 without its bias, and its standard error.
        critical_batch_size: tr S/|G|^2; None if ``undetermined``.
        low, high: its 95 % interval; a lower bound alone (``high`` infinite) if undetermined.
        undetermined: why |G|^2 is not resolved; None if it is.
        mean: the mean gradient, in the shape of the params.
        variance: the diagonal of S, in the shape of the params.
        spectrum: the leading eigenvalues of S and how they align with the curvature, if asked for.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 1, 0, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> noise = ns.gradient_noise(model, model.init(0, "zeros"), (x, y))
    >>> noise.minibatch_variance(4)
    0.0
    """

    n_train: int
    n_params: int
    trace: float
    trace_error: float
    gradient_sq_norm: float
    gradient_sq_norm_error: float
    critical_batch_size: float | None
    low: float
    high: float
    undetermined: str | None
    mean: Any
    variance: Any
    spectrum: NoiseSpectrum | None = None

    def minibatch_variance(self, batch_size: int, sampler: str = "without_replacement") -> float:
        """The trace of the covariance of a minibatch's mean gradient.

        Without replacement (1/B - 1/N) tr S, which vanishes at B = N; with replacement
        (1 - 1/N) tr S/B, which does not. A shuffled batch within one epoch is drawn without
        replacement. Times N^2 this is the paper's <alpha^2>.
        """
        N = self.n_train
        B = check_batch_size(batch_size, N)
        check_choice("sampler", sampler, SAMPLERS)
        if sampler == "with_replacement":
            return self.trace * (N - 1) / (N * B)
        return self.trace * (N - B) / (N * B)

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, without the vectors."""
        names = (
            "n_train",
            "n_params",
            "trace",
            "trace_error",
            "gradient_sq_norm",
            "gradient_sq_norm_error",
            "critical_batch_size",
            "low",
            "high",
            "undetermined",
        )
        values = {name: getattr(self, name) for name in names}
        spectrum = None if self.spectrum is None else self.spectrum.to_dict()
        high = None if math.isinf(self.high) else self.high
        return values | {"high": high, "spectrum": spectrum}

    def __repr__(self) -> str:
        if self.critical_batch_size is None:
            told = f"undetermined ({self.undetermined}); at least {self.low:.3g}"
        else:
            told = f"{self.critical_batch_size:.3g} [{self.low:.3g}, {self.high:.3g}]"
        return (
            f"GradientNoise: critical batch size {told}\n"
            f"  tr S = {self.trace:.4g} ± {self.trace_error:.2g}, |G|^2 = "
            f"{self.gradient_sq_norm:.4g} ± {self.gradient_sq_norm_error:.2g} "
            f"(N = {self.n_train:,}, {self.n_params:,} parameters)"
            + ("" if self.spectrum is None else f"\n{self.spectrum}")
        )


@forgets_constants
def gradient_noise(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    likelihood: str = "categorical",
    n_eigenvalues: int = 0,
    curvature: str = "ggn",
) -> GradientNoise:
    """Measure the noise of per-example gradients of the negative log-likelihood.

    Args:
        apply_fn: any JAX function ``(params, x) -> logits``.
        params: where to measure.
        data: ``(x, y)``; memory does not grow with its length.
        likelihood: ``"categorical"`` or ``"bernoulli"``.
        n_eigenvalues: how many leading eigenvalues of S to find, and of the curvature beside it.
        curvature: which to compare with, ``"ggn"`` or ``"hessian"``.

    A penalty does not change the noise, and is left out of |G|^2 as well.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 1, 0, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> noise = ns.gradient_noise(model, model.init(0, "zeros"), (x, y))
    >>> round(noise.trace, 3)
    1.042
    """
    nll = LIKELIHOODS[check_choice("likelihood", likelihood, LIKELIHOODS)]
    check_whole("n_eigenvalues", n_eigenvalues, at_least=0)
    n_train = count_examples(data, "data")
    if n_train < 3:
        raise InputError(f"a covariance needs at least 3 examples, got {n_train}.")
    w = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), check_params(params))
    x, y, _ = check_data(apply_fn, w, data, nll, "data")
    parts = list(blocks(apply_fn, w, n_train, int(np.prod(x.shape[1:]))))

    sq_norms = np.empty(n_train)
    gradient = squares = None
    for rows in parts:
        block = sums(apply_fn, nll, w, x[rows], y[rows])
        sq_norms[rows] = block.sq_norms
        gradient = _add(gradient, block.gradient)
        squares = _add(squares, block.squares)
    mean = jax.tree.map(lambda total: total / n_train, gradient)
    along = np.empty(n_train)  # g_i . mean
    direction = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), mean)
    for rows in parts:
        along[rows] = slopes(apply_fn, nll, w, x[rows], y[rows], direction)
    if not (np.isfinite(sq_norms).all() and np.isfinite(along).all()):
        raise InputError("the gradients of some examples are not finite at these params.")
    # The sample variance of each entry; rounding must not make it negative.
    variance = jax.tree.map(
        lambda total, m: np.maximum(total / n_train - m**2, 0) * n_train / (n_train - 1),
        squares,
        mean,
    )
    n_params = sum(leaf.size for leaf in jax.tree.leaves(w))
    mean_sq = float(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(mean)))
    noise = summarise(sq_norms, along, mean_sq, n_params, mean, variance)
    if n_eigenvalues == 0:
        return noise
    model = Model.at(apply_fn, w, x, y, nll)
    flat = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(mean)])
    spectrum = noise_spectrum(model, flat, n_eigenvalues=n_eigenvalues, curvature=curvature)
    return replace(noise, spectrum=spectrum)


def summarise(
    sq_norms: Array, along: Array, mean_sq: float, n_params: int, mean: Any, variance: Any
) -> GradientNoise:
    """The noise from |g_i|^2 and g_i . mean of every example, and |mean|^2."""
    n = len(sq_norms)
    trace, signal = _trace_and_signal(n, sq_norms.sum(), n**2 * mean_sq)
    # Leave each example out in turn: what is left follows from sums.
    traces, signals = _trace_and_signal(
        n - 1, sq_norms.sum() - sq_norms, n**2 * mean_sq - 2 * n * along + sq_norms
    )
    trace_error, signal_error = (_jackknife_error(v) for v in (traces, signals))
    lower_bound = float(trace / (max(signal, 0) + _Z * signal_error)) if signal_error else 0.0
    common: dict[str, Any] = {
        "n_train": n,
        "n_params": n_params,
        "trace": float(trace),
        "trace_error": trace_error,
        "gradient_sq_norm": float(signal),
        "gradient_sq_norm_error": signal_error,
        "mean": mean,
        "variance": variance,
    }
    if not signal > 2 * signal_error or (signals <= 0).any() or trace <= 0:
        reason = "|G|^2 is not two standard errors above zero" if trace > 0 else "there is no noise"
        return GradientNoise(
            critical_batch_size=None, low=lower_bound, high=math.inf, undetermined=reason, **common
        )
    ratio = float(trace / signal)
    spread = math.exp(_Z * _jackknife_error(np.log(traces / signals)))
    return GradientNoise(
        critical_batch_size=ratio,
        low=ratio / spread,
        high=ratio * spread,
        undetermined=None,
        **common,
    )


def _trace_and_signal(n: int, total_sq: Any, sq_total: Any) -> tuple[Any, Any]:
    """tr S and |G|^2 from sum |g_i|^2 and |sum g_i|^2."""
    trace = (total_sq - sq_total / n) / (n - 1)
    return trace, (sq_total - total_sq) / (n * (n - 1))


def _jackknife_error(left_out: Array) -> float:
    n = len(left_out)
    return math.sqrt((n - 1) * float(np.var(left_out)))


def _add(total: Any, block: Any) -> Any:
    """Sums of blocks in float64."""
    block = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), block)
    return block if total is None else jax.tree.map(np.add, total, block)
