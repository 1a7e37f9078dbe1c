"""Models that misbehave as told by files in $UNRULY, for tests of what a sweep survives."""

import os
import signal
import time
from pathlib import Path

import numpy as np

from noisescale.training import DenseNetwork

FREE = 3  # runs that need not wait at the gate
GATE = "gate"  # the file that opens it


class _Unruly(DenseNetwork):
    def init(self, seed, initialisation):
        self.misbehave(seed)
        return DenseNetwork.init(self, seed, initialisation)


def _count(name):
    """How often this was called, over all processes."""
    folder = Path(os.environ["UNRULY"])
    with (folder / name).open("a") as file:
        file.write("x")
    return (folder / name).stat().st_size


class _Raises(_Unruly):
    def misbehave(self, seed):
        if seed == 1:
            raise ValueError("this seed never works")


class _Flaky(_Unruly):
    def misbehave(self, seed):
        if _count(f"flaky-{seed}") <= 2:
            raise OSError("try again")


class _Deadly(_Unruly):
    def misbehave(self, seed):
        if seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class _DeadlyOnce(_Unruly):
    def misbehave(self, seed):
        if seed == 1 and _count("deadly") == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class _Exits(_Unruly):
    def misbehave(self, seed):
        if seed == 1:
            raise SystemExit(3)


class _Mumbles(_Unruly):
    def misbehave(self, seed):
        raise ValueError("not \udcff text")


class _Gated(_Unruly):
    """The first runs go through; the others wait until the test opens the gate."""

    def misbehave(self, seed):
        if _count("begun") > FREE:
            gate = Path(os.environ["UNRULY"]) / GATE
            while not gate.exists():
                time.sleep(0.02)


def _maker(kind):
    return lambda n_features, n_classes: kind((n_features, n_classes))


raises, flaky, deadly, deadly_once, exits, mumbles, gated = map(
    _maker, (_Raises, _Flaky, _Deadly, _DeadlyOnce, _Exits, _Mumbles, _Gated)
)

NO_FUNCTION = 3


def misaligned():
    x, y = np.zeros((50, 4)), np.zeros(47, int)
    return x, y, x, y


def three_arrays():
    return np.zeros((5, 2)), np.zeros(5, int), np.zeros((5, 2))


def with_nan():
    x, y = np.full((5, 2), np.nan), np.zeros(5, int)
    return x, y, x, y


def negative_labels():
    x, y = np.zeros((5, 2)), np.full(5, -1)
    return x, y, x, y


def other_width():
    y = np.zeros(5, int)
    return np.zeros((5, 2)), y, np.zeros((5, 3)), y


def explodes():
    raise OSError("no disk")


def small():
    rng = np.random.default_rng(0)
    return rng.random((40, 3)), rng.integers(2, size=40), rng.random((10, 3)), np.zeros(10, int)
