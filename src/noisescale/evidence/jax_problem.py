"""A JAX function at its params as a :class:`~noisescale.evidence.problem.Problem`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, starmap
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import LinearOperator

from noisescale.arrays import check_inputs, check_params, count_examples, output_shape
from noisescale.errors import InputError
from noisescale.evidence.curvature.gauss_newton import (
    dense_ggn,
    jacobian_products,
    jacobian_rows,
    output_root,
)
from noisescale.evidence.curvature.hessian import dense_hessian
from noisescale.evidence.curvature.layers import DenseLayers, split_layers
from noisescale.evidence.curvature.model import (
    Architecture,
    Model,
    activations,
    check_nll,
    pass_flops,
)
from noisescale.evidence.curvature.per_example import gradient_moments, second_moments, slopes
from noisescale.evidence.curvature.products import (
    curvature_operator,
    nll_and_gradient,
    nll_function,
    row_blocks,
)
from noisescale.evidence.curvature.roots import stack_roots
from noisescale.evidence.jax_leaves import ApplyFn, leaf_names, selected
from noisescale.evidence.occam.kernel import BLOCK_BYTES, BLOCK_FLOPS, LayerRows
from noisescale.evidence.occam.kernel import row_blocks as blocks_of_rows
from noisescale.evidence.pace import advance, stage
from noisescale.evidence.prior import layers_of
from noisescale.evidence.problem import (
    LOG_CONCAVE,
    Array,
    Facts,
    Kronecker,
    KroneckerBlock,
    Moments,
    Precision,
    Weight,
    with_estimated_noise,
)
from noisescale.evidence.rows import Rows, by_examples
from noisescale.evidence.select import Select
from noisescale.evidence.targets import check_targets, fitted_to, n_rows, n_tokens
from noisescale.likelihood import Likelihood, resolve_likelihood
from noisescale.training.dense import as_dense, leaf_shapes

_LAYER_BYTES = 1 << 27  # of layers' inputs and derivatives held at once
_LAYER_FLOPS = 1 << 35  # of products between them: under a second
# Rows of a block stay in the cache: what XLA's convolutions by row take, in time and memory, grows
# with the square of their number (30 s with 195 rows at once, half a second with 8).
_CACHE, _FEW_ROWS = 1 << 22, 8

LikelihoodLike = str | Likelihood | Callable[[jax.Array, jax.Array], jax.Array]


def jax_problem(
    apply_fn: ApplyFn,
    params: Any,
    data: tuple[ArrayLike, ArrayLike],
    likelihood: LikelihoodLike,
    select: Select | None = None,
) -> "JaxProblem":
    """The problem of a JAX function with checked data; ``select`` chooses parameters by path."""
    names = leaf_names(check_params(params))
    if select is not None:
        apply_fn, params, names = selected(apply_fn, params, names, select)
    chosen = resolve_likelihood(likelihood)
    count_examples(data, "data")
    given = np.asarray(data[0])
    kept = np.float32 if given.dtype == np.float32 else np.float64  # widened block by block
    x = check_inputs(data[0], "data x", kept)
    with jax.enable_x64(True):
        shape = output_shape(apply_fn, params, x)
    y, n_classes = check_targets(np.asarray(data[1]), chosen, shape)
    model = Model.at(apply_fn, params, x, y, fitted_to(chosen, shape))
    problem = with_estimated_noise(JaxProblem(model, tuple(names), n_classes))
    check_nll(problem.model)
    return problem


@dataclass(frozen=True, eq=False)
class JaxProblem:
    """A JAX function at its params."""

    model: Model
    names: tuple[str, ...]  # of the params' leaves
    n_classes: int | None

    notes = ()

    @property
    def w(self) -> Array:
        """The flat parameters."""
        return self.model.w

    @property
    def n_train(self) -> int:
        """The number of examples."""
        return len(self.model.x)

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, its noise precision known."""
        return self.model.architecture.likelihood

    @property
    def observed(self) -> NDArray[Any]:
        """The targets."""
        return self.model.y

    @property
    def log_concave(self) -> bool:
        """Whether the likelihood is known to be log-concave in the outputs."""
        return self.likelihood.function is None and self.likelihood.name in LOG_CONCAVE

    def at(self, w: Array) -> "JaxProblem":
        """The same problem at other flat parameters; compiled programs are those it has."""
        return replace(self, model=replace(self.model, w=w))

    def under(self, likelihood: Likelihood) -> Self:
        """The same problem under another likelihood."""
        model = self.model
        architecture = replace(model.architecture, likelihood=likelihood)
        return replace(self, model=replace(model, architecture=architecture))

    def subset(self, examples: slice) -> "JaxProblem":
        """The same problem with these examples alone."""
        model = self.model
        return replace(self, model=replace(model, x=model.x[examples], y=model.y[examples]))

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each leaf by its path."""
        return dict(zip(self.names, self.model.architecture.shapes, strict=True))

    @cached_property
    def layers(self) -> dict[str, NDArray[np.int64]]:
        """The flat indices of each layer's parameters."""
        return layers_of(self.shapes)

    @cached_property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass."""
        return activations(self.model)

    def facts(self) -> Facts:
        """The sizes that costs depend on."""
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        model = self.model
        N, C = len(model.x), model.n_outputs
        network = self._network
        return Facts(
            p=model.n_params,
            N=N,
            C=C,
            rows=N * n_rows(self.likelihood, C, self.n_classes),
            pass_flops=pass_flops(model),
            weights=() if network is None else tuple(starmap(Weight, pairwise(network.widths))),
            activations=self.activations,
            tokens=n_tokens(self.likelihood, self.observed),
        )

    def leaves(self, given: Any) -> list[Any]:
        """The leaves of a pytree like the params; None counts as a leaf."""
        is_leaf = lambda leaf: leaf is None  # noqa: E731
        tree = jax.tree.structure(given, is_leaf=is_leaf)
        if str(tree) != str(self.model.architecture.tree):
            raise InputError(
                "prior_precision must be a number, 'auto', 'per_layer', or have the structure of "
                f"params or the names of its layers, got {str(tree)[:80]} for layers "
                f"{', '.join(self.layers)}."
            )
        return jax.tree.leaves(given, is_leaf=is_leaf)

    def structured(self, flat: Array) -> Any:
        """A flat vector as a pytree like the params."""
        architecture = self.model.architecture
        ends = np.cumsum([math.prod(shape) for shape in architecture.shapes])[:-1]
        parts = zip(np.split(flat, ends), architecture.shapes, strict=True)
        return jax.tree.unflatten(architecture.tree, [part.reshape(shape) for part, shape in parts])

    def nll_and_gradient(self, precision: Precision = "float64") -> tuple[float, Array]:
        """The summed nll and its gradient, in blocks of examples."""
        return nll_and_gradient(self.model, precision)

    def nll_function(self, precision: Precision) -> Callable[[Array], tuple[float, Array]]:
        """The summed nll and its gradient at any flat parameters, finite or not."""
        return nll_function(self.model, precision)

    def operator(self, curvature: str, precision: Precision) -> LinearOperator:
        """The curvature as products."""
        return curvature_operator(self.model, curvature, precision=precision)

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        if curvature == "ggn":
            return dense_ggn(self.model)
        return dense_hessian(self.model), False

    def roots(self) -> Array | None:
        """R (N, k, C), of tokens (N, T, k, C); None if some nll is not convex in its outputs."""
        parts = []
        for rows, outputs in _outputs(self.model):
            root = output_root(self.model.architecture, outputs, self.model.block(rows)[1])
            if root is None:
                return None
            parts.append(root)
        return stack_roots(parts)

    def outputs(self, examples: slice) -> Array:
        """The outputs of these examples: (b, C)."""
        model = replace(self.model, x=self.model.x[examples], y=self.model.y[examples])
        return np.concatenate([outputs for _, outputs in _outputs(model)])

    def with_inputs(self, x: ArrayLike) -> "JaxProblem":
        """The same model with other inputs, whose targets are not known."""
        inputs, known = check_inputs(x, "x_new", np.float64), self.model.x
        if inputs.ndim != known.ndim or len(inputs) == 0:
            raise InputError(
                f"x_new must have one row an input, each of shape {known.shape[1:]}, got shape "
                f"{inputs.shape}."
            )
        with jax.enable_x64(True):
            apply_fn = self.model.architecture.apply_fn
            output_shape(apply_fn, self.structured(self.w), inputs)
        unknown = np.zeros((len(inputs), *self.model.y.shape[1:]), self.model.y.dtype)
        return replace(self, model=replace(self.model, x=inputs, y=unknown))

    def rows(self, rows: Rows) -> Array:
        """The rows c' J_i themselves: (n, p)."""
        x, _ = self.model.block(rows.examples)
        with jax.enable_x64(True):
            return np.asarray(jacobian_rows(self.model.architecture, self.w, x, rows.coefficients))

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """The derivative of these examples' outputs along each of the directions: (b, n, C)."""
        x, _ = self.model.block(examples)
        with jax.enable_x64(True):
            return np.asarray(jacobian_products(self.model.architecture, self.w, x, directions))

    def rows_at_once(self) -> int:
        """How many rows a block of them should have."""
        facts = self.facts()
        bytes_a_row = 8 * (facts.p + 4 * facts.activations)
        few = max(_CACHE / bytes_a_row, _FEW_ROWS)
        few = min(few, BLOCK_BYTES / bytes_a_row, BLOCK_FLOPS / (3 * facts.pass_flops))
        return int(np.clip(few, 1, 512))

    def layer_kernel(self, L: Array, rows: Rows) -> LayerRows | None:
        """From a dense network's layers, if each of its arrays has one precision."""
        layers = self.dense_layers(rows)
        precisions = None if layers is None else layers.precisions(L)
        if layers is None or precisions is None:
            return None
        return LayerRows(self, layers, precisions, rows)

    def kronecker(self, rows: Rows) -> Kronecker | None:
        """Of a ``DenseNetwork``'s layers, None for any other function."""
        network = self._network
        if network is None:
            return None
        sides = list(pairwise(network.widths))
        sums = [(np.zeros((d, d)), np.zeros((h, h))) for d, h in sides]  # of a a' and of b b'
        n = 0
        stage("factors", len(rows))
        for layers, block in self._layer_blocks(rows):
            derivatives = layers.derivatives(block)
            for a, D, (A, B) in zip(layers.inputs, derivatives, sums, strict=True):
                A += a.T @ a
                B += D.T @ D
            n += len(layers.inputs[0])
            advance(len(block))
        places = zip(sums, split_layers(np.arange(len(self.w)), sides), strict=True)
        blocks = tuple(
            KroneckerBlock(str(i), A / max(n, 1), B, weight.T, bias)
            for i, ((A, B), (weight, bias)) in enumerate(places)
        )
        return Kronecker(blocks, np.zeros(0, np.int64), np.zeros(0))

    def squared_rows(self, rows: Rows) -> Array:
        """The squared entries of all rows, summed: layer by layer or row by row."""
        h = np.zeros(len(self.w))
        stage("diagonal", len(rows))
        if self._network is None:
            for A in blocks_of_rows(self, rows):
                h += np.einsum("rp,rp->p", A, A)
                advance(len(A))
            return h
        for layers, block in self._layer_blocks(rows):
            h += np.concatenate([part.ravel() for part in layers.squares(block)])
            advance(len(block))
        return h

    def dense_layers(self, rows: Rows) -> DenseLayers | None:
        """The layers of a ``DenseNetwork`` for the rows' examples; None for any other function."""
        if self._network is None:
            return None
        x, _ = self.model.block(rows.of_few()[0])
        return DenseLayers.of(self.structured(self.w), x)

    def _layer_blocks(self, rows: Rows) -> Iterator[tuple[DenseLayers, Rows]]:
        """The layers of a block of examples, and the rows among those."""
        for block in by_examples(rows, self._layer_rows_at_once()):
            layers = self.dense_layers(block)
            assert layers is not None
            yield layers, block.of_few()[1]

    def _layer_rows_at_once(self) -> int:
        """Rows whose derivatives at all layers, and whose examples' inputs, fit into a block."""
        facts = self.facts()
        an_example = sum(w.inputs + facts.rows_an_example * w.outputs for w in facts.weights)
        k = facts.rows_an_example
        flops = sum(
            2 * w.inputs**2 + 2 * k * w.outputs * (w.outputs + w.inputs) for w in facts.weights
        )
        examples = min(_LAYER_BYTES // (8 * max(an_example, 1)), _LAYER_FLOPS // max(flops, 1))
        return max(1, examples) * k

    def gradient_moments(self, precision: Precision = "float32") -> Moments:
        """Sums over per-example gradients, each in ``precision``, added up in float64."""
        return gradient_moments(self.model, precision)

    def slopes(self, direction: Array, precision: Precision = "float32") -> Array:
        """Each example's gradient times ``direction``: one forward derivative."""
        return slopes(self.model, direction, precision)

    def second_moments(self, precision: Precision = "float32") -> LinearOperator:
        """sum_i g_i g_i' as products, (p, p)."""
        return second_moments(self.model, precision)

    @property
    def _network(self) -> Any:
        """The dense network behind this problem, if its params are exactly its layers'."""
        network = as_dense(self.model.architecture.apply_fn)
        known = network is not None and self.model.architecture.shapes == tuple(
            leaf_shapes(network)
        )
        return network if known else None


def _outputs(model: Model) -> Iterator[tuple[slice, Array]]:
    """The outputs (b, C) of blocks of examples."""
    for rows in row_blocks(model, model.n_outputs, "float64"):
        with jax.enable_x64(True):
            yield rows, np.asarray(_outputs_of(model.architecture, model.w, model.block(rows)[0]))


@partial(jax.jit, static_argnums=0)
def _outputs_of(architecture: Architecture, w: jax.Array, x: jax.Array) -> jax.Array:
    return architecture.outputs(w, x)
