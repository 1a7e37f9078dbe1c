"""One call of the user's training function, from its settings to its record."""

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

from noisescale.jobs import isolation
from noisescale.jobs.packing import unpack
from noisescale.jobs.record import RESULT_FORMAT, guarded
from noisescale.tune.function import ARGUMENTS, as_score

LATE = "timed out"  # how the error of such a run begins


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of the user's function, as a sweep executes and a store keeps it."""

    function: str  # its identity
    n_train: int
    batch_size: int
    learning_rate: float
    steps: int
    seed: int
    momentum: float | None = None  # of SGD
    betas: tuple[float, float] | None = None  # of Adam
    weight_decay: float | None = None  # of a function that takes it

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, but for those that the function does not take."""
        content = {name: value for name, value in asdict(self).items() if value is not None}
        return content | ({"betas": list(self.betas)} if self.betas is not None else {})

    @cached_property
    def canonical(self) -> str:
        """The canonical JSON that the key is the hash of."""
        content = self.to_dict() | {"kind": "trial", "format": RESULT_FORMAT}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def key(self) -> str:
        """The run's name in a store: sha256 of its canonical JSON."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def shape(self) -> tuple[object, ...]:
        """Its own: how long a user's function takes is not known, so each is a task."""
        return (self.key,)

    @property
    def cost(self) -> float:
        """Examples seen, and some for every update."""
        return self.steps * (self.batch_size + 10.0)

    def merit(self, final: Mapping[str, Any]) -> tuple[float, str] | None:
        """The score, and how a tuning's progress tells it."""
        score = final.get("score")
        return None if score is None else (score, f"score {score:.4f} at B = {self.batch_size}")


def run_trials(
    packed: bytes, timeout: float | None, trials: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A record for each trial. This is what workers execute."""
    return [guarded(lambda: _run(packed, timeout, trial)) for trial in trials]  # noqa: B023


def _run(packed: bytes, timeout: float | None, trial: dict[str, Any]) -> dict[str, Any]:
    call = {name: trial[name] for name in ARGUMENTS if name in trial}
    if "betas" in call:
        call["betas"] = tuple(call["betas"])
    if timeout is None:
        score = score_of(packed, call)
    else:
        try:
            score = isolation.call_within(
                timeout,
                f"{__name__}:score_of",
                packed,
                call,
                owner="trials",
                ready=(f"{__name__}:load_function", packed),
            )
        except TimeoutError:
            return {"status": "failed", "error": f"{LATE} after {timeout:g} s"}
    diverged = score != score
    return {
        "status": "diverged" if diverged else "done",
        "error": None,
        "history": {},
        "final": {"steps_done": trial["steps"]} | ({} if diverged else {"score": score}),
    }


def score_of(packed: bytes, call: dict[str, Any]) -> float:
    """Call the function; what it prints goes to stderr, because stdout may carry JSON."""
    with redirect_stdout(sys.stderr):
        return as_score(_function(packed)(**call))


def load_function(packed: bytes) -> None:
    """Import what the function needs, so that its first call takes no longer than the others."""
    _function(packed)


@lru_cache(maxsize=1)  # the same object again, so that whatever it caches is found again
def _function(packed: bytes) -> Any:
    return unpack(packed)
