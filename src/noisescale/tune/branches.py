"""Short trainings that branch off from one checkpoint, as workers run and a store keeps them."""

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from noisescale.errors import InputError
from noisescale.jobs.keyed import Keyed
from noisescale.jobs.packing import unpack
from noisescale.jobs.record import guarded

WORK = "noisescale.tune.branches:run_branches"
ARGUMENTS = ("batch_size", "learning_rate", "n_examples", "seed")


class TrainFrom(Protocol):
    """Trains on from a checkpoint; returns pairs (examples seen since then, loss)."""

    def __call__(
        self,
        checkpoint: Any,
        /,
        *,
        batch_size: int,
        learning_rate: float,
        n_examples: int,
        seed: int,
    ) -> Any:
        """Train with these settings."""
        ...


@dataclass(frozen=True, kw_only=True)
class Branch(Keyed):
    """A branch, as it is executed and a store keeps it."""

    kind = "branch"

    function: str  # its identity, checkpoint included
    batch_size: int
    learning_rate: float
    n_examples: int
    seed: int

    @property
    def cost(self) -> float:
        """Examples seen, and some for every update."""
        return self.n_examples * (1 + 10 / self.batch_size)

    def merit(self, final: Mapping[str, Any]) -> tuple[float, str] | None:
        """How progress tells the loss."""
        loss = final.get("loss")
        return None if loss is None else (-loss, f"loss {loss:.4g} at B = {self.batch_size}")


def content_digest(checkpoint: Any) -> str:
    """The content of the file or folder that a checkpoint names; empty if it names none."""
    if not isinstance(checkpoint, (str, os.PathLike)):
        return ""
    path = Path(checkpoint)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # a text that could be no path
        return ""
    try:
        if is_file:
            return _file_digest(path)
        files = sorted(_files(path, set())) if is_folder else []
        lines = [f"{_file_digest(file)} {file.relative_to(path).as_posix()}\n" for file in files]
        whole = "".join(lines).encode(errors="surrogateescape")
        return hashlib.sha256(whole).hexdigest() if is_folder else ""
    except OSError as error:
        raise InputError(
            f"the checkpoint {checkpoint} cannot be read ({error.filename}: {error.strerror})."
        ) from None


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path, above: set[Path]) -> Iterator[Path]:
    """All files in a folder and below, through links too, but not round in a circle."""
    here = folder.resolve()
    for path in folder.iterdir() if here not in above else ():
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from _files(path, {*above, here})


def run_branches(packed: bytes, branches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each branch. This is what workers execute."""
    return [guarded(lambda: _run(packed, branch)) for branch in branches]  # noqa: B023


def _run(packed: bytes, branch: dict[str, Any]) -> dict[str, Any]:
    with redirect_stdout(sys.stderr):  # stdout may carry JSON
        curve = as_curve(_function(packed)(**{name: branch[name] for name in ARGUMENTS}))
    finite = [pair for pair in curve if math.isfinite(pair[1])]
    diverged = len(finite) < len(curve)
    return {
        "status": "diverged" if diverged else "done",
        "error": None,
        "history": {"step": [e for e, _ in finite], "loss": [loss for _, loss in finite]},
        "final": {} if diverged else {"loss": curve[-1][1], "examples": curve[-1][0]},
    }


def as_curve(returned: Any) -> list[tuple[float, float]]:
    """Pairs (examples, loss) with examples that grow."""
    try:
        pairs = [(float(examples), float(loss)) for examples, loss in returned]
    except (TypeError, ValueError):
        pairs = []
    grows = all(a[0] < b[0] for a, b in pairwise(pairs))
    if len(pairs) < 2 or not grows:
        raise TypeError(
            "train_from must return two or more pairs (examples, loss) with growing numbers of "
            f"examples, got {str(returned)[:60]!r}"
        )
    return pairs


@lru_cache(maxsize=1)  # the same object again, so that whatever it caches is found again
def _function(packed: bytes) -> Any:
    return unpack(packed)
