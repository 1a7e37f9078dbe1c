"""Which examples make a batch: three samplers with different noise.

- ``without_replacement`` (the paper's): each step draws B different examples, independently of
  the other steps. The gradient error has variance N (N/B - 1) S and vanishes at B = N.
- ``with_replacement``: B independent draws; variance N^2 F/B, which does not vanish at B = N.
- ``shuffle`` (most training loops'): permutations of the data, one after the other, cut into
  batches of exactly B; a batch may straddle two epochs. Its noise is anti-correlated in time.

No sampler's cost per step grows with N. A stream's content depends on its seed, B and N alone,
not on how much of it is taken at once.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_batch_size, check_choice

Batches = NDArray[np.int32]  # (steps, B) indices into the training set

_BLOCK = 1 << 16  # indices drawn at once, to spread the cost of a NumPy call over many steps


def block_length(batch_size: int) -> int:
    """Steps whose batches are drawn at once."""
    return max(1, _BLOCK // batch_size)


class BatchStream:
    """An endless sequence of batches, taken as many at a time as wanted."""

    def __init__(
        self, sampler: str, *, n_train: int, batch_size: int, rng: np.random.Generator
    ) -> None:
        check_choice("sampler", sampler, SAMPLERS)
        check_batch_size(batch_size, n_train)
        self._blocks = SAMPLERS[sampler](rng, n_train, batch_size, block_length(batch_size))
        self._left: Batches = np.empty((0, batch_size), np.int32)

    def take(self, steps: int) -> Batches:
        """The next ``steps`` batches, one a row."""
        parts, have = [self._left], len(self._left)
        while have < steps:
            block = next(self._blocks)
            parts.append(block)
            have += len(block)
        batches = np.concatenate(parts)
        self._left = batches[steps:]
        return batches[:steps]


def _with_replacement(
    rng: np.random.Generator, n_train: int, batch_size: int, rows: int
) -> Iterator[Batches]:
    while True:
        yield rng.integers(n_train, size=(rows, batch_size), dtype=np.int32)


def _without_replacement(
    rng: np.random.Generator, n_train: int, batch_size: int, rows: int
) -> Iterator[Batches]:
    everyone = np.arange(n_train, dtype=np.int32)
    while True:
        if batch_size == n_train:
            yield np.broadcast_to(everyone, (rows, n_train))
        elif n_train <= 8 * batch_size:
            # Shuffling all N costs no more than 8 times the batch itself.
            yield rng.permuted(np.tile(everyone, (rows, 1)), axis=1)[:, :batch_size]
        else:
            yield _distinct(rng, n_train, batch_size, rows)


def _distinct(rng: np.random.Generator, n_train: int, batch_size: int, rows: int) -> Batches:
    """Rows of distinct indices, by drawing again what came up twice.

    A row holds the first B distinct values of an endless stream of independent draws (only as many
    are redrawn as are still missing), so every subset of B examples is equally likely.
    """
    batches = rng.integers(n_train, size=(rows, batch_size), dtype=np.int32)
    open_rows = np.arange(rows)  # those that may still hold a repeat
    while len(open_rows):
        part = np.sort(batches[open_rows], axis=1)
        repeat = np.zeros(part.shape, bool)
        repeat[:, 1:] = part[:, 1:] == part[:, :-1]
        part[repeat] = rng.integers(n_train, size=np.count_nonzero(repeat), dtype=np.int32)
        batches[open_rows] = part
        open_rows = open_rows[repeat.any(axis=1)]
    return batches


def _shuffle(
    rng: np.random.Generator, n_train: int, batch_size: int, rows: int
) -> Iterator[Batches]:
    size = rows * batch_size
    rest = np.empty(0, np.int32)  # of the current epoch, not copied while it fills whole blocks
    while True:
        parts, missing = [], size
        while missing > len(rest):
            parts.append(rest)
            missing -= len(rest)
            rest = rng.permutation(n_train).astype(np.int32)
        parts.append(rest[:missing])
        rest = rest[missing:]
        yield np.concatenate(parts).reshape(rows, batch_size)


SAMPLERS: dict[str, Callable[[np.random.Generator, int, int, int], Iterator[Batches]]] = {
    "without_replacement": _without_replacement,
    "with_replacement": _with_replacement,
    "shuffle": _shuffle,
}
