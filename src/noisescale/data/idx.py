"""The IDX format of the MNIST family: big-endian header, then unsigned bytes."""

import math

import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError

_UNSIGNED_BYTE = 0x08


def parse_idx(content: bytes, what: str) -> NDArray[np.uint8]:
    """The array that ``content`` holds; ``what`` names it in the error message.

    The header is two zero bytes, the element type, the number of dimensions, then each dimension
    as a big-endian 32-bit integer.
    """
    if len(content) < 4 or content[:2] != b"\x00\x00" or content[2] != _UNSIGNED_BYTE:
        raise InputError(f"{what} is not an IDX file of unsigned bytes: it starts {content[:4]!r}.")
    n_dimensions = content[3]
    header = 4 + 4 * n_dimensions
    if n_dimensions == 0 or len(content) < header:
        raise InputError(f"{what} ends inside its IDX header ({len(content)} bytes).")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", n_dimensions, offset=4))
    if len(content) - header != math.prod(shape):
        raise InputError(
            f"{what} announces {' x '.join(map(str, shape))} bytes of data "
            f"but holds {len(content) - header}."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
