"""A PyTorch module as the estimators see it: derivatives by ``torch.func``."""

from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch.func import grad, vjp, vmap
from torch.utils.flop_counter import FlopCounterMode

from noisescale.arrays import check_labels, check_outputs
from noisescale.errors import InputError
from noisescale.evidence.curvature.roots import softmax_root, stack_roots, symmetric_root
from noisescale.evidence.occam.kernel import output_rows, row_blocks
from noisescale.evidence.pace import advance, attended, stage, tick
from noisescale.evidence.prior import layers_of
from noisescale.evidence.problem import Array, Facts, Kronecker, Moments, Precision, Rows
from noisescale.torch.batches import collect, leaves, mapped, placed, taken
from noisescale.torch.derivatives import Ways
from noisescale.torch.factors import Factor, compact_numbers, sums
from noisescale.torch.kernel import FactorKernel, factor_kernel
from noisescale.torch.kronecker import kronecker_factors
from noisescale.torch.likelihood import resolve_nll
from noisescale.torch.model import TorchModel
from noisescale.torch.rows import ExampleGradients, RowBlock, by_examples
from noisescale.torch.tensors import to_numpy

BLOCK_BYTES = 1 << 27  # of activations or per-example gradients held at once
BLOCK_FLOPS = 4e9  # of a block: some tenths of a second
KEPT_BYTES = 1 << 30  # of gradients that are kept to be used a second time
_HELD = 4  # copies of the activations: inputs, outputs, what derivatives need
ROOT = "(module)"  # the layer of parameters that the module itself holds, beside its submodules


class TorchProblem:
    """A PyTorch module at its parameters, as the evidence sees it."""

    def __init__(self, module: torch.nn.Module, data: Any, likelihood: Any) -> None:
        self.model, self.ways = TorchModel(module), Ways()
        self.likelihood, self.nll = resolve_nll(likelihood)
        self.x, self.y = collect(data)
        self.n_classes = self._check_targets()
        self._kept: list[tuple[slice, dict[str, Factor]]] = []  # gradients, until slopes need them

    compiles = False  # a block costs the same the first time

    @property
    def n_train(self) -> int:
        """The number of examples."""
        return len(self.y)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each free parameter, by name."""
        return self.model.shapes

    @cached_property
    def w(self) -> Array:
        """The flat parameters, by name."""
        flat = np.concatenate([value.ravel() for value in self.model.params.values()])
        if not np.isfinite(flat).all():
            raise InputError("the module's parameters are not all finite: train it again.")
        return flat

    @cached_property
    def layers(self) -> dict[str, NDArray[np.int64]]:
        """The flat indices of each layer's parameters."""
        return layers_of(self.shapes, ".", ROOT)

    def facts(self) -> Facts:
        """The sizes that costs depend on."""
        return self._facts

    @cached_property
    def _facts(self) -> Facts:
        N, C = self.n_train, self._outputs_of("float64", slice(0, 1)).shape[1]
        return Facts(
            p=len(self.w),
            N=N,
            C=C,
            rows=N * (C - 1 if self.likelihood == "categorical" else C),
            pass_flops=self.pass_flops,
            weights=self.gradients("float64").weights(),
            activations=self.activations,
        )

    @cached_property
    def pass_flops(self) -> float:
        """Arithmetic of one example's forward pass: PyTorch's count, and one an activation."""
        with FlopCounterMode(display=False) as counter:
            self._outputs_of("float64", slice(0, 1))
        return float(max(counter.get_total_flops(), 2 * len(self.w)) + self.activations)

    @cache  # noqa: B019 a problem lives no longer than what asks it
    def gradients(self, precision: str) -> ExampleGradients:
        """Gradients of single examples."""
        return ExampleGradients(self, precision)

    def leaves(self, given: Any) -> list[Any]:
        """Refuses: names of parameters or of layers are all the structure there is."""
        names = ", ".join(map(str, given)) if isinstance(given, dict) else type(given).__name__
        raise InputError(
            "prior_precision must be a number, 'auto', 'per_layer', or a mapping that names every "
            f"layer ({', '.join(self.layers)}) or every parameter, got {names[:200]}."
        )

    def structured(self, flat: Array) -> dict[str, Array]:
        """A flat vector as arrays by parameter name."""
        parts = np.split(flat, np.cumsum([value.size for value in self.model.params.values()])[:-1])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def nll_and_gradient(self) -> tuple[float, Array]:
        """The summed nll and its gradient."""
        total, gradient = 0.0, np.zeros(len(self.w))
        for rows in self.blocks(1, "float64"):
            function, w = self._nll_sum("float64", rows)
            slope, value = torch.func.grad_and_value(function)(w)
            total += float(value)
            gradient += to_numpy(slope)
        if not (np.isfinite(total) and np.isfinite(gradient).all()):
            raise InputError(
                "the module's outputs or gradients are not finite: the evidence needs a point "
                "where they are."
            )
        return total, gradient

    def operator(self, curvature: str, precision: Precision) -> LinearOperator:
        """The curvature as products."""
        w = self.tensor(self.w, precision)

        def product(rows: slice, v: torch.Tensor) -> torch.Tensor:
            if curvature == "hessian":
                function, _ = self._nll_sum(precision, rows)
                return self.ways.hessian_along(function, w, v)
            return self._ggn_product(precision, rows, w, v)

        return self._summed(product, precision)

    def _summed(
        self, product: Callable[[slice, torch.Tensor], torch.Tensor], precision: Precision
    ) -> LinearOperator:
        """The (p, p) operator whose products are sums over blocks of examples."""
        p = len(self.w)

        def matvec(v: Array) -> Array:
            direction = self.tensor(np.ravel(v), precision)
            total = np.zeros(p)
            for rows in self.blocks(1, precision):
                total += to_numpy(product(rows, direction))
            return total

        return LinearOperator((p, p), matvec=matvec, rmatvec=matvec, dtype=np.float64)

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        p = len(self.w)
        if curvature == "ggn":  # the likelihoods here are all convex in the outputs
            H, every = np.zeros((p, p)), output_rows(self)
            stage("curvature", len(every))
            for A in row_blocks(self, every):
                H += attended(2.0 * A.size * p, np.matmul, A.T, A)
                advance(len(A))
            return H, True
        H = self.operator(curvature, "float64") @ np.eye(p)
        return (H + H.T) / 2, False

    @cached_property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass: the outputs of all submodules."""
        sizes: list[int] = []

        def count(module: torch.nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                sizes.append(int(output.numel()))

        twin = self.model.twins["float64"]
        hooks = [m.register_forward_hook(count) for m in twin.modules()]
        try:
            self._outputs_of("float64", slice(0, 1))
        finally:
            for hook in hooks:
                hook.remove()
        return max(2 * sum(sizes), *(int(part[0].numel()) for part in leaves(self.x)), 1)

    def roots(self) -> Array | None:
        """R (N, k, C) of every example; None if some nll is not convex in its outputs."""
        parts = []
        for rows in self.blocks(1, "float64"):
            outputs = self._outputs_of("float64", rows)
            if self.likelihood == "categorical":
                root: Array | None = softmax_root(to_numpy(outputs))
            else:
                one = torch.func.hessian(lambda z, y: self.nll(z[None], y[None])[0])
                root = symmetric_root(to_numpy(vmap(one)(outputs, self.targets(rows, "float64"))))
            if root is None:
                return None
            parts.append(root)
        return stack_roots(parts)

    def rows(self, rows: Rows) -> Array:
        """The rows c' J themselves: (b, p)."""
        gradients, shape = self.gradients("float64"), RowBlock.of(rows)
        found = gradients.factors(shape.examples, self.tensor(shape.coefficients, "float64"))
        A = np.empty((len(rows), len(self.w)))
        for name, at in gradients.columns.items():
            A[:, at] = to_numpy(found[name].gradients().flatten(0, 1))[shape.places]
        return A

    def rows_at_once(self) -> int:
        """How many rows a block of them should have."""
        facts = self.facts()
        return self.examples_at_once(facts.rows_an_example, "float64") * facts.rows_an_example

    def _rows_unformed(self) -> int:
        """The same where gradients stay factors, in float32."""
        k = self.facts().rows_an_example
        return self.examples_at_once(k, "float32", formed=False) * k

    def examples_at_once(self, k: int, precision: str, *, formed: bool = True) -> int:
        """Examples whose activations, and k gradients of each, are made in one block.

        ``formed`` says whether gradients are formed whole; those without rules always are.
        """
        rest = len(self.w) if formed or self.gradients(precision).rest else 0
        width = 8 if precision == "float64" else 4
        numbers = (_HELD + k) * self.activations + k * rest
        few = min(BLOCK_BYTES / (width * numbers), BLOCK_FLOPS / ((1 + 2 * k) * self.pass_flops))
        return int(np.clip(few, 1, self.n_train))

    def layer_kernel(self, L: Array, rows: Rows) -> FactorKernel | None:
        """The kernel between rows by layer rules; None if it does not fit into memory."""
        return factor_kernel(self.gradients("float64"), L, rows, self.rows_at_once())

    def kronecker(self, rows: Rows) -> Kronecker | None:
        """Kronecker factors of layers that multiply; None if there are none."""
        return kronecker_factors(self.gradients("float32"), rows, self._rows_unformed())

    def squared_rows(self, rows: Rows) -> Array:
        """The squared entries of all rows, summed: (p,); each in float32, added up in float64."""
        gradients, h = self.gradients("float32"), np.zeros(len(self.w))
        stage("diagonal", len(rows))
        for block in by_examples(rows, self._rows_unformed()):
            shape = RowBlock.of(block)
            c = self.tensor(shape.coefficients, "float32")
            for name, factor in gradients.factors(shape.examples, c).items():
                h[gradients.columns[name]] += to_numpy(sums(factor).squares)
            advance(len(block))
        return h

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """Each direction's derivative of these examples' outputs: (b, n, C)."""
        w, x = self.tensor(self.w, "float64"), self.inputs(examples, "float64")

        def one(v: torch.Tensor) -> torch.Tensor:
            return self.ways.along(lambda w: self.apply("float64", w, x), w, v)

        return to_numpy(vmap(one)(self.tensor(directions, "float64")))

    def gradient_moments(self) -> Moments:
        """Sums over per-example gradients, each in float32, added up in float64."""
        N, p = self.n_train, len(self.w)
        gradients = self.gradients("float32")
        sq_norms, total, squares = np.zeros(N), np.zeros(p), np.zeros(p)
        keep: bool | None = None
        self._kept = []
        stage("gradients", N)
        for rows, found in self._factor_blocks():
            if keep is None:
                keep = 4 * N * sum(map(compact_numbers, found.values())) <= KEPT_BYTES
            kept: dict[str, Factor] = {}
            for name, factor in found.items():
                made, at = sums(factor, keep=keep), gradients.columns[name]
                sq_norms[rows] += to_numpy(made.squared_norms[:, 0])
                total[at] += to_numpy(made.total)
                squares[at] += to_numpy(made.squares)
                if made.compact is not None:
                    kept[name] = made.compact
            if keep:
                self._kept.append((rows, kept))
            advance(rows.stop - rows.start)
        return Moments(sq_norms, total, squares)

    def slopes(self, direction: Array) -> Array:
        """Each example's gradient times ``direction``, in float32.

        From the gradients that :meth:`gradient_moments` kept, if they were few enough; they are
        forgotten then. Else from a second pass over the data.
        """
        gradients, v = self.gradients("float32"), self.tensor(direction, "float32")
        blocks, self._kept = iter(self._kept) if self._kept else self._factor_blocks(), []
        along = np.zeros(self.n_train)
        stage("slopes", self.n_train)
        for rows, found in blocks:
            for name, factor in found.items():
                along[rows] += to_numpy(factor.along(v[gradients.columns[name]])[:, 0])
            advance(rows.stop - rows.start)
        return along

    def _factor_blocks(self) -> Iterator[tuple[slice, dict[str, Factor]]]:
        """The gradient of every example's nll, in float32, a block at a time."""
        size = self.examples_at_once(1, "float32")
        for start in range(0, self.n_train, size):
            rows = slice(start, min(start + size, self.n_train))
            y = self.targets(rows, "float32")

            def slope(outputs: torch.Tensor, y: torch.Tensor = y) -> torch.Tensor:
                return grad(lambda z: self.nll(z, y).sum())(outputs)[:, None]

            yield rows, self.gradients("float32").factors(rows, slope)

    def second_moments(self) -> LinearOperator:
        """sum_i g_i g_i' as products in float32, (p, p)."""
        w = self.tensor(self.w, "float32")

        def product(rows: slice, v: torch.Tensor) -> torch.Tensor:
            function = self._nll_each("float32", rows)
            _, pull_back = vjp(function, w)
            return pull_back(self.ways.along(function, w, v))[0]

        return self._summed(product, "float32")

    def _check_targets(self) -> int | None:
        outputs = self._outputs_of("float64", slice(0, 1))
        if self.likelihood == "gaussian":
            if not torch.isfinite(self.y.double()).all():
                raise InputError("data y holds NaN or infinite values.")
            if self.y[:1].numel() != outputs.numel():
                raise InputError(
                    f"outputs of shape {tuple(outputs.shape)} do not fit targets of shape "
                    f"{tuple(self.y[:1].shape)}."
                )
            return None
        n_classes = check_outputs(self.likelihood, tuple(outputs.shape), 1, "the module")
        labels = check_labels(self.y.numpy(), self.likelihood, n_classes, "labels")
        self.y = torch.from_numpy(labels)
        return n_classes

    def apply(self, precision: str, w: torch.Tensor, x: Any) -> torch.Tensor:
        """Outputs (b, C) of a batch at flat parameters ``w``, an example's in one row."""
        outputs = self.model(precision, w, x)
        return outputs.reshape(outputs.shape[0], -1)

    def apply_one(self, precision: str, w: torch.Tensor, x: Any) -> torch.Tensor:
        """Outputs (C,) of one example."""
        return self.apply(precision, w, mapped(lambda tensor: tensor[None], x))[0]

    def _nll_each(self, precision: str, rows: slice) -> Callable[[torch.Tensor], torch.Tensor]:
        x, y = self.inputs(rows, precision), self.targets(rows, precision)
        return lambda w: self.nll(self.apply(precision, w, x), y)

    def _nll_sum(
        self, precision: str, rows: slice
    ) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
        each = self._nll_each(precision, rows)
        return lambda w: each(w).sum(), self.tensor(self.w, precision)

    def _ggn_product(
        self, precision: str, rows: slice, w: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        x, y = self.inputs(rows, precision), self.targets(rows, precision)

        def outputs(w: torch.Tensor) -> torch.Tensor:
            return self.apply(precision, w, x)

        z, pull_back = vjp(outputs, w)
        along = self.ways.along(outputs, w, v)
        curved = self.ways.hessian_along(lambda z: self.nll(z, y).sum(), z, along)
        return pull_back(curved)[0]

    def _outputs_of(self, precision: str, rows: Any) -> torch.Tensor:
        with torch.no_grad():
            x = self.inputs(rows, precision)
            outputs = self.apply(precision, self.tensor(self.w, precision), x)
        if not torch.isfinite(outputs).all():
            raise InputError("the module's outputs are not finite: look for NaN in it or the data.")
        return outputs

    def blocks(self, n_directions: int, precision: str) -> Iterator[slice]:
        """Examples whose activations fit into a block of memory."""
        width = 8 if precision == "float64" else 4
        size = max(1, BLOCK_BYTES // (4 * width * n_directions * self.activations))
        size = max(1, min(size, int(BLOCK_FLOPS / (6 * n_directions * self.pass_flops))))
        for start in range(0, self.n_train, size):
            tick()
            yield slice(start, min(start + size, self.n_train))

    def inputs(self, rows: Any, precision: str) -> Any:
        """Some inputs on the module's device, real numbers in this precision."""
        return placed(taken(self.x, rows), self.model.device, precision)

    def targets(self, rows: Any, precision: str) -> torch.Tensor:
        """Their targets."""
        y = self.y[rows].to(self.model.device)
        return y.to(getattr(torch, precision)) if y.is_floating_point() else y.long()

    def tensor(self, values: Array, precision: str) -> torch.Tensor:
        """A tensor on the module's device."""
        return self.model.tensor(values, precision)
