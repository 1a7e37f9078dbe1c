"""A PyTorch module as the estimators see it: derivatives by ``torch.func``."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch.func import vjp, vmap

from noisescale.errors import InputError
from noisescale.evidence.curvature.roots import (
    sequence_root,
    softmax_root,
    stack_roots,
    symmetric_root,
)
from noisescale.evidence.occam.kernel import row_blocks
from noisescale.evidence.pace import advance, attended, stage, tick
from noisescale.evidence.prior import layers_of
from noisescale.evidence.problem import (
    LOG_CONCAVE,
    Array,
    Facts,
    Precision,
    with_estimated_noise,
)
from noisescale.evidence.rows import Rows
from noisescale.evidence.select import Select
from noisescale.evidence.targets import check_targets, fitted_to, n_rows, n_tokens
from noisescale.likelihood import Likelihood, resolve_likelihood
from noisescale.torch.batches import (
    as_inputs,
    collect,
    count,
    counted_tokens,
    leaves,
    mapped,
    placed,
    predicts_next_token,
    taken,
    with_decoder_inputs,
)
from noisescale.torch.by_examples import BLOCK_BYTES, BLOCK_FLOPS, ByExamples
from noisescale.torch.derivatives import Ways
from noisescale.torch.first_pass import FirstPass, check_finite, check_outputs, first_pass
from noisescale.torch.likelihood import nll_of
from noisescale.torch.model import TorchModel
from noisescale.torch.normalisation import check_statistics, normalisation_notes
from noisescale.torch.tensors import plain, to_numpy

DIRECTIONS = 32  # products of the curvature at once
ROOT = "(module)"  # the layer of parameters that the module itself holds, beside its submodules


class TorchProblem(ByExamples):
    """A PyTorch module at its parameters, as the evidence sees it."""

    def __init__(
        self,
        module: torch.nn.Module | TorchModel,
        data: Any,
        likelihood: Any,
        select: Select | None = None,
    ) -> None:
        known = isinstance(module, TorchModel)
        self.model, self.ways = module if known else TorchModel(module, select), Ways()
        check_statistics(self.model.twins["float64"])
        self.x, y = collect(data)
        chosen = resolve_likelihood(likelihood)
        twin, sequences = self.model.twins["float64"], chosen.name == "categorical" and y.ndim == 2
        self._shifted = sequences and isinstance(self.x, dict) and predicts_next_token(twin)
        if sequences:
            self.x = with_decoder_inputs(twin, self.x, y)
            y = counted_tokens(self.x, y, chosen.ignore_index, next_token=self._shifted)
        self.y = y  # the number of examples, which outputs need
        check_outputs(self._first)
        shape = (self.n_train, *self._first.shape[1:])
        observed, self.n_classes = check_targets(plain(y), chosen, shape, "the module")
        self.observed: NDArray[Any] = observed
        self.y = torch.from_numpy(observed)
        self.likelihood = fitted_to(chosen, shape)
        self.likelihood = with_estimated_noise(self).likelihood
        self.nll = nll_of(self.likelihood)
        self._check_nll()

    @property
    def n_train(self) -> int:
        """The number of examples."""
        return len(self.y)

    @property
    def log_concave(self) -> bool:
        """Whether the likelihood is known to be log-concave in the outputs."""
        return self.likelihood.function is None and self.likelihood.name in LOG_CONCAVE

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What labels and normalisation do to the result."""
        twin, notes = self.model.twins["float64"], []
        if self._shifted:
            notes.append("labels are those of the next token, as in transformers' own loss.")
        once = normalisation_notes(twin, self.shapes, lambda: self._raw_outputs(slice(0, 1)))
        return (*notes, *once)

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
        N, C = self.n_train, math.prod(self._first.shape[1:])
        return Facts(
            p=len(self.w),
            N=N,
            C=C,
            rows=N * n_rows(self.likelihood, C, self.n_classes),
            pass_flops=self.pass_flops,
            weights=self.gradients("float64").weights(),
            activations=self.activations,
            tokens=n_tokens(self.likelihood, self.observed),
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

    def nll_and_gradient(self, precision: Precision = "float64") -> tuple[float, Array]:
        """The summed nll and its gradient, from one pass and back."""
        if precision not in self._here:
            total, gradient, outputs = self._passed(precision, self.w)
            if not (np.isfinite(total) and np.isfinite(gradient).all()):
                raise InputError(
                    "the module's outputs or gradients are not finite: the evidence needs a point "
                    "where they are."
                )
            self._here[precision] = total, gradient, np.concatenate(outputs)
        return self._here[precision][:2]

    @cached_property
    def _here(self) -> dict[str, tuple[float, Array, Array]]:
        """The summed nll, its gradient and the outputs (N, C) here, by precision."""
        return {}

    def nll_function(self, precision: Precision) -> Callable[[Array], tuple[float, Array]]:
        """The summed nll and its gradient at any flat parameters, finite or not."""
        return lambda w: self._passed(precision, w)[:2]

    def _passed(self, precision: Precision, w: Array) -> tuple[float, Array, list[Array]]:
        """The summed nll, its gradient and each block's outputs at flat parameters."""
        total, gradient, parts = 0.0, np.zeros(len(w)), []
        for rows in self.blocks(1, precision):
            x, y = self.inputs(rows, precision), self.targets(rows, "float64")

            def nll(
                w: torch.Tensor, x: Any = x, y: torch.Tensor = y
            ) -> tuple[torch.Tensor, torch.Tensor]:
                outputs = self.apply(precision, w, x)
                return self.nll(outputs.double(), y).sum(), outputs

            slope, (value, outputs) = torch.func.grad_and_value(nll, has_aux=True)(
                self.tensor(w, precision)
            )
            total += float(value)
            gradient += to_numpy(slope)
            parts.append(to_numpy(outputs))
        return total, gradient, parts

    def operator(self, curvature: str, precision: Precision) -> LinearOperator:
        """The curvature as products."""
        w = self.tensor(self.w, precision)

        def product(rows: slice, v: torch.Tensor) -> torch.Tensor:
            if curvature == "hessian":
                each = self._nll_each(precision, rows)
                return self.ways.hessian_along(lambda w: each(w).sum(), w, v)
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

        def matmat(V: Array) -> Array:
            products = np.zeros(V.shape)
            for start in range(0, V.shape[1], DIRECTIONS):
                chosen = slice(start, min(start + DIRECTIONS, V.shape[1]))
                together = self.tensor(V[:, chosen].T, precision)  # (k, p)
                for rows in self.blocks(len(together), precision):
                    each = self.ways.directions(partial(product, rows))
                    products[:, chosen] += to_numpy(each(together)).T
            return products

        return LinearOperator(
            (p, p), matvec=matvec, rmatvec=matvec, matmat=matmat, dtype=np.float64
        )

    def dense(self, curvature: str) -> tuple[Array, bool]:
        """The curvature (p, p), and whether it is known to have no negative eigenvalue."""
        p = len(self.w)
        roots = self.roots() if curvature == "ggn" else None
        if roots is not None:
            H, every = np.zeros((p, p)), Rows.of(roots)
            stage("curvature", len(every))
            for A in row_blocks(self, every):
                H += attended(2.0 * A.size * p, np.matmul, A.T, A)
                advance(len(A))
            return H, True
        H = self.operator(curvature, "float64") @ np.eye(p)
        return (H + H.T) / 2, False

    @cached_property
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass: all that is computed on the way."""
        of_inputs = (int(part[0].numel()) for part in leaves(self.x))
        return max(self._first.numbers, *of_inputs, 1)

    @cached_property
    def _first(self) -> FirstPass:
        w = self.tensor(self.w, "float64")
        return first_pass(self.model, w, lambda rows: self.inputs(rows, "float64"))

    def roots(self) -> Array | None:
        """R (N, k, C), of tokens (N, T, k, C); None if some nll is not convex in its outputs."""
        parts = []
        for rows in self.blocks(1, "float64"):
            # Outputs are known if nll and gradient were asked for before.
            known = self._here.get("float64") or self._here.get("float32")
            outputs = known[2][rows] if known else to_numpy(self._outputs_of("float64", rows))
            root = self._root(outputs, rows)
            if root is None:
                return None
            parts.append(root)
        return stack_roots(parts)

    def _root(self, outputs: Array, rows: slice) -> Array | None:
        y = self.observed[rows]
        if self.n_classes is not None and self.likelihood.name == "categorical":
            if y.ndim == 2:
                counts = y != self.likelihood.ignore_index
                return sequence_root(outputs.reshape(*y.shape, -1), counts)
            return softmax_root(outputs)
        return symmetric_root(self._output_hessians(outputs, rows))

    def _output_hessians(self, outputs: Array, rows: slice) -> Array:
        """The Hessian (b, C, C) of each example's nll in its outputs."""
        one = torch.func.hessian(lambda z, y: self.nll(z[None], y[None])[0])
        z, y = self.tensor(outputs, "float64"), self.targets(rows, "float64")
        return to_numpy(vmap(one)(z, y))

    def derivatives(self, examples: slice, directions: Array) -> Array:
        """Each direction's derivative of these examples' outputs: (b, n, C)."""
        w, x = self.tensor(self.w, "float64"), self.inputs(examples, "float64")

        def one(v: torch.Tensor) -> torch.Tensor:
            return self.ways.along(lambda w: self.apply("float64", w, x), w, v)

        return to_numpy(self.ways.directions(one)(self.tensor(directions, "float64")))

    def second_moments(self, precision: Precision = "float32") -> LinearOperator:
        """sum_i g_i g_i' as products, (p, p)."""
        w = self.tensor(self.w, precision)

        def product(rows: slice, v: torch.Tensor) -> torch.Tensor:
            function = self._nll_each(precision, rows)
            _, pull_back = vjp(function, w)
            return pull_back(self.ways.along(function, w, v))[0]

        return self._summed(product, precision)

    def _check_nll(self) -> None:
        """A user's nll must give one number an example: a broadcast would pass unnoticed."""
        if self.likelihood.function is None:
            return
        for n in {1, self.n_train}:
            rows = slice(0, n)
            outputs, y = self._outputs_of("float64", rows), self.targets(rows, "float64")
            wanted = f"outputs of shape {tuple(outputs.shape)} with y of shape {tuple(y.shape)}"
            try:
                found = tuple(self.nll(outputs, y).shape)
            except (TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise InputError(f"likelihood does not accept {wanted}: {reason}") from error
            if found != (n,):
                raise InputError(
                    f"likelihood must return one number an example, shape ({n},), but returns "
                    f"shape {found} for {wanted}."
                )

    def apply(
        self, precision: str, w: torch.Tensor, x: Any, *, plainly: bool = False
    ) -> torch.Tensor:
        """Outputs (b, C) of a batch at flat parameters ``w``, an example's in one row."""
        outputs = self.model(precision, w, x, plainly=plainly)
        return outputs.reshape(outputs.shape[0], -1)

    def apply_one(self, precision: str, w: torch.Tensor, x: Any) -> torch.Tensor:
        """Outputs (C,) of one example."""
        return self.apply(precision, w, mapped(lambda tensor: tensor[None], x))[0]

    def _nll_each(self, precision: str, rows: slice) -> Callable[[torch.Tensor], torch.Tensor]:
        x, y = self.inputs(rows, precision), self.targets(rows, precision)
        return lambda w: self.nll(self.apply(precision, w, x), y)

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

    def _raw_outputs(self, rows: Any, precision: str = "float64") -> torch.Tensor:
        """The outputs of some examples in the shape that the module gives them."""
        with torch.no_grad():
            w = self.tensor(self.w, precision)
            outputs = self.model(precision, w, self.inputs(rows, precision))
        check_finite(outputs)
        return outputs

    def _outputs_of(self, precision: str, rows: Any) -> torch.Tensor:
        outputs = self._raw_outputs(rows, precision)
        return outputs.reshape(outputs.shape[0], -1)

    def outputs(self, examples: slice) -> Array:
        """The outputs of these examples: (b, C)."""
        few = self.subset(examples)
        blocks = few.blocks(1, "float64")
        return np.concatenate([to_numpy(few._outputs_of("float64", rows)) for rows in blocks])

    def subset(self, examples: slice) -> "TorchProblem":
        """The same problem with these examples alone."""
        few = self.fresh()
        few.x, few.y = taken(self.x, examples), self.y[examples]
        few.observed = self.observed[examples]
        return few

    def at(self, w: Array) -> "TorchProblem":
        """The same problem at other flat parameters; the module's copies are shared."""
        other = self.fresh()
        vars(other)["w"] = np.asarray(w, np.float64)  # in place of what is cached
        return other

    def under(self, likelihood: Likelihood) -> Self:
        """The same problem under another likelihood."""
        other = self.fresh()
        other.likelihood, other.nll = likelihood, nll_of(likelihood)
        return other

    def with_inputs(self, x: Any) -> "TorchProblem":
        """The same model with other inputs, whose targets are not known."""
        new = self.fresh()
        new.x = as_inputs(x)
        new.observed = np.zeros((count(new.x), *self.observed.shape[1:]), self.observed.dtype)
        new.y = torch.from_numpy(new.observed)
        for cached in ("_first", "activations", "pass_flops"):  # inputs may be longer now
            vars(new).pop(cached, None)
        return new

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
