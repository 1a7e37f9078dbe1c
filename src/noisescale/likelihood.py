"""What a model's outputs say about a target: the likelihoods by name, whatever the framework.

    categorical   -ln softmax(f)_y                                f logits, y a class
                  its sum over the tokens of a sequence           f (T, C), y (T,)
    bernoulli     ln(1 + exp(-+f))                                f one logit, y 0 or 1
    gaussian      beta/2 |f - y|^2 + C/2 ln(2 pi/beta)            f means, beta the noise precision
    poisson       sum of exp(f) - y f + ln y!                     f logarithms of rates, y counts

or a user's own function of a batch's outputs and targets. JAX's and PyTorch's formulas stand in
:mod:`noisescale.jax_nlls` and :mod:`noisescale.torch.likelihood`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from noisescale.checks import check_choice, check_number
from noisescale.errors import InputError

if TYPE_CHECKING:
    import jax

IGNORED = -100  # the label of tokens that do not count, as in PyTorch's cross entropy


@dataclass(frozen=True)
class Likelihood:
    """A likelihood of targets given a model's outputs.

    Attributes:
        name: what users call it.
        function: a user's own ``(outputs, targets) -> nats``, one number an example, in the
            framework of the model; None for the likelihoods that have a name.
        noise_precision: of the Gaussian likelihood; None for any other, or if it is to be
            estimated.
        estimated: whether the noise precision comes from the residuals.
        constant_precision: where it was, the best constant's own, for the null model; None if the
            constant leaves no residuals.
        ignore_index: the label of a sequence's tokens that do not count.

    >>> import noisescale as ns
    >>> ns.gaussian(4.0)
    Likelihood('gaussian', noise_precision=4)
    """

    name: str
    function: Callable[[Any, Any], Any] | None = None
    noise_precision: float | None = None
    estimated: bool = False
    constant_precision: float | None = None
    ignore_index: int = IGNORED

    @property
    def has_classes(self) -> bool:
        """Whether targets are classes, so that a model can be right or wrong."""
        return self.function is None and self.name in LIKELIHOODS

    @property
    def nll(self) -> "Callable[[jax.Array, jax.Array], jax.Array]":
        """``(outputs, targets) -> nats`` of JAX arrays, one number an example."""
        from noisescale.jax_nlls import nll_of

        return nll_of(self)

    @property
    def correct(self) -> "Callable[[jax.Array, jax.Array], jax.Array] | None":
        """``(outputs, labels) -> bool`` of JAX arrays; None for a likelihood without classes."""
        from noisescale.jax_nlls import correct_of

        return correct_of(self)

    def fitted(self, outputs: NDArray[Any], y: NDArray[Any]) -> "Likelihood":
        """The same with the noise of the residuals, and with that of the best constant's."""
        observed = y.reshape(len(y), -1)
        of_constant = _precision(observed - observed.mean(axis=0))
        of_model = estimated_precision(_precision(outputs.reshape(observed.shape) - observed))
        return replace(self, noise_precision=of_model, constant_precision=of_constant)

    def __repr__(self) -> str:
        parts = [repr(self.name)]
        if self.noise_precision is not None:
            parts.append(f"noise_precision={self.noise_precision:.6g}")
        elif self.estimated:
            parts.append("noise_precision='estimate'")
        if self.ignore_index != IGNORED:
            parts.append(f"ignore_index={self.ignore_index}")
        return f"Likelihood({', '.join(parts)})"


# Those with classes, which training takes too.
LIKELIHOODS = {name: Likelihood(name) for name in ("categorical", "bernoulli")}
NAMES = (*LIKELIHOODS, "gaussian", "poisson")


def gaussian(noise_precision: float | str = 1.0) -> Likelihood:
    """Targets with Gaussian noise of one precision (one over its variance) on every output.

    ``"estimate"`` takes the precision of largest likelihood, the number of residuals over the sum
    of their squares: those at the parameters given, or, where there is a descent (``at="map"``,
    :func:`noisescale.map_estimate`), those at the largest likelihood nearby, whatever the start and
    the prior. It needs no curvature, so that it is the same for every method. Where the data
    determine gamma of the parameters, the evidence is largest at a precision lower by the share
    gamma/(N C), which matters when the fit is nearly perfect.

    >>> import noisescale as ns
    >>> ns.gaussian(4.0).noise_precision
    4.0
    >>> ns.gaussian("estimate").noise_precision is None
    True
    """
    if isinstance(noise_precision, str):
        check_choice("noise_precision", noise_precision, ["estimate"])
        return Likelihood("gaussian", estimated=True)
    precision = check_number("noise_precision", noise_precision, "above 0", lambda v: v > 0)
    return Likelihood("gaussian", noise_precision=precision)


def categorical(*, ignore_index: int = IGNORED) -> Likelihood:
    """Classes, of whole examples or of the tokens of sequences, whose padding does not count.

    ``likelihood="categorical"`` is the same with PyTorch's label for padding, -100. With a mask
    ``m`` of the tokens that count, give labels ``np.where(m, y, -100)``.

    >>> import noisescale as ns
    >>> ns.categorical(ignore_index=0)
    Likelihood('categorical', ignore_index=0)
    """
    whole = check_number("ignore_index", ignore_index, "without decimals", float.is_integer)
    return replace(LIKELIHOODS["categorical"], ignore_index=int(whole))


def resolve_likelihood(likelihood: Any) -> Likelihood:
    """A likelihood from its name, from :func:`gaussian`, or from a user's own nll function."""
    if isinstance(likelihood, Likelihood):
        return likelihood
    if callable(likelihood):
        return Likelihood(getattr(likelihood, "__name__", "custom"), likelihood)
    check_choice("likelihood", likelihood, NAMES)
    return gaussian() if likelihood == "gaussian" else Likelihood(likelihood)


def _precision(residuals: NDArray[Any]) -> float | None:
    """The noise precision of largest likelihood; None if nothing is left."""
    squares = float((residuals**2).sum())
    return residuals.size / squares if squares > 0 else None


def estimated_precision(precision: float | None) -> float:
    """It, if the residuals have one."""
    if precision is None:
        raise InputError(
            "the residuals are all zero, so that their noise has no precision to estimate: give "
            "ns.gaussian(noise_precision)."
        )
    return precision


@dataclass(frozen=True)
class InShape:
    """A user's nll for outputs that come as one row an example: each in this shape again."""

    function: Callable[[Any, Any], Any]
    shape: tuple[int, ...]

    def __call__(self, outputs: Any, y: Any) -> Any:
        """The nll of each example."""
        return self.function(outputs.reshape(outputs.shape[0], *self.shape), y)
