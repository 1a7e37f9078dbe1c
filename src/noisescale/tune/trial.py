"""One call of the user's training function, from its settings to its record."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from noisescale.jobs import isolation
from noisescale.jobs.keyed import Keyed
from noisescale.jobs.packing import unpack
from noisescale.jobs.record import guarded
from noisescale.tune.function import ARGUMENTS, as_score

LATE = "timed out"  # how the error of such a run begins


@dataclass(frozen=True, kw_only=True)
class Trial(Keyed):
    """A run of the user's function, as a sweep executes and a store keeps it."""

    kind = "trial"

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
        content = {name: value for name, value in super().to_dict().items() if value is not None}
        return content | ({"betas": list(self.betas)} if self.betas is not None else {})

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
