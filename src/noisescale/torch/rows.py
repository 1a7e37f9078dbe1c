"""Gradients of single examples, a block of them at a time, as factors or formed.

Rows c' J_i of the outputs' Jacobian, several c an example, are what every exact method goes by; the
gradient of an example's nll is the row whose c is the nll's slope in the outputs. Parameters that
layer rules follow cost one reverse pass for all examples (:mod:`noisescale.torch.capture`); the
others are differentiated example by example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vjp

from noisescale.evidence.problem import Weight
from noisescale.evidence.rows import Rows
from noisescale.torch.capture import Plan, checked_plan, layers_with_rules, record
from noisescale.torch.factors import Factor, Formed, Outer

if TYPE_CHECKING:
    from noisescale.torch.by_examples import ByExamples

_CHECKED = 3  # examples on which rules are compared with plain differentiation


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Rows as a block of n examples with k rows each, some of which are padding.

    Attributes:
        examples: which (n,).
        coefficients: (n, k, C), zeros in the padding.
        places: of the rows among the n k, (m,).
    """

    examples: NDArray[np.int64]
    coefficients: NDArray[np.float64]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Rows) -> "RowBlock":
        """Rows of the same example lie side by side."""
        examples, first, counts = np.unique(rows.examples, return_index=True, return_counts=True)
        n, k = len(examples), int(counts.max(initial=1))
        at = np.repeat(np.arange(n), counts)
        slot = np.arange(len(rows)) - np.repeat(first, counts)
        coefficients = np.zeros((n, k, rows.coefficients.shape[1]))
        coefficients[at, slot] = rows.coefficients
        return cls(examples, coefficients, at * k + slot)


class ExampleGradients:
    """Gradients of single examples of a problem, in one precision."""

    def __init__(self, problem: "ByExamples", precision: str) -> None:
        self.problem, self.precision = problem, precision
        self.w = problem.tensor(problem.w, precision)
        self.plan = self._plan()
        sizes = [int(np.prod(shape)) for shape in problem.shapes.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self.columns = {
            name: slice(start, stop)
            for name, start, stop in zip(problem.shapes, ends[:-1], ends[1:], strict=True)
        }
        self.rest = [name for name in problem.shapes if name not in self.plan.followed]

    def factors(
        self, examples: Any, coefficients: Tensor | Callable[[Tensor], Tensor]
    ) -> dict[str, Factor]:
        """Of every parameter, in order, for rows c' J_i with coefficients (n, k, C).

        These may be a function of the outputs (n, C).
        """
        x, n = self.problem.inputs(examples, self.precision), _length(examples)
        recording = record(self.plan, n, lambda: self._outputs(self.w, x))
        c = coefficients
        if callable(c):
            c = c(recording.outputs.detach())
        found = recording.factors(c)
        del recording
        found |= self._differentiated(x, c)
        empty = c.new_zeros(*c.shape[:2], 1)
        return {
            name: found.get(name) or Formed(empty.expand(-1, -1, at.stop - at.start))
            for name, at in self.columns.items()
        }

    def weights(self) -> tuple[Weight, ...]:
        """The weights that multiply inputs and are followed by rules."""
        outputs = self._outputs(self.w, self.problem.inputs(slice(0, 1), self.precision))
        found = self.factors(slice(0, 1), torch.zeros_like(outputs)[:, None])
        return tuple(
            Weight(f.width, f.b.shape[-1], f.b.shape[3], f.b.shape[2])
            for f in found.values()
            if isinstance(f, Outer)
        )

    def _outputs(self, w: Tensor, x: Any) -> Tensor:
        """(n, C), to be differentiated in reverse once."""
        return self.problem.apply(self.precision, w, x, plainly=True)

    def _differentiated(self, x: Any, c: Tensor) -> dict[str, Factor]:
        """Parameters without rules, example by example."""
        if not self.rest:
            return {}
        places = torch.cat(
            [torch.arange(at.start, at.stop) for at in map(self.columns.__getitem__, self.rest)]
        ).to(self.w.device)

        def one(free: Tensor, x: Any, c: Tensor) -> Tensor:
            def outputs(free: Tensor) -> Tensor:
                return self.problem.apply_one(self.precision, self.w.index_copy(0, places, free), x)

            _, pull_back = vjp(outputs, free)
            return torch.stack([pull_back(row)[0] for row in c])

        g = self.problem.ways.each(one)(self.w[places], x, c)  # (n, k, numbers)
        sizes = [self.columns[name].stop - self.columns[name].start for name in self.rest]
        parts = torch.split(g, sizes, dim=2)
        return {name: Formed(part) for name, part in zip(self.rest, parts, strict=True)}

    def _plan(self) -> Plan:
        problem = self.problem
        chosen = np.unique(np.linspace(0, problem.n_train - 1, _CHECKED).astype(int))
        x = [problem.inputs(np.array([i]), self.precision) for i in chosen]
        whole = problem.inputs(chosen, self.precision)

        def plain(i: int, c: Tensor) -> dict[str, Tensor]:
            w = self.w.clone().requires_grad_()
            with torch.enable_grad():
                value = self._outputs(w, x[i])[0] @ c
            (g,) = torch.autograd.grad(value, w)
            sizes = [int(np.prod(shape)) for shape in problem.shapes.values()]
            return dict(zip(problem.shapes, torch.split(g, sizes), strict=True))

        return checked_plan(
            layers_with_rules(problem.model.twins[self.precision], list(problem.shapes)),
            lambda: self._outputs(self.w, whole),
            plain,
            len(chosen),
        )


def _length(examples: Any) -> int:
    return examples.stop - examples.start if isinstance(examples, slice) else len(examples)
