"""How noisy a gradient is: the covariance of per-example gradients, measured.

With g_i the gradient of example i and their mean over N examples,

    tr S   = sum_i |g_i - mean|^2/(N - 1),
    |G|^2  = |mean|^2 - tr S/N            (the bias of |mean|^2 removed),
    critical batch size = tr S/|G|^2      (McCandlish et al. 2018).

Two passes over the data: the first for the mean and the squared norms, the second for each
gradient's component along the mean, from which the jackknife gives the intervals. Leading
eigenvalues of S, if asked for, take some tens of passes more. All of them are differences of sums,
in which float32 cancels where the noise is small beside the mean: such passes are made again in
float64, and a noise within its rounding is none.
"""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from noisescale.arrays import forgets_constants
from noisescale.checks import check_batch_size, check_choice, check_whole
from noisescale.errors import InputError
from noisescale.evidence.problem import Moments, Precision, Problem
from noisescale.evidence.select import Select
from noisescale.evidence.targets import tokens_each
from noisescale.noise.spectrum import NoiseSpectrum, noise_spectrum
from noisescale.notebook import Displayed
from noisescale.training.sampling import SAMPLERS
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from noisescale.evidence.jax_leaves import ApplyFn
    from noisescale.evidence.jax_problem import LikelihoodLike

Array = NDArray[np.float64]

_Z = float(stats.norm.ppf(0.975))
_CANCELS = 1e-3  # noise over squared mean below which float32 is left with a few digits
_NEGLIGIBLE = 1e-20  # of the squared mean: entries whose variance is nobody's, and may underflow
_ROUNDING = 1e-13  # the same below which float64 is left with none
_ONE_EXAMPLE = 1e-3  # of the noise, if one example has all the rest


@dataclass(frozen=True, eq=False, repr=False)
class GradientNoise(Displayed):
    """The noise of per-example gradients at one point.

    Attributes:
        n_train, n_params: N and p.
        trace, trace_std: tr S and its standard error.
        gradient_sq_norm, gradient_sq_norm_std: |G|^2 without its bias, and its standard error.
        critical_batch_size: tr S/|G|^2; None if ``undetermined``.
        low, high: its 95 % interval; a lower bound alone (``high`` infinite) if undetermined.
        undetermined: why |G|^2 or tr S is not resolved; None if both are.
        mean: the mean gradient, in the shape of the params.
        variance: the diagonal of S, in the shape of the params.
        spectrum: the leading eigenvalues of S and how they align with the curvature, if asked for.
        tokens: how many labels a sequence has that count, on average; None if an example has one.
        reduction: whether a sequence's loss is their ``"sum"`` or ``"mean"``.

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
    trace_std: float
    gradient_sq_norm: float
    gradient_sq_norm_std: float
    critical_batch_size: float | None
    low: float
    high: float
    undetermined: str | None
    mean: Any
    variance: Any
    spectrum: NoiseSpectrum | None = None
    tokens: float | None = None
    reduction: str = "sum"

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
            "trace_std",
            "gradient_sq_norm",
            "gradient_sq_norm_std",
            "critical_batch_size",
            "low",
            "high",
            "undetermined",
            "tokens",
            "reduction",
        )
        values = {name: getattr(self, name) for name in names}
        spectrum = None if self.spectrum is None else self.spectrum.to_dict()
        high = None if math.isinf(self.high) else self.high
        return values | {"high": high, "spectrum": spectrum}

    def __repr__(self) -> str:
        unit = "examples"
        if self.tokens is not None:
            verb = "summed" if self.reduction == "sum" else "averaged"
            unit = f"sequences of {self.tokens:.4g} tokens, loss {verb} over tokens"
        if self.critical_batch_size is None:
            bound = f"; at least {self.low:.3g} {unit}" if self.low > 0 else f", in {unit}"
            critical = f"undetermined ({self.undetermined}){bound}"
        else:
            value = Estimate(self.critical_batch_size, low=self.low, high=self.high)
            critical = f"{value} {unit}"
        return (
            f"GradientNoise: critical batch size {critical}\n"
            f"  tr S = {Estimate(self.trace, self.trace_std)}, "
            f"|G|^2 = {Estimate(self.gradient_sq_norm, self.gradient_sq_norm_std)} "
            f"(N = {self.n_train:,}, {self.n_params:,} parameters)"
            + ("" if self.spectrum is None else f"\n{self.spectrum}")
        )


class Examples(Protocol):
    """What the noise of gradients is measured from."""

    @property
    def n_train(self) -> int:
        """The number of examples."""
        ...

    def gradient_moments(self, precision: Precision = "float32") -> Moments:
        """Sums over per-example gradients."""
        ...

    def slopes(self, direction: Array, precision: Precision = "float32") -> Array:
        """Each example's gradient times ``direction``: (N,)."""
        ...

    def structured(self, flat: Array) -> Any:
        """A flat vector in the structure of the parameters."""
        ...


def noise_of(
    problem: Problem, *, n_eigenvalues: int = 0, curvature: str = "ggn", reduction: str = "sum"
) -> GradientNoise:
    """The gradient noise of a problem of any framework; see :func:`gradient_noise`."""
    check_whole("n_eigenvalues", n_eigenvalues, at_least=0)
    check_choice("curvature", curvature, ("ggn", "hessian"))
    tokens = tokens_each(problem.likelihood, [problem.observed])
    noise, mean, precision = noise_of_examples(problem, tokens, reduction)
    if n_eigenvalues == 0:
        return noise
    if tokens is not None and reduction == "mean":
        raise InputError("eigenvalues are of the loss summed over tokens: leave out reduction.")
    spectrum = noise_spectrum(
        problem, mean, n_eigenvalues=n_eigenvalues, curvature=curvature, precision=precision
    )
    return replace(noise, spectrum=spectrum)


def noise_of_examples(
    examples: Examples, tokens: float | None, reduction: str
) -> tuple[GradientNoise, Array, Precision]:
    """The noise without eigenvalues, the mean gradient, and the precision that it needs.

    ``tokens`` are those of a sequence, None if examples have one label each.
    """
    check_choice("reduction", reduction, ("sum", "mean"))
    if examples.n_train < 3:
        raise InputError(f"a covariance needs at least 3 examples, got {examples.n_train}.")
    scale = tokens if tokens is not None and reduction == "mean" else 1.0
    precision: Precision = "float32"
    noise, mean, precise = _measured(examples, precision, scale)
    if not precise:
        precision = "float64"
        noise, mean, _ = _measured(examples, precision, scale)
    if noise is None:
        raise InputError("the gradients of some examples are not finite at these params.")
    return replace(noise, tokens=tokens, reduction=reduction), mean, precision


def _measured(
    problem: Examples, precision: Precision, scale: float
) -> tuple[GradientNoise | None, Array, bool]:
    """By passes in ``precision``; the mean; and whether float32 would do.

    Gradients are divided by ``scale``. None if some gradient is not finite.
    """
    N = problem.n_train
    moments = problem.gradient_moments(precision)
    sq_norms, squares = moments.sq_norms / scale**2, moments.squares / scale**2
    mean = moments.total / (N * scale)
    along = problem.slopes(mean, precision) / scale  # g_i . mean
    if not all(np.isfinite(part).all() for part in (sq_norms, squares, along)):
        return None, mean, False
    # The sample variance of each entry.
    variance = (squares / N - mean**2) * N / (N - 1)
    mean_sq = float(mean @ mean)
    traces, _ = _left_out(sq_norms, along, mean_sq)
    counts = mean**2 > _NEGLIGIBLE * mean_sq
    precise = (variance >= _CANCELS * mean**2)[counts].all() and traces.min() >= _CANCELS * mean_sq
    variance[variance <= _ROUNDING * mean**2] = 0.0
    noise = summarise(
        sq_norms,
        along,
        mean_sq,
        len(mean),
        problem.structured(mean),
        problem.structured(variance),
    )
    return noise, mean, bool(precise)


@forgets_constants
def gradient_noise(
    apply_fn: "ApplyFn",
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    *,
    likelihood: "LikelihoodLike" = "categorical",
    n_eigenvalues: int = 0,
    curvature: str = "ggn",
    select: Select | None = None,
    reduction: str = "sum",
) -> GradientNoise:
    """Measure the noise of per-example gradients of the negative log-likelihood.

    Args:
        apply_fn: any JAX function ``(params, x) -> outputs``.
        params: where to measure.
        data: ``(x, y)``; memory does not grow with its length.
        likelihood: as in :func:`noisescale.log_evidence`.
        n_eigenvalues: how many leading eigenvalues of S to find, and of the curvature beside it.
        curvature: which to compare with, ``"ggn"`` or ``"hessian"``.
        select: as in :func:`noisescale.log_evidence`.
        reduction: whether the loss of a sequence is the ``"sum"`` over its tokens, or that over
            the number of tokens that a sequence has on average: their ``"mean"``, as training
            loops have it. The critical batch size, in sequences, is the same; |G|^2 and tr S of
            the mean are those of the sum over the squared number of tokens.

    A penalty does not change the noise, and is left out of |G|^2 as well.

    >>> import noisescale as ns
    >>> x, y = [[-1.0], [-0.5], [0.5], [1.0]], [0, 1, 0, 1]
    >>> model = ns.softmax_regression(1, 2)
    >>> noise = ns.gradient_noise(model, model.init(0, "zeros"), (x, y))
    >>> round(noise.trace, 3)
    1.042
    """
    from noisescale.evidence.jax_problem import jax_problem

    problem = jax_problem(apply_fn, params, data, likelihood, select)
    return noise_of(problem, n_eigenvalues=n_eigenvalues, curvature=curvature, reduction=reduction)


def summarise(
    sq_norms: Array, along: Array, mean_sq: float, n_params: int, mean: Any, variance: Any
) -> GradientNoise:
    """The noise from |g_i|^2 and g_i . mean of every example, and |mean|^2."""
    n = len(sq_norms)
    trace, signal = _trace_and_signal(n, sq_norms.sum(), n**2 * mean_sq)
    traces, signals = _left_out(sq_norms, along, mean_sq)
    trace_std, signal_std = (_jackknife_std(v) for v in (traces, signals))
    lower_bound = float(trace / (max(signal, 0) + _Z * signal_std)) if signal_std else 0.0
    undetermined = None
    if trace <= _ROUNDING * mean_sq:
        trace, lower_bound = 0.0, 0.0
        undetermined = "the gradients of all examples are alike: there is no noise beyond rounding"
    elif traces.min() <= max(_ROUNDING * mean_sq, _ONE_EXAMPLE * trace):
        lower_bound = 0.0
        undetermined = "one example alone has the noise: without it there is hardly any"
    elif not signal > 2 * signal_std or (signals <= 0).any():
        undetermined = "|G|^2 is not two standard errors above zero"
    ratio, low, high = None, lower_bound, math.inf
    if undetermined is None:
        ratio = float(trace / signal)
        spread = math.exp(_Z * _jackknife_std(np.log(traces / signals)))
        low, high = ratio / spread, ratio * spread
    return GradientNoise(
        n_train=n,
        n_params=n_params,
        trace=float(trace),
        trace_std=trace_std,
        gradient_sq_norm=float(signal),
        gradient_sq_norm_std=signal_std,
        critical_batch_size=ratio,
        low=low,
        high=high,
        undetermined=undetermined,
        mean=mean,
        variance=variance,
    )


def _left_out(sq_norms: Array, along: Array, mean_sq: float) -> tuple[Array, Array]:
    """tr S and |G|^2 without each example in turn: what is left follows from sums."""
    n = len(sq_norms)
    return _trace_and_signal(
        n - 1, sq_norms.sum() - sq_norms, n**2 * mean_sq - 2 * n * along + sq_norms
    )


def _trace_and_signal(n: int, total_sq: Any, sq_total: Any) -> tuple[Any, Any]:
    """tr S and |G|^2 from sum |g_i|^2 and |sum g_i|^2."""
    trace = (total_sq - sq_total / n) / (n - 1)
    return trace, (sq_total - total_sq) / (n * (n - 1))


def _jackknife_std(left_out: Array) -> float:
    n = len(left_out)
    return math.sqrt((n - 1) * float(np.var(left_out)))
