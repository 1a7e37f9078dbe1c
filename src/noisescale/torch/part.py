"""A random part of each batch, whose sums stand for the whole."""

from typing import Any

import torch


class Part:
    """So many examples of every batch: neighbours, from a random place on, around the end.

    Every example is as likely as another, so that n/m times their sum is unbiased; neighbours need
    no copy. The random numbers are its own.

    >>> part = Part()
    >>> part.draw(3)
    >>> chosen, scale = part.of(12)
    >>> torch.arange(12)[chosen].tolist(), scale
    ([8, 9, 10], 4.0)
    """

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.draw(None)

    def draw(self, examples: int | None) -> None:
        """Choose anew, so many of each batch (None: all)."""
        self.examples = examples
        self._chosen: dict[int, Any] = {}

    def of(self, n: int) -> tuple[Any, float]:
        """Which of n examples (None: all), and what their sums are multiplied by."""
        m = self.examples
        if m is None or m >= n:
            return None, 1.0
        if n not in self._chosen:
            start = int(torch.randint(n, (), generator=self.generator))
            around = torch.arange(start, start + m) % n
            self._chosen[n] = slice(start, start + m) if start + m <= n else around
        return self._chosen[n], n / m

    def size(self, n: int) -> int:
        """How many of n examples."""
        return n if self.examples is None else min(n, self.examples)
