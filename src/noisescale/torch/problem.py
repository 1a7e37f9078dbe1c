"""A PyTorch module as the evidence sees it: derivatives by ``torch.func``."""

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch.func import functional_call, grad, jvp, vjp, vmap

from noisescale.checks import check_choice, check_whole
from noisescale.errors import InputError
from noisescale.evidence.curvature.model import softmax_root, symmetric_root
from noisescale.evidence.curvature.products import Precision
from noisescale.evidence.occam.dense import Occam
from noisescale.evidence.occam.dual import (
    NEGLIGIBLE,
    Array,
    GenericRows,
    Kernel,
    Rows,
    build_kernel,
    output_rows,
    stack_roots,
)
from noisescale.evidence.occam.kfac import generic_diagonal, occam_of_diagonal
from noisescale.evidence.preflight import Facts
from noisescale.evidence.prior import layers_of

BLOCK_BYTES = 1 << 27  # of activations or per-example gradients held at once
ROOT = "(module)"  # the layer of parameters that the module itself holds, beside its submodules
Nll = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _categorical(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, y, reduction="none")


def _bernoulli(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(torch.where(y == 1, -outputs[:, 0], outputs[:, 0]))


def _gaussian(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    residuals = outputs - y.reshape(outputs.shape)
    return 0.5 * (residuals**2 + float(np.log(2 * np.pi))).sum(dim=1)


_NLLS: dict[str, Nll] = {
    "categorical": _categorical,
    "bernoulli": _bernoulli,
    "gaussian": _gaussian,
}


class TorchProblem:
    """A PyTorch module at its parameters, as the evidence sees it."""

    def __init__(self, module: torch.nn.Module, data: Any, likelihood: str) -> None:
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"module must be a torch.nn.Module, got {type(module).__name__}.")
        self.nll = _NLLS[check_choice("likelihood", likelihood, _NLLS)]
        self.likelihood = likelihood
        self._twins = {name: _twin(module, getattr(torch, name)) for name in ("float64", "float32")}
        free = {name: p for name, p in self._twins["float64"].named_parameters() if p.requires_grad}
        if not free:
            raise InputError("the module has no parameters that require gradients.")
        self.device = next(iter(free.values())).device
        self.params = {name: to_numpy(p) for name, p in sorted(free.items())}
        self.x, self.y = collect(data)
        if len(self.x) != len(self.y):
            raise InputError(f"data has {len(self.x)} inputs but {len(self.y)} labels.")
        self.n_classes = self._check_labels()

    @cached_property
    def w(self) -> Array:
        """The flat parameters, by name."""
        flat = np.concatenate([value.ravel() for value in self.params.values()])
        if not np.isfinite(flat).all():
            raise InputError("the module's parameters are not all finite: train it again.")
        return flat

    @cached_property
    def layers(self) -> dict[str, NDArray[np.int64]]:
        """The flat indices of each layer's parameters."""
        return layers_of({name: value.shape for name, value in self.params.items()}, ".", ROOT)

    def facts(self) -> Facts:
        """The sizes that costs depend on."""
        N, C = len(self.x), self._outputs_of("float64", slice(0, 1)).shape[1]
        softmax = self.likelihood == "categorical"
        return Facts(
            p=len(self.w),
            N=N,
            C=C,
            rows=N * (C - 1 if softmax else C),
            pass_flops=2.0 * max(len(self.w), self.activations),
            pass_numbers=self.activations,
            widths=None,
        )

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
        p = len(self.w)

        def matvec(v: Array) -> Array:
            direction = self.tensor(np.ravel(v), precision)
            total = np.zeros(p)
            for rows in self.blocks(1, precision):
                function, w = self._nll_sum(precision, rows)
                if curvature == "hessian":
                    product = jvp(grad(function), (w,), (direction,))[1]
                else:
                    product = self._ggn_product(precision, rows, w, direction)
                total += to_numpy(product)
            return total

        return LinearOperator((p, p), matvec=matvec, rmatvec=matvec, dtype=np.float64)

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        if curvature == "ggn":
            rows = output_rows(self)
            if rows is not None:
                H = np.zeros((len(self.w), len(self.w)))
                for A in GenericRows(self, np.ones(1)).blocks(rows):
                    H += A.T @ A
                return H, True
        H = self.operator(curvature, "float64") @ np.eye(len(self.w))
        return (H + H.T) / 2, False

    def kernel(self, L: Array, gradient: Array, negligible: float = NEGLIGIBLE) -> Kernel | None:
        """The dual kernel."""
        return build_kernel(self, GenericRows(self, L), L, gradient, negligible)

    def kernel_of_rows(self, L: Array, rows: Rows) -> Array:
        """The dual kernel between these rows."""
        return GenericRows(self, L).matrix(rows)

    def small_root(self) -> Array | None:
        """None: the kernel serves small problems too."""
        return None

    def approximation(self, method: str, L: Array, gradient: Array) -> Occam:
        """The Occam factor by ``"diagonal"``."""
        if method == "kfac":
            raise InputError(
                "method='kfac' is for noisescale.DenseNetwork alone: use 'dual', 'lanczos' or "
                "'diagonal'."
            )
        rows = output_rows(self)
        if rows is None:
            raise InputError("the nll is not convex in the outputs: use 'lanczos' or 'dense'.")
        return occam_of_diagonal(generic_diagonal(self, rows), L, gradient)

    @property
    def n_params(self) -> int:
        """The number of free parameters."""
        return len(self.w)

    @cached_property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass: the outputs of all submodules."""
        sizes: list[int] = []

        def count(module: torch.nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor):
                sizes.append(int(output.numel()))

        twin = self._twins["float64"]
        hooks = [m.register_forward_hook(count) for m in twin.modules()]
        with torch.no_grad():
            twin(self.inputs(slice(0, 1), "float64"))
        for hook in hooks:
            hook.remove()
        return max(2 * sum(sizes), int(self.x[0].numel()), 1)

    def roots(self) -> Array | None:
        """R (N, k, C) of every example; None if some nll is not convex in its outputs."""
        found = []
        for rows in self.blocks(1, "float64"):
            outputs = self._outputs_of("float64", rows)
            if self.likelihood == "categorical":
                root: Array | None = softmax_root(to_numpy(outputs))
            else:
                one = torch.func.hessian(lambda z, y: self.nll(z[None], y[None])[0])
                root = symmetric_root(to_numpy(vmap(one)(outputs, self.targets(rows, "float64"))))
            if root is None:
                return None
            found.append(root)
        return stack_roots(found)

    def rows(self, rows: Rows) -> Array:
        """The rows c' J themselves: (b, p)."""
        w = self.tensor(self.w, "float64")

        def along(w: torch.Tensor, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
            return self.apply("float64", w, x[None])[0] @ c

        x = self.inputs(torch.as_tensor(rows.examples), "float64")
        c = self.tensor(rows.coefficients, "float64")
        return to_numpy(vmap(grad(along), in_dims=(None, 0, 0))(w, x, c))

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """Each direction's derivative of these examples' outputs: (b, n, C)."""
        w, x = self.tensor(self.w, "float64"), self.inputs(examples, "float64")

        def one(v: torch.Tensor) -> torch.Tensor:
            return jvp(lambda w: self.apply("float64", w, x), (w,), (v,))[1]

        return to_numpy(vmap(one)(self.tensor(directions, "float64")))

    def named(self, flat: Array) -> dict[str, Array]:
        """A flat vector as arrays by parameter name."""
        sizes = [value.size for value in self.params.values()]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(value.shape)
            for (name, value), part in zip(self.params.items(), parts, strict=True)
        }

    def _check_labels(self) -> int | None:
        outputs = self._outputs_of("float64", slice(0, 1))
        if self.likelihood == "gaussian":
            return None
        if self.y.is_floating_point() or self.y.dim() != 1:
            raise InputError(
                f"labels must be one whole number an example, got {self.y.dtype} of shape "
                f"{tuple(self.y.shape)}."
            )
        n_classes = 2 if self.likelihood == "bernoulli" else outputs.shape[1]
        if self.likelihood == "bernoulli" and outputs.shape[1] != 1:
            raise InputError(
                f"the bernoulli likelihood needs one logit an example, but the module returns "
                f"{outputs.shape[1]}: use likelihood='categorical'."
            )
        wrong = (self.y < 0) | (self.y >= n_classes)
        if wrong.any():
            raise InputError(
                f"labels must lie in 0..{n_classes - 1} for a model of {n_classes} classes, got "
                f"{int(self.y[wrong][0])}."
            )
        return n_classes

    def apply(self, precision: str, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Outputs (n, C) at flat parameters ``w``."""
        sizes = [value.size for value in self.params.values()]
        leaves = {
            name: part.reshape(value.shape)
            for (name, value), part in zip(self.params.items(), torch.split(w, sizes), strict=True)
        }
        return functional_call(self._twins[precision], leaves, (x,)).reshape(len(x), -1)

    def _nll_sum(
        self, precision: str, rows: slice
    ) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
        x, y = self.inputs(rows, precision), self.targets(rows, precision)
        w = self.tensor(self.w, precision)
        return lambda w: self.nll(self.apply(precision, w, x), y).sum(), w

    def _ggn_product(
        self, precision: str, rows: slice, w: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        x, y = self.inputs(rows, precision), self.targets(rows, precision)

        def outputs(w: torch.Tensor) -> torch.Tensor:
            return self.apply(precision, w, x)

        z, pull_back = vjp(outputs, w)
        along = jvp(outputs, (w,), (v,))[1]
        curved = jvp(grad(lambda z: self.nll(z, y).sum()), (z,), (along,))[1]
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
        return (slice(s, min(s + size, len(self.x))) for s in range(0, len(self.x), size))

    def inputs(self, rows: Any, precision: str) -> torch.Tensor:
        """Some inputs on the module's device, real numbers in this precision."""
        x = self.x[rows].to(self.device)
        return x.to(getattr(torch, precision)) if x.is_floating_point() else x

    def targets(self, rows: Any, precision: str) -> torch.Tensor:
        """Their targets."""
        y = self.y[rows].to(self.device)
        return y.to(getattr(torch, precision)) if y.is_floating_point() else y.long()

    def tensor(self, values: Array, precision: str) -> torch.Tensor:
        """A tensor on the module's device."""
        return torch.as_tensor(values, dtype=getattr(torch, precision), device=self.device)


def _twin(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy in evaluation mode and this precision; the module itself is not touched."""
    return copy.deepcopy(module).to(dtype).eval()


def collect(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All inputs and targets of tensors, a dataset or a loader."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return torch.as_tensor(np.asarray(data[0])), torch.as_tensor(np.asarray(data[1]))
    if isinstance(data, torch.utils.data.DataLoader):
        pairs = [(x, y) for x, y in data]
        if not pairs:
            raise InputError("data holds no examples.")
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        check_whole("the number of examples in data", len(data), at_least=1)
        pairs = [data[i] for i in range(len(data))]
        return (
            torch.stack([torch.as_tensor(x) for x, _ in pairs]),
            torch.stack([torch.as_tensor(y) for _, y in pairs]),
        )
    raise InputError(
        f"data must be a Dataset, a DataLoader or a pair of tensors, got {type(data).__name__}."
    )


def to_numpy(value: Any) -> Array:
    """A tensor or number as float64 on the host."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, np.float64)
