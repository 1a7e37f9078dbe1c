"""Rows of the Gauss-Newton matrix's root, and how they are gone through."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Rows c' J_i: the example i of each, and the c that multiplies its outputs' Jacobian.

    A row of a sequence touches one token's outputs, a few of thousands, and has no more ``values``.

    >>> rows = Rows.of(np.ones((1, 2, 1, 3)))  # one sequence, two tokens, of three outputs each
    >>> rows.coefficients
    array([[1., 1., 1., 0., 0., 0.],
           [0., 0., 0., 1., 1., 1.]])
    """

    examples: NDArray[np.int64]  # (n,), ascending
    values: Array  # (n, C), or of some outputs alone
    first: NDArray[np.int64] | None = None  # (n,): the outputs that values begin with; 0 if None
    n_outputs: int | None = None  # C, where values are fewer

    @classmethod
    def of(cls, roots: Array) -> "Rows":
        """All that roots (N, k, C) have, or those of tokens, (N, T, k, C)."""
        N, *tokens, k, C = roots.shape
        (T,) = tokens or [1]
        examples, values = np.repeat(np.arange(N), T * k), roots.reshape(-1, C)
        if not tokens:
            return cls(examples, values)
        return cls(examples, values, np.tile(np.repeat(np.arange(T) * C, k), N), T * C)

    @property
    def coefficients(self) -> Array:
        """(n, C)."""
        if self.first is None or self.n_outputs is None:
            return self.values
        n, few = self.values.shape
        whole = np.zeros((n, self.n_outputs))
        np.put_along_axis(whole, self.first[:, None] + np.arange(few), self.values, axis=1)
        return whole

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, chosen: Any) -> "Rows":
        first = None if self.first is None else self.first[chosen]
        return replace(
            self, examples=self.examples[chosen], values=self.values[chosen], first=first
        )

    def of_few(self) -> "tuple[NDArray[np.int64] | slice, Rows]":
        """The examples that occur, as a slice if they can be one, and the rows among them alone."""
        examples, places = np.unique(self.examples, return_inverse=True)
        few: NDArray[np.int64] | slice = examples
        if len(examples) and examples[-1] - examples[0] == len(examples) - 1:
            few = slice(int(examples[0]), int(examples[-1]) + 1)
        return few, replace(self, examples=places)


def by_examples(rows: Rows, size: int) -> Iterator[Rows]:
    """Blocks of about ``size`` rows, an example's together unless it has more than that."""
    start = 0
    while start < len(rows):
        stop = min(start + size, len(rows))
        if stop < len(rows):
            first = int(np.searchsorted(rows.examples, rows.examples[stop]))
            stop = first if first > start else stop
        yield rows[start:stop]
        start = stop


def by_slots(rows: Rows, size: int) -> Iterator[tuple[bool, Rows]]:
    """Blocks of about ``size`` rows, and whether it is the first time that their examples occur.

    Where an example has many rows (a sequence has thousands), a block has some of several examples'
    rows: a pass takes one of each, and one sequence alone would be too little for it.
    """
    starts = np.flatnonzero(np.diff(rows.examples, prepend=-1))  # an example's first row
    slots = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    k = int(slots.max(initial=0)) + 1
    n = max(1, size // k, min(math.isqrt(size), len(starts)))
    step = min(k, max(1, size // n))
    for begin, end in zip(starts[::n], [*starts[n::n], len(rows)], strict=True):
        for slot in range(0, k, step):
            own = slots[begin:end]
            chosen = begin + np.flatnonzero((slot <= own) & (own < slot + step))
            yield slot == 0, rows[chosen]
