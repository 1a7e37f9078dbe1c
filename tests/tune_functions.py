"""Training functions without training, for the tuner's tests; workers import them by name."""

import math
import time
import zlib
from pathlib import Path

import numpy as np

N_TRAIN = 10_000
QUIET = 1e-4  # of the spread of a score


def _noise(spread, *settings):
    return spread * np.random.default_rng(zlib.crc32(repr(settings).encode())).normal()


def peaked(*, batch_size, learning_rate, momentum, steps, seed, spread=QUIET):
    """Best at noise scale 200; learning rates beyond 1 and momenta beyond .98 cost accuracy."""
    g = learning_rate * N_TRAIN / (batch_size * (1 - momentum))
    score = 0.9 - 0.01 * math.log(g / 200) ** 2
    score -= 0.05 * max(0.0, math.log(learning_rate))
    score -= 0.05 * max(0.0, math.log(0.02 / (1 - momentum)))
    return (
        score
        + 0.01 * math.sin(seed)
        + _noise(spread, batch_size, learning_rate, momentum, steps, seed)
    )


def noisy(**settings):
    """The same, drowned."""
    return peaked(**settings, spread=0.1)


def flat(**settings):
    return 0.5 + _noise(0.01, sorted(settings.items()))


def rising(**settings):
    return math.log(settings["batch_size"]) + _noise(0.01, sorted(settings.items()))


def falling(**settings):
    return -math.log(settings["batch_size"]) + _noise(0.01, sorted(settings.items()))


def touchy(**settings):
    """Diverges above a learning rate of 0.02."""
    if settings["learning_rate"] > 0.02:
        return math.nan
    return peaked(**settings | {"learning_rate": 5 * settings["learning_rate"]})


def diverging(**settings):
    return math.nan


def raising(**settings):
    if settings["batch_size"] >= 128:
        raise RuntimeError("out of memory at this batch")
    return 0.5 + settings["seed"]


def texting(**settings):
    return "ninety per cent"


def infinite(**settings):
    return math.inf


class HangingWhenSmall:
    """Never comes back with a small batch, and leaves a mark for each time."""

    identity = "hanging when small"

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self, **settings):
        if settings["batch_size"] < 20:
            with (Path(self.folder) / "hung").open("a") as file:
                file.write("x")
            time.sleep(3600)
        return peaked(**settings)


def seedless(**settings):
    return peaked(**settings | {"seed": 0}, spread=0.0)


def without_momentum(*, batch_size, learning_rate, momentum, steps, seed):
    return learning_rate / batch_size + steps + seed


def talking(**settings):
    print("epoch 1 of 7")
    return peaked(**settings)


class Counting:
    """Notes each call in a folder; slow enough to be killed in between."""

    identity = "counting"
    n_train = N_TRAIN

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self, **settings):
        call = "-".join(f"{value:g}" for value in settings.values())
        with (Path(self.folder) / call).open("a") as file:
            file.write("called\n")
        time.sleep(0.05)
        return peaked(**settings)
