"""How a cross-entropy weights single rows, read from the gradient at its logits.

The gradient of w (-ln softmax(z)_y) is w (p - e_y) with p = softmax(z): at all classes but the
label it is w p, which gives w, and whether it is a cross-entropy at all. A mean over n rows has
w = 1/n, a sum has w = 1. Other losses keep their weights to themselves.
"""

import torch
from torch import Tensor

_ROWS = 8  # that are looked at
_CLOSE = 1e-3  # half precision is told apart no better


def row_weight(logits: Tensor, gradients: Tensor) -> tuple[float, int] | None:
    """The weight of every row and how many rows have one; None if this is no cross-entropy.

    >>> z = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]], requires_grad=True)
    >>> torch.nn.functional.cross_entropy(z, torch.tensor([2, 1])).backward()
    >>> weight, n_rows = row_weight(z, z.grad)
    >>> round(weight, 6), n_rows
    (0.5, 2)
    """
    if logits.ndim < 2 or logits.shape != gradients.shape or logits.shape[-1] < 3:
        return None
    z, b = (t.detach().reshape(-1, t.shape[-1]) for t in (logits, gradients))
    valid = (b != 0).any(dim=1).nonzero()[:, 0]
    chosen = valid[:_ROWS]
    p, b = torch.softmax(z[chosen].double(), dim=1), b[chosen].double()
    w = (b.clamp_min(0).sum(dim=1) / (p * (b > 0)).sum(dim=1).clamp_min(1e-300))[:, None]
    rest = (b - w * p) / w  # -1 at the label, 0 elsewhere
    label = rest.argmin(dim=1, keepdim=True)
    wanted = torch.zeros_like(rest).scatter_(1, label, -1.0)
    weight = w[:, 0]
    alike = bool(((weight / weight.mean() - 1).abs() < _CLOSE).all())
    if not len(chosen) or not alike or not torch.allclose(rest, wanted, rtol=0, atol=_CLOSE):
        return None
    return float(weight.mean()), len(valid)


class OutputGradients:
    """What the gradients at a model's outputs tell: valid tokens, and the weight of a row.

    Attributes:
        tokens: how many valid ones each example of the last batch had, (n,); None if not counted.
        row_weight: of the first loss, and of how many rows; None if it was not told.
        rows_each: how many rows an example of it has that count.
    """

    def __init__(self, *, count_tokens: bool) -> None:
        self.count_tokens, self.judged = count_tokens, False
        self.tokens: Tensor | None = None
        self.row_weight: tuple[float, int] | None = None
        self.rows_each = 1.0

    def look(self, n: int, b: Tensor, outputs: Tensor | None) -> str | None:
        """At the gradient b of n examples' outputs; a sentence if tokens cannot be counted."""
        if outputs is not None and not self.judged:
            self.judged, self.row_weight = True, row_weight(outputs, b)
            if self.row_weight is not None and len(outputs.reshape(-1, outputs.shape[-1])) > n:
                self.rows_each = self.row_weight[1] / n
        if not self.count_tokens:
            return None
        by_example = b.reshape(n, -1, *b.shape[1:]) if len(b) != n and not len(b) % n else b
        if by_example.ndim < 3:
            return (
                "unit='token' needs outputs with an axis of tokens, (batch, tokens, ...), but they "
                f"have the shape {tuple(b.shape)}"
            )
        self.tokens = (by_example != 0).flatten(2).any(dim=2).sum(dim=1)
        return None

    def in_words(self, unit: str, reduction: str) -> str:
        """What batch sizes are counted in, and what the loss was said to be.

        >>> OutputGradients(count_tokens=False).in_words("example", "mean")
        'examples (mean loss)'
        """
        loss = "summed loss" if reduction == "sum" else "mean loss"
        if self.rows_each == 1:
            return f"{unit}s ({loss})"
        counted = "tokens" if unit == "token" else f"sequences of {self.rows_each:.4g} tokens"
        return f"{counted} ({loss} over tokens)"


def unlike_reduction(weight: float, n_rows: int, reduction: str) -> str | None:
    """A sentence, if the loss plainly is what it was not said to be."""
    if n_rows < 2 or reduction == "whole":  # parts of a mean may weigh anything
        return None
    other = {"mean": ("sum", 1.0), "sum": ("mean", 1.0 / n_rows)}[reduction]
    if abs(weight / other[1] - 1) > _CLOSE:
        return None
    return (
        f"the loss is a {other[0]} over the batch, not a {reduction}: |G|^2 and tr S have another "
        f"scale than they should, and batches of different sizes do not average; give "
        f"reduction='{other[0]}'"
    )
