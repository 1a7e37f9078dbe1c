"""What the backward passes of one update leave behind, and the batch that they make together.

Each pass is of one micro-batch. Its loss is a mean or a sum over its examples (or valid tokens);
losses of several passes count alike, and so do those of several processes. With weights w of the
examples in the whole gradient C, W = sum w and s = sum w^2, everything is divided by W^2 at the
end, so that a mean of means, a sum, and a mean over processes come to the same.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from noisescale.noise.watch.reading import Batch

HALF = (torch.float16, torch.bfloat16)
PLAIN = "(plain gradients)"  # the label of the whole by plain gradients, where there is a metric


@dataclass(frozen=True)
class Pass:
    """One backward pass: its examples, and the valid tokens of each (n,) if those are counted."""

    n: int
    tokens: Tensor | None = None

    def weights(self, reduction: str) -> tuple[float, float, float]:
        """sum w, sum w^2 and the number of valid tokens."""
        if self.tokens is None:
            w, w_sq, count = float(self.n), float(self.n), 0.0
        else:
            t = self.tokens.double()
            w, w_sq = float(t.sum()), float(t.square().sum())
            count = w
        return (1.0, w_sq / max(w, 1.0) ** 2, count) if reduction == "mean" else (w, w_sq, count)


@dataclass
class Update:
    """Sums so far, by the layer they belong to.

    Attributes:
        squares: sum_i |c_i|^2, parts of it.
        totals: |C|^2, after the last pass.
        passes: one a micro-batch.
        left: the same numbers without a metric, by which a change in between is noticed.
        trouble: why there is nothing to read; None if there is.
    """

    squares: defaultdict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    totals: dict[str, Tensor] = field(default_factory=dict)
    passes: list[Pass] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    trouble: str | None = None

    def numbers(self, layers: list[str], reduction: str) -> list[float]:
        """Everything that processes add up: W, s, examples, tokens, then sum_i |c_i|^2 by layer.

        Of A passes whose losses are means, each loss counts 1/A.
        """
        weights = [one.weights(reduction) for one in self.passes]
        A = len(weights) if reduction == "mean" else 1
        W = sum(w[0] for w in weights) / A
        s = sum(w[1] for w in weights) / A**2
        n = float(sum(one.n for one in self.passes))
        parts = [(at, q) for at, layer in enumerate(layers) for q in self.squares[layer]]
        sums = [0.0] * len(layers)
        values = torch.stack([q for _, q in parts]).tolist() if parts else []
        for (at, _), value in zip(parts, values, strict=True):
            sums[at] += value
        return [W, s, n, sum(w[2] for w in weights), *sums]


def batches(
    numbers: list[float], totals: list[float], *, world: int, scale: float, unit: str, eps: float
) -> list[Batch]:
    """The batch that every layer has seen, from the processes' added numbers.

    Args:
        numbers: as :meth:`Update.numbers`, added over ``world`` processes.
        totals: |C|^2 by layer, of the mean gradient over processes.
        world: how many processes.
        scale: by which the loss was multiplied against underflow.
        unit: ``"example"`` or ``"token"``.
        eps: of the arithmetic in which norms were computed.
    """
    W, s, n, tokens, *sums = numbers
    W, s = W / world, s / world**2
    q = s / W**2
    units = tokens if unit == "token" else 1 / q
    divisor = (W * scale) ** 2
    return [
        Batch(total / divisor, square / world**2 / divisor, q, round(n), units, eps)
        for total, square in zip(totals, sums, strict=True)
    ]


def together(parts: list[Batch]) -> Batch:
    """The batch of all layers, whose squared norms add up."""
    total, squares = sum(part.total_sq for part in parts), sum(part.sum_sq for part in parts)
    return replace(parts[0], total_sq=total, sum_sq=squares)


def squared_totals(
    params: Mapping[str, Tensor],
    label: Callable[[str], str],
    metric: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The squared norms of the gradients that parameters have, added up by label."""
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for name, p in params.items():
        if p.grad is not None:
            g = p.grad.detach()
            if metric is not None:
                g = g.to_dense() * metric[name].sqrt()
            g = g.coalesce().values() if g.is_sparse else g
            if g.dtype in HALF:  # whose own norms have two or three digits
                g = torch.linalg.vector_norm(g, dtype=torch.float32)
            groups[label(name)].append(g)
    return {key: torch.nn.utils.get_total_norm(g).square() for key, g in groups.items()}


def floats(values: Mapping[str, Tensor]) -> dict[str, float]:
    """The same as plain numbers."""
    return {key: float(value) for key, value in values.items()}
