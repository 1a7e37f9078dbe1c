"""A model at a point with its data, as the estimators see it.

JAX and PyTorch each build one (:mod:`noisescale.evidence.jax_problem`,
:mod:`noisescale.torch.problem`); evidence, spectrum, chosen priors and gradient noise know nothing
else of a framework. Vectors are NumPy's, flat, float64; curvatures are of the summed nll, without
the prior.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator

from noisescale.errors import InputError
from noisescale.evidence.rows import Rows
from noisescale.likelihood import Likelihood
from noisescale.seeds import random_stream

if TYPE_CHECKING:
    from noisescale.evidence.occam.kernel import Builder

Array = NDArray[np.float64]
Precision = Literal["float32", "float64"]


@dataclass(frozen=True)
class Weight:
    """A weight that multiplies inputs: o x i, at T positions of an example, in g groups."""

    inputs: int
    outputs: int
    positions: int = 1
    groups: int = 1

    @property
    def size(self) -> int:
        """Its number of parameters."""
        return self.inputs * self.outputs * self.groups

    def kernel_flops(self, k: int) -> float:
        """Arithmetic of a product of two gradients by Gram matrices, k gradients an example.

        T^2 products of o numbers; those of i numbers are shared by the k^2 of two examples. The
        product of formed gradients takes 2 i o g.
        """
        between = 2 * self.outputs + 2 * self.inputs / k**2 + 2
        return float(self.positions**2 * self.groups * between)


@dataclass(frozen=True)
class Facts:
    """The sizes that costs depend on.

    Attributes:
        p, N, C: parameters, examples, outputs.
        rows: of the dual kernel, N (C - 1) for a softmax, N T (C - 1) for sequences.
        pass_flops: arithmetic of one example's forward pass.
        weights: the layers that are known to multiply, of a function whose layers are known.
        activations: numbers that one example adds to a forward pass.
        tokens: T of sequences, whose rows touch one token's outputs alone.
    """

    p: int
    N: int
    C: int
    rows: int
    pass_flops: float
    weights: tuple[Weight, ...] = ()
    activations: int = 1
    tokens: int = 1

    @property
    def rows_an_example(self) -> int:
        """k, at least 1."""
        return max(1, round(self.rows / self.N))

    @property
    def multiplied(self) -> tuple[Weight, ...]:
        """The weights whose kernels are cheaper by Gram matrices than from formed gradients."""
        k = self.rows_an_example
        return tuple(w for w in self.weights if w.kernel_flops(k) < 2 * w.size)

    @property
    def formed(self) -> int:
        """The number of parameters whose gradients are formed for a kernel."""
        return self.p - sum(w.size for w in self.multiplied)

    @property
    def unformed(self) -> int:
        """Numbers that a row takes while weights' gradients are not formed, all but one's."""
        others = self.p - sum(w.size for w in self.weights)
        k = self.rows_an_example
        each = (w.groups * w.positions * (w.outputs + w.inputs / k) for w in self.weights)
        return math.ceil(others + sum(each)) + max((w.size for w in self.weights), default=self.p)


@dataclass(frozen=True, eq=False)
class KroneckerBlock:
    """A weight's block of the Gauss-Newton matrix as B x A, and B for its bias.

    Attributes:
        name: the layer's.
        inputs: A (i, i), the mean of a a' over examples and positions.
        outputs: B (o, o), the sum of b b' over rows and positions.
        weight: the flat index of each of the weight's entries (o, i).
        bias: that of the bias's (o,), if there is one.
    """

    name: str
    inputs: Array
    outputs: Array
    weight: NDArray[np.int64]
    bias: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class Kronecker:
    """The blocks, and the diagonal (p,) where there is none: ``rest`` are the flat indices there.

    Attributes:
        blocks: of all layers that have one.
        rest: flat indices of all other parameters.
        diagonal: of the Gauss-Newton matrix at ``rest``.
        rest_names: what these parameters are called.
    """

    blocks: tuple[KroneckerBlock, ...]
    rest: NDArray[np.int64]
    diagonal: Array
    rest_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Moments:
    """Of per-example gradients g_i: |g_i|^2 of each, sum of g_i, sum of their squared entries."""

    sq_norms: Array  # (N,)
    total: Array  # (p,)
    squares: Array  # (p,)


class Problem(Protocol):
    """What the estimators ask of a model."""

    @property
    def w(self) -> Array:
        """The flat parameters (p,)."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each parameter array by its name, in the order of ``w``."""
        ...

    @property
    def layers(self) -> dict[str, NDArray[np.int64]]:
        """The flat indices of each layer's parameters."""
        ...

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, its noise precision known."""
        ...

    @property
    def observed(self) -> NDArray[Any]:
        """The targets (N, ...)."""
        ...

    @property
    def n_classes(self) -> int | None:
        """The number of classes, None for a likelihood without."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any result must know about this model and its data."""
        ...

    @property
    def log_concave(self) -> bool:
        """Whether the likelihood is known to be log-concave in the outputs, wherever they are."""
        ...

    @property
    def n_train(self) -> int:
        """The number of examples N."""
        ...

    @property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass."""
        ...

    def at(self, w: Array) -> "Problem":
        """The same problem at other flat parameters; nothing is compiled again."""
        ...

    def under(self, likelihood: Likelihood) -> Self:
        """The same problem under another likelihood."""
        ...

    def subset(self, examples: slice) -> "Problem":
        """The same problem with these examples alone."""
        ...

    def facts(self) -> Facts:
        """The sizes that costs depend on."""
        ...

    def leaves(self, given: Any) -> list[Any]:
        """The parts of something structured like the parameters, in the order of ``shapes``."""
        ...

    def structured(self, flat: Array) -> Any:
        """A flat vector in the structure of the parameters."""
        ...

    def outputs(self, examples: slice) -> Array:
        """The outputs of these examples: (b, C)."""
        ...

    def with_inputs(self, x: Any) -> "Problem":
        """The same model with other inputs, whose targets are not known."""
        ...

    def nll_and_gradient(self, precision: Precision = "float64") -> tuple[float, Array]:
        """The summed nll and its gradient, both finite, by passes in this precision."""
        ...

    def nll_function(self, precision: Precision) -> Callable[[Array], tuple[float, Array]]:
        """The summed nll and its gradient at any flat parameters, finite or not."""
        ...

    def operator(self, curvature: str, precision: Precision) -> LinearOperator:
        """The curvature as products."""
        ...

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        ...

    def roots(self) -> Array | None:
        """R (N, k, C) with R_i' R_i the Hessian of nll_i in its outputs; None if not convex.

        Of sequences (N, T, k, C): that of each token in its own outputs.
        """
        ...

    def rows(self, rows: Rows) -> Array:
        """The rows c' J_i themselves: (n, p)."""
        ...

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """The derivative of these examples' outputs along each of the directions: (b, n, C)."""
        ...

    def rows_at_once(self) -> int:
        """How many rows a block of them should have: memory, and well under a second."""
        ...

    def layer_kernel(self, L: Array, rows: Rows) -> "Builder | None":
        """The kernel between rows from what layers see; None if they are not known."""
        ...

    def kronecker(self, rows: Rows) -> Kronecker | None:
        """Kronecker factors of the layers; None if there are none."""
        ...

    def squared_rows(self, rows: Rows) -> Array:
        """The squared entries of all rows, summed: (p,)."""
        ...

    def gradient_moments(self, precision: Precision = "float32") -> Moments:
        """Sums over per-example gradients."""
        ...

    def slopes(self, direction: Array, precision: Precision = "float32") -> Array:
        """Each example's gradient times ``direction``: (N,)."""
        ...

    def second_moments(self, precision: Precision = "float32") -> LinearOperator:
        """sum_i g_i g_i' as products, (p, p)."""
        ...


P = TypeVar("P", bound=Problem)


def with_estimated_noise(problem: P, fit: Problem | None = None) -> P:
    """With the noise of the residuals that ``fit`` (or the problem's own point) leaves.

    A likelihood whose noise is not to be estimated stays as it is.
    """
    if not problem.likelihood.estimated:
        return problem
    outputs = (fit or problem).outputs(slice(None))
    return problem.under(problem.likelihood.fitted(outputs, problem.observed))


LOG_CONCAVE = (
    "categorical",
    "bernoulli",
    "gaussian",
    "poisson",
)  # in the outputs, wherever they are
_PROBED = 16  # examples by which a model is seen to be linear


def is_linear(problem: Problem) -> bool:
    """Whether the outputs are linear in the parameters (and not merely piece by piece).

    Second differences along a random direction, far enough for rectifiers to switch, vanish for a
    linear model alone. One that overflows or fails there is not linear.
    """
    w, few = problem.w, slice(0, min(_PROBED, problem.n_train))
    size = 10.0 * (1.0 + float(np.sqrt(np.mean(w**2))))
    v = size * random_stream(0, "is it linear").normal(size=len(w))
    here = problem.outputs(few)
    try:
        ahead, behind = problem.at(w + v).outputs(few), problem.at(w - v).outputs(few)
    except InputError:
        return False
    scale = np.abs(here).max() + np.abs(ahead).max() + np.abs(behind).max()
    if not np.isfinite(scale):
        return False
    return bool(np.abs(ahead + behind - 2 * here).max() <= 1e-9 * scale)
