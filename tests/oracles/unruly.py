"""Runs that misbehave as files in $UNRULY tell them, and data that are none.

Nothing here trains or imports JAX: what survives a fault does not depend on what was computed.
"""

import hashlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from noisescale.jobs.record import guarded

FREE = 3  # runs that need not wait at the gate
GATE = "gate"  # the file that opens it
WORK = (f"{__name__}:work",)


@dataclass(frozen=True)
class Job:
    """A run without training: its result is a function of its seed."""

    kind: str
    seed: int

    @cached_property
    def canonical(self):
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def key(self):
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def shape(self):
        return (self.kind,)

    @property
    def cost(self):
        return 1.0

    def to_dict(self):
        return asdict(self)

    def merit(self, final):
        return None


def jobs(kind, seeds=4):
    """Jobs by key, with the seeds from 0 or these."""
    made = [Job(kind, seed) for seed in (range(seeds) if isinstance(seeds, int) else seeds)]
    return {job.key: job for job in made}


def work(batch):
    """What workers execute."""
    return [guarded(lambda: _run(**job)) for job in batch]  # noqa: B023


def _run(kind, seed):
    _KINDS[kind](seed)
    final = {"score": float(np.random.default_rng(seed).random())}
    return {"status": "done", "error": None, "history": {}, "final": final}


def _count(name):
    """How often this was called, over all processes."""
    folder = Path(os.environ["UNRULY"])
    with (folder / name).open("a") as file:
        file.write("x")
    return (folder / name).stat().st_size


def _good(seed):
    pass


def _raises(seed):
    if seed == 1:
        raise ValueError("this seed never works")


def _flaky(seed):
    if _count(f"flaky-{seed}") <= 2:
        raise OSError("try again")


def _deadly(seed):
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _deadly_once(seed):
    if seed == 1 and _count("deadly") == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _exits(seed):
    if seed == 1:
        raise SystemExit(3)


def _mumbles(seed):
    raise ValueError("not \udcff text")


def _gated(seed):
    """The first go through; the others wait until the test opens the gate."""
    if _count("begun") > FREE:
        gate = Path(os.environ["UNRULY"]) / GATE
        while not gate.exists():
            time.sleep(0.02)


_KINDS = {
    "good": _good,
    "raises": _raises,
    "flaky": _flaky,
    "deadly": _deadly,
    "deadly_once": _deadly_once,
    "exits": _exits,
    "mumbles": _mumbles,
    "gated": _gated,
}


def useless_model(n_features, n_classes):
    """A model that cannot be made."""
    raise ValueError("no such model")


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
