"""The digits of the playground: small enough for a page, hard enough for a best batch size.

A pixel is the mean of 2 x 2 of MNIST's, in 16 levels, so that two of them fit into a byte: a
thousand images of 14 x 14 take 98 kB.
"""

import base64

import numpy as np
from numpy.typing import NDArray

from noisescale.data import Dataset, load_dataset

N_TRAIN, N_TEST = 1_000, 2_000
SIDE = 14
_TOP = 15  # the brightest level


def small_digits() -> Dataset:
    """A thousand training and two thousand test images of MNIST, in 14 x 14 pixels.

    They are the first of the part that ships with noisescale.

    >>> small_digits().x_train.shape
    (1000, 196)
    """
    whole = load_dataset("mnist-embedded")
    return Dataset.build(
        _levels(whole.x_train[:N_TRAIN]) / np.float32(_TOP),
        whole.y_train[:N_TRAIN],
        _levels(whole.x_test[:N_TEST]) / np.float32(_TOP),
        whole.y_test[:N_TEST],
        name="small digits",
        source=whole.source,
        complete=True,
    )


def packed(x: NDArray[np.float32], y: NDArray[np.int32]) -> dict[str, str]:
    """Images and labels as text: two pixels a byte, the left one in the upper half, in base 64."""
    levels = np.rint(x * _TOP).astype(np.uint8).reshape(-1, 2)
    pairs = levels[:, 0] * np.uint8(16) + levels[:, 1]
    return {"packed": _text(pairs), "labels": _text(y.astype(np.uint8))}


def _levels(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squares of four pixels as one, from 0 to the brightest level."""
    squares = x.reshape(-1, SIDE, 2, SIDE, 2).mean(axis=(2, 4), dtype=np.float64)
    levels = np.rint(squares.reshape(-1, SIDE * SIDE) * _TOP)
    return np.asarray(levels, np.float32)


def _text(values: NDArray[np.uint8]) -> str:
    return base64.b64encode(values.tobytes()).decode()
