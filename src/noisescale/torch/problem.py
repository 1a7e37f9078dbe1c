"""A PyTorch module as the estimators see it: derivatives by ``torch.func``."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch.func import grad, vjp, vmap

from noisescale.arrays import check_labels, check_outputs
from noisescale.errors import InputError
from noisescale.evidence.curvature.roots import softmax_root, stack_roots, symmetric_root
from noisescale.evidence.occam.kernel import output_rows, row_blocks
from noisescale.evidence.prior import layers_of
from noisescale.evidence.problem import Array, Facts, Moments, Precision, Rows
from noisescale.torch.batches import collect, leaves, mapped, placed, taken
from noisescale.torch.derivatives import Ways
from noisescale.torch.likelihood import resolve_nll
from noisescale.torch.model import TorchModel
from noisescale.torch.tensors import to_numpy

BLOCK_BYTES = 1 << 27  # of activations or per-example gradients held at once
ROOT = "(module)"  # the layer of parameters that the module itself holds, beside its submodules


class TorchProblem:
    """A PyTorch module at its parameters, as the evidence sees it."""

    def __init__(self, module: torch.nn.Module, data: Any, likelihood: Any) -> None:
        self.model, self.ways = TorchModel(module), Ways()
        self.likelihood, self.nll = resolve_nll(likelihood)
        self.x, self.y = collect(data)
        self.n_classes = self._check_targets()

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
        N, C = self.n_train, self._outputs_of("float64", slice(0, 1)).shape[1]
        softmax = self.likelihood == "categorical"
        return Facts(
            p=len(self.w),
            N=N,
            C=C,
            rows=N * (C - 1 if softmax else C),
            pass_flops=2.0 * max(len(self.w), self.activations),
            widths=None,
        )

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
            H = np.zeros((p, p))
            for A in row_blocks(self, output_rows(self)):
                H += A.T @ A
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
        w = self.tensor(self.w, "float64")

        def along(w: torch.Tensor, x: Any, c: torch.Tensor) -> torch.Tensor:
            return self.apply_one("float64", w, x) @ c

        x = self.inputs(torch.as_tensor(rows.examples), "float64")
        c = self.tensor(rows.coefficients, "float64")
        return to_numpy(self.ways.each(grad(along))(w, x, c))

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """Each direction's derivative of these examples' outputs: (b, n, C)."""
        w, x = self.tensor(self.w, "float64"), self.inputs(examples, "float64")

        def one(v: torch.Tensor) -> torch.Tensor:
            return self.ways.along(lambda w: self.apply("float64", w, x), w, v)

        return to_numpy(vmap(one)(self.tensor(directions, "float64")))

    def dense_layers(self) -> None:
        """None: layers are not looked into."""
        return

    def gradient_moments(self) -> Moments:
        """Sums over per-example gradients, each in float32, added up in float64."""
        N, p = self.n_train, len(self.w)
        w = self.tensor(self.w, "float32")

        def nll(w: torch.Tensor, x: Any, y: torch.Tensor) -> torch.Tensor:
            return self.nll(self.apply_one("float32", w, x)[None], y[None])[0]

        each = self.ways.each(grad(nll))
        sq_norms, total, squares = np.empty(N), np.zeros(p), np.zeros(p)
        size = int(np.clip(BLOCK_BYTES // (4 * p), 1, N))
        for rows in (slice(start, start + size) for start in range(0, N, size)):
            g = each(w, self.inputs(rows, "float32"), self.targets(rows, "float32"))  # (n, p)
            total += to_numpy(g.sum(0))
            g = g.square_()
            squares += to_numpy(g.sum(0))
            sq_norms[rows] = to_numpy(g.sum(1))
        return Moments(sq_norms, total, squares)

    def slopes(self, direction: Array) -> Array:
        """Each example's gradient times ``direction``: one forward derivative, in float32."""
        w, v = self.tensor(self.w, "float32"), self.tensor(direction, "float32")
        along = np.empty(self.n_train)
        for rows in self.blocks(1, "float32"):
            along[rows] = to_numpy(self.ways.along(self._nll_each("float32", rows), w, v))
        return along

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
        return (slice(s, min(s + size, self.n_train)) for s in range(0, self.n_train, size))

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
