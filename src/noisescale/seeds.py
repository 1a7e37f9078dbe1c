"""One place where randomness starts.

A run draws a training subset, an initialisation and batches from one integer seed. Each purpose
gets a stream of its own, so that changing how one of them draws leaves the others as they were.
"""

import zlib

import numpy as np

from noisescale.checks import check_whole


def random_stream(seed: int, purpose: str) -> np.random.Generator:
    """The generator for one ``purpose`` of a run with this ``seed``."""
    return np.random.default_rng(
        [check_whole("seed", seed, at_least=0), zlib.crc32(purpose.encode())]
    )
