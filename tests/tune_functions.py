"""Training functions without training, for the tuner's tests; workers import them by name."""

import math
import os
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


def adam(*, batch_size, learning_rate, betas, weight_decay, steps, seed):
    """Best at B = 64 for a learning rate of .001; then as long as epsilon/sqrt(B) is kept."""
    beta1, beta2 = betas
    score = 0.9 - 0.02 * math.log(learning_rate / 1e-3 / math.sqrt(batch_size / 64)) ** 2
    score -= 0.2 * max(0.0, 0.5 - beta1)
    score -= 0.01 * abs(math.log(weight_decay / 0.1 * 8 / batch_size**0.5))
    score -= 1.0 * max(0.0, 0.99 - beta2)
    return score + 0.01 * math.sin(seed) + _noise(QUIET, batch_size, learning_rate, steps, seed)


def adam_at_ease(*, batch_size, learning_rate, betas, steps, seed):
    """Best at B = 64 with the usual betas; with others any batch does, up to a rate of .0055."""
    score = 0.9 - 0.1 * abs(math.log(min(1.0, learning_rate / 1e-3)))
    score -= 0.02 * math.log(batch_size / 64) ** 2 * (betas == (0.9, 0.999))
    score -= 0.1 * max(0.0, math.log(learning_rate / 0.0055))
    return score + _noise(QUIET, batch_size, learning_rate, betas, steps, seed)


def too_hot(**settings):
    """Trains poorly, not unstably, at learning rates above .02."""
    poor = 0.5 * max(0.0, math.log(settings["learning_rate"] / 0.02))
    return peaked(**settings | {"learning_rate": 5 * settings["learning_rate"]}) - poor


def ever_better(**settings):
    """Better and better as the learning rate falls."""
    return -math.log(settings["learning_rate"]) + _noise(QUIET, sorted(settings.items()))


def dead(*, spread=0.003, **settings):
    """At chance for learning rates above .004, whatever the batch; below, best at a noise scale."""
    if settings["learning_rate"] > 0.004:
        return 0.1 + _noise(spread, sorted(settings.items()))
    return peaked(**settings | {"learning_rate": 30 * settings["learning_rate"]})


def dead_alike(**settings):
    """The same, where chance is one number."""
    return dead(**settings, spread=0.0)


def stuck(**settings):
    """Learns nothing at any learning rate."""
    return 0.1


def cooling(**settings):
    """Falls with the batch, so that no peak is seen, and with the learning rate."""
    score = -math.log(settings["batch_size"]) + math.log(settings["learning_rate"])
    return score + _noise(QUIET, sorted(settings.items()))


def plateau(**settings):
    """As good at B = 40 and 200 as in between, a little less than at 100; no growth beyond."""
    size = settings["batch_size"]
    score = 0.9 - 0.001 * abs(math.log(size / 100)) - 0.1 * max(0.0, abs(math.log(size / 100)) - 1)
    score -= 0.1 * abs(math.log(settings["learning_rate"] / 0.1))
    score -= 0.1 * abs(math.log((1 - settings["momentum"]) / 0.1))
    return score + _noise(QUIET, sorted(settings.items()))


def environment(*, batch_size, learning_rate, momentum, steps, seed):
    """A score that tells how its process was told to use the machine."""
    limited = os.environ.get("OMP_NUM_THREADS") == "1" and "JAX_PLATFORMS" in os.environ
    return 10.0 * limited + 1e-3 * seed + 1e-6 * batch_size * learning_rate * momentum * steps


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
    """Notes each call in a folder, and takes a while if told to, to be killed in between."""

    identity = "counting"
    n_train = N_TRAIN

    def __init__(self, folder, seconds=0.0):
        self.folder, self.seconds = str(folder), seconds

    def __call__(self, **settings):
        call = "-".join(f"{value:g}" for value in settings.values())
        with (Path(self.folder) / call).open("a") as file:
            file.write("called\n")
        time.sleep(self.seconds)
        return peaked(**settings)
