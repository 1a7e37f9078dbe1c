"""Models that misbehave as told by files in $UNRULY, for tests of what a sweep survives."""

import os
import signal
import time
from pathlib import Path

from noisescale.training import DenseNetwork


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


class _Slow(_Unruly):
    def misbehave(self, seed):
        _count("begun")
        time.sleep(0.4)


def _maker(kind):
    return lambda n_features, n_classes: kind((n_features, n_classes))


raises, flaky, deadly, deadly_once, slow = map(
    _maker, (_Raises, _Flaky, _Deadly, _DeadlyOnce, _Slow)
)
