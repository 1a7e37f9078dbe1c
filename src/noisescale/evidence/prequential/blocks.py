"""In which order examples come, and where the blocks end; neither looks at a label."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisescale.checks import check_list, check_whole
from noisescale.errors import InputError
from noisescale.seeds import random_stream


def block_ends(blocks: Any, n: int, smallest: int) -> tuple[int, ...]:
    """Where each block ends: n/2^k for as long as the first has ``smallest`` examples, or as given.

    >>> block_ends(None, 1000, 20)
    (31, 62, 125, 250, 500, 1000)
    >>> block_ends([1, 1, 2], 4, 20)
    (1, 2, 4)
    """
    if blocks is None:
        halvings = 1
        while n >> (halvings + 1) >= smallest:
            halvings += 1
        return tuple(n >> k for k in range(halvings, -1, -1))
    listed = check_list("blocks", blocks, "the sizes of the blocks, such as [30, 30, 60]")
    sizes = [check_whole("a block's size", size, at_least=1) for size in listed]
    if len(sizes) < 2:
        raise InputError(
            f"blocks must be two or more, one to learn from and one to predict, got {sizes}."
        )
    if sum(sizes) != n:
        raise InputError(
            f"blocks must add up to the number of examples, {n}, but {len(sizes)} blocks hold "
            f"{sum(sizes)}."
        )
    return tuple(np.cumsum(sizes).tolist())


def order_of(seed: int, order: int, n: int) -> NDArray[np.int64]:
    """The examples in their ``order``-th order."""
    return random_stream(seed, f"prequential order {order}").permutation(n)


def fit_seed(seed: int, order: int, start: int, member: int) -> int:
    """The seed for one training: the same for every procedure, so that comparisons are paired."""
    stream = random_stream(seed, f"prequential fit {order} {start} {member}")
    return int(stream.integers(2**31))


def take(x: Any, rows: NDArray[np.int64]) -> Any:
    """Rows of an array, a sparse matrix or a data frame."""
    return x.iloc[rows] if hasattr(x, "iloc") else x[rows]
