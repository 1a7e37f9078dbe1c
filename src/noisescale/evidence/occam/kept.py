"""Blocks of probes in a store: a Lanczos estimate that was killed goes on where it stopped.

A block is a row of a :class:`~noisescale.jobs.store.RunStore`, written all or not at all when its
last product is made, under the hash of everything that it depends on: the model, its parameters and
data, the prior, curvature, precision, seed and steps. Blocks of another problem in the same store
have other names, and are neither used nor touched.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from noisescale.evidence.occam.deflation import Leading
from noisescale.evidence.occam.krylov import Tridiagonal
from noisescale.evidence.occam.quadrature import Block
from noisescale.evidence.occam.term import Accuracy, Array
from noisescale.evidence.pace import say
from noisescale.jobs.identity import identity_of
from noisescale.jobs.record import RESULT_FORMAT, guarded
from noisescale.jobs.store import RunStore, opened

# Raised when a block of the same name would hold other numbers.
_FORMAT = 1


class KeptProbes:
    """The blocks of one estimate.

    Attributes:
        n_used: how many probes came out of the store.
    """

    def __init__(self, store: RunStore, about: dict[str, Any]) -> None:
        self._store, self._about, self.n_used = store, about, 0

    def get(self, first: int, stop: int) -> Block | None:
        """The block of these probes, if it is there."""
        key, _ = self._name(first, stop)
        rows = self._store.frame([key])
        if rows.empty or rows["status"].iloc[0] != "done":
            return None
        row = rows.iloc[0]
        self.n_used += stop - first
        return Block(
            first,
            tuple(
                Tridiagonal(np.array(alpha), np.array(beta))
                for alpha, beta in zip(row["alpha"], row["beta"], strict=True)
            ),
            tuple(_leading(part) for part in row["leading"]),
        )

    def add(self, block: Block) -> None:
        """Keep a block."""
        key, config = self._name(block.first, block.first + len(block.probes))
        final = {
            "alpha": [probe.alpha.tolist() for probe in block.probes],
            "beta": [probe.beta.tolist() for probe in block.probes],
            "leading": [
                {
                    "nodes": found.nodes.tolist(),
                    "weights": found.weights.tolist(),
                    "probes": list(found.probes),
                    "excess": found.excess.tolist(),
                }
                for found in block.leading
            ],
        }
        record = guarded(lambda: {"status": "done", "error": None, "history": {}, "final": final})
        self._store.add([record | {"key": key, "config": config}])

    def _name(self, first: int, stop: int) -> tuple[str, str]:
        """The key, and the canonical JSON that it is the hash of."""
        content = self._about | {"first": first, "stop": stop}
        config = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(config.encode()).hexdigest(), config


Opener = Callable[[str], KeptProbes]


@contextmanager
def keeping(
    accuracy: Accuracy, L: Array, content: Callable[[], tuple[Any, ...]]
) -> Iterator[Opener | None]:
    """The store of ``accuracy``, open: gives the blocks made by products of a precision.

    ``content`` is all that the products depend on. What of it cannot be told apart from another of
    its kind has a name that is used once, so that nothing stored is taken for its own.
    """
    if accuracy.store is None:
        yield None
        return
    known = identity_of("lanczos", *content(), L)
    if known.unknown is not None:
        say(
            f"stored probes are not used, and these will not be: whether {known.unknown} is the "
            "same is not known"
        )
    about = {
        "kind": "lanczos probes",
        "format": [RESULT_FORMAT, _FORMAT],
        "problem": known.name,
        "seed": accuracy.seed,
        "n_steps": accuracy.n_steps,
    }
    with opened(accuracy.store) as store:
        yield lambda precision: KeptProbes(store, about | {"products": precision})


def _leading(part: dict[str, Any]) -> Leading:
    k = len(part["nodes"])
    return Leading(
        np.array(part["nodes"], float),
        np.array(part["weights"], float),
        tuple(part["probes"]),
        np.array(part["excess"], float).reshape(len(part["probes"]), k),
    )
