"""What a PyTorch problem computes from gradients of single examples, block by block.

Rows of Jacobians and the kernel between them, Kronecker factors, squared entries, and the moments
of the nll's gradients: all from the factors of :class:`~noisescale.torch.rows.ExampleGradients`.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch.func import grad
from torch.utils.flop_counter import FlopCounterMode

from noisescale.evidence.pace import advance, stage
from noisescale.evidence.problem import Array, Facts, Kronecker, Moments, Precision
from noisescale.evidence.rows import Rows, by_slots
from noisescale.torch.derivatives import Ways
from noisescale.torch.kernel import FactorKernel, factor_kernel
from noisescale.torch.kronecker import kronecker_factors
from noisescale.torch.model import TorchModel
from noisescale.torch.rows import ExampleGradients, RowBlock
from noisescale.torch.sums import Groups, compact_numbers, grouped, sums
from noisescale.torch.tensors import side_by_side, to_numpy

BLOCK_BYTES = 1 << 27  # of activations or per-example gradients held at once
BLOCK_FLOPS = 4e9  # of a block: some tenths of a second
KEPT_BYTES = 1 << 30  # of gradients that are kept to be used a second time
_HELD = 2  # times the activations: what derivatives need, and gradients on their way


class ByExamples(ABC):
    """The part of a problem that goes by single examples; the whole offers what it needs."""

    model: TorchModel
    ways: Ways
    nll: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    facts: Callable[[], Facts]
    inputs: Callable[[Any, str], Any]
    targets: Callable[[Any, str], torch.Tensor]
    apply_one: Callable[[str, torch.Tensor, Any], torch.Tensor]

    @abstractmethod
    def apply(
        self, precision: str, w: torch.Tensor, x: Any, *, plainly: bool = False
    ) -> torch.Tensor:
        """Outputs (b, C) of a batch; ``plainly`` if one reverse pass is all that follows."""

    @property
    @abstractmethod
    def w(self) -> Array:
        """The flat parameters, by name."""

    @property
    @abstractmethod
    def n_train(self) -> int:
        """The number of examples."""

    @property
    @abstractmethod
    def activations(self) -> int:
        """Numbers that one example adds to a forward pass."""

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each free parameter, by name."""

    @cached_property
    def pass_flops(self) -> float:
        """Arithmetic of one example's forward pass: PyTorch's count, and one an activation."""
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.apply(
                "float64", self.tensor(self.w, "float64"), self.inputs(slice(0, 1), "float64")
            )
        return float(max(counter.get_total_flops(), 2 * len(self.w)) + self.activations)

    @cached_property
    def _gradients(self) -> dict[str, ExampleGradients]:
        return {}

    def gradients(self, precision: str) -> ExampleGradients:
        """Gradients of single examples."""
        if precision not in self._gradients:
            self._gradients[precision] = ExampleGradients(self, precision)
        return self._gradients[precision]

    @cached_property
    def _kept(self) -> list[tuple[slice, Groups]]:
        """Gradients, until slopes need them."""
        return []

    def forget(self) -> None:
        """Let go of gradients that were kept."""
        self._kept = []

    def fresh(self) -> Self:
        """A copy without what is known of these parameters and examples alone."""
        other = copy.copy(self)
        for cached in ("_gradients", "_kept", "_facts", "_here"):
            vars(other).pop(cached, None)
        return other

    def tensor(self, values: Array, precision: str) -> torch.Tensor:
        """A tensor on the module's device."""
        return self.model.tensor(values, precision)

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
        return self._rows("float64", None)

    def _rows_unformed(self, precision: str) -> int:
        """The same where gradients stay factors."""
        return self._rows(precision, 0)

    def _rows_of_kernel(self) -> int:
        """The same where some gradients are formed, and blocks are multiplied with one another."""
        facts = self.facts()
        k = facts.rows_an_example
        positions = max((w.positions for w in facts.multiplied), default=1)
        pairs = math.isqrt(BLOCK_BYTES // 8) // positions  # rows of either block
        whole = max(pairs // k * k, k)  # of whole examples
        return min(whole, self._rows("float64", facts.formed))

    def _rows(self, precision: str, columns: int | None) -> int:
        """Rows of as many examples as a block holds, or as many of one example's as it does.

        A sequence has a row for each of its places and classes, thousands of them.
        """
        k = self.facts().rows_an_example
        if self._fitting(k, precision, columns) >= 1:
            return self.examples_at_once(k, precision, columns=columns) * k
        fixed, each = (self._load(r, precision, columns) for r in (0, 1))
        room = min(
            (1 - first) / (one - first) for first, one in zip(fixed, each, strict=True)
        )  # rows, by bytes and by operations
        return int(np.clip(room, 1, k))

    def examples_at_once(self, k: int, precision: str, *, columns: int | None = None) -> int:
        """Examples whose activations, and k gradients of each, are made in one block.

        ``columns`` are the parameters whose gradients are formed, all if None; those without rules
        always are.
        """
        return int(np.clip(self._fitting(k, precision, columns), 1, self.n_train))

    def _fitting(self, k: int, precision: str, columns: int | None) -> float:
        """Examples that fit into a block, a fraction if one does not."""
        return 1 / max(self._load(k, precision, columns))

    def _load(self, k: int, precision: str, columns: int | None) -> tuple[float, float]:
        """What an example with k rows takes of a block's bytes and of its operations."""
        if columns is None or self.gradients(precision).rest:
            columns = len(self.w)
        width = 8 if precision == "float64" else 4
        numbers = (_HELD + k) * self.activations + k * columns
        return width * numbers / BLOCK_BYTES, (1 + 2 * k) * self.pass_flops / BLOCK_FLOPS

    def layer_kernel(self, L: Array, rows: Rows) -> FactorKernel | None:
        """The kernel between rows by layer rules; None if it does not fit into memory."""
        return factor_kernel(self.gradients("float64"), L, rows, self._rows_of_kernel())

    def kronecker(self, rows: Rows) -> Kronecker | None:
        """Kronecker factors of layers that multiply; None if there are none."""
        return kronecker_factors(self.gradients("float32"), rows, self._rows_unformed("float32"))

    def squared_rows(self, rows: Rows) -> Array:
        """The squared entries of all rows, summed: (p,). Blocks in float32, added up in float64."""
        gradients, h = self.gradients("float32"), np.zeros(len(self.w))
        stage("diagonal", len(rows))
        for _, block in by_slots(rows, self._rows_unformed("float32")):
            shape = RowBlock.of(block)
            c = self.tensor(shape.coefficients, "float32")
            for name, factor in gradients.factors(shape.examples, c).items():
                h[gradients.columns[name]] += to_numpy(factor.squares())
            advance(len(block))
        return h

    def gradient_moments(self, precision: Precision = "float32") -> Moments:
        """Sums over per-example gradients, each in ``precision``, added up in float64."""
        N, p = self.n_train, len(self.w)
        sq_norms, total, squares = (self.tensor(np.zeros(m), "float64") for m in (N, p, p))
        columns = self.gradients(precision).columns
        width = 8 if precision == "float64" else 4
        keep: bool | None = None
        self._kept = []
        stage("gradients", N)
        for rows, found in self._factor_blocks(precision):
            if keep is None:
                numbers = N * sum(compact_numbers(factor) for _, factor in found)
                keep = width * numbers <= KEPT_BYTES
            each = side_by_side([partial(sums, factor, keep=keep) for _, factor in found])
            for (names, _), made in zip(found, each, strict=True):
                sq_norms[rows] += made.squared_norms[:, 0]
                places = [columns[name] for name in names]
                sizes = [at.stop - at.start for at in places]
                for whole, part in ((total, made.total), (squares, made.squares)):
                    for at, of_one in zip(places, part.split(sizes), strict=True):
                        whole[at] += of_one
            if keep:
                compact = [made.compact for made in each if made.compact is not None]
                groups = [(names, own) for (names, _), own in zip(found, compact, strict=True)]
                self._kept.append((rows, groups))
            advance(rows.stop - rows.start)
        return Moments(*map(to_numpy, (sq_norms, total, squares)))

    def slopes(self, direction: Array, precision: Precision = "float32") -> Array:
        """Each example's gradient times ``direction``.

        From the gradients that :meth:`gradient_moments` kept, if they were few enough (and in the
        same precision); they are forgotten then. Else from a second pass over the data.
        """
        columns, v = self.gradients(precision).columns, self.tensor(direction, precision)
        blocks = iter(self._kept) if self._kept else self._factor_blocks(precision)
        self._kept = []
        along = self.tensor(np.zeros(self.n_train), "float64")
        stage("slopes", self.n_train)
        for rows, found in blocks:
            calls = [
                partial(factor.along, torch.cat([v[columns[name]] for name in names]))
                for names, factor in found
            ]
            for part in side_by_side(calls):
                along[rows] += part[:, 0]
            advance(rows.stop - rows.start)
        return to_numpy(along)

    def _factor_blocks(self, precision: Precision) -> Iterator[tuple[slice, Groups]]:
        """The gradient of every example's nll, a block at a time."""
        n_blocks = math.ceil(self.n_train / self.examples_at_once(1, precision, columns=0))
        size = math.ceil(self.n_train / n_blocks)
        for start in range(0, self.n_train, size):
            rows = slice(start, min(start + size, self.n_train))
            y = self.targets(rows, precision)

            def slope(outputs: torch.Tensor, y: torch.Tensor = y) -> torch.Tensor:
                return grad(lambda z: self.nll(z, y).sum())(outputs)[:, None]

            yield rows, grouped(self.gradients(precision).factors(rows, slope))
