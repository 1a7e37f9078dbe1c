"""Scores of recipes by seed: from the store, and made where it lacks them, within a budget."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from noisescale.errors import InputError
from noisescale.jobs.engines import Engine
from noisescale.jobs.execution import execute
from noisescale.jobs.identity import identity
from noisescale.jobs.packing import pack
from noisescale.jobs.progress import Progress
from noisescale.jobs.record import last_line
from noisescale.jobs.store import RunStore
from noisescale.noise import AdamRecipe, Recipe
from noisescale.tune.comparison import Array
from noisescale.tune.function import ARGUMENTS, Interface, TrainFunction, interface_of
from noisescale.tune.trial import LATE, Trial

AnyRecipe = Recipe | AdamRecipe
_WORK = "noisescale.tune.trial:run_trials"


class BudgetSpentError(Exception):
    """The next runs would exceed the budget; its text says which."""


@dataclass(frozen=True)
class Budget:
    """The most that may be spent, None for no limit. Stored runs count as when they were made."""

    runs: int | None = None
    steps: int | None = None
    seconds: float | None = None  # of training, summed over workers


class Trials:
    """The runs of one tuning."""

    def __init__(
        self,
        *,
        function: str,
        packed: bytes,
        timeout: float | None,
        n_train: int,
        epochs: float,
        first_seed: int,
        store: RunStore,
        engine: Engine,
        budget: Budget,
        interface: Interface,
        progress: Progress,
    ) -> None:
        self._function, self._packed, self._timeout = function, packed, timeout
        self._n_train, self._epochs, self._first_seed = n_train, epochs, first_seed
        self._store, self._engine = store, engine
        self._budget, self._progress, self._interface = budget, progress, interface
        self._asked: dict[str, Trial] = {}
        self.seconds = 0.0
        self.held_back = Budget(runs=0, steps=0)  # of the budget, for what comes last

    @property
    def n_runs(self) -> int:
        """Runs that the tuning has used."""
        return len(self._asked)

    @property
    def n_steps(self) -> int:
        """Updates in them."""
        return sum(trial.steps for trial in self._asked.values())

    def steps(self, batch_size: int) -> int:
        """Updates in the fixed number of epochs."""
        return max(1, round(self._epochs * self._n_train / batch_size))

    def scores(self, recipes: Sequence[AnyRecipe], n_seeds: int, skip: int = 0) -> Array:
        """(recipes, seeds) after ``skip`` seeds, NaN where a run diverged or was late."""
        seeds = range(skip, skip + n_seeds)
        trials = [[self._trial(recipe, k) for k in seeds] for recipe in recipes]
        wanted = {trial.key: trial for row in trials for trial in row}
        self._afford(wanted)
        self._execute(wanted)
        frame = self._store.frame(wanted).set_index("key")
        self._check(frame)
        new = [key for key in wanted if key not in self._asked]
        self.seconds += float(frame.loc[new, "duration"].sum())
        self.seconds += sum(_time_limit(str(error)) or 0.0 for error in frame.loc[new, "error"])
        self._asked |= wanted
        if "score" not in frame:
            return np.full((len(recipes), n_seeds), np.nan)
        score = frame["score"].where(frame["status"] == "done")
        return np.array([[score[trial.key] for trial in row] for row in trials], float)

    def timings(self) -> pd.DataFrame:
        """Batch size, steps and duration of every run that came to its end."""
        frame = self._store.frame(self._asked)
        return frame.loc[frame["status"] == "done", ["batch_size", "steps", "duration"]]

    def _trial(self, recipe: AnyRecipe, k: int) -> Trial:
        return Trial(
            function=self._function,
            n_train=self._n_train,
            batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            momentum=recipe.momentum if isinstance(recipe, Recipe) else None,
            betas=recipe.betas if isinstance(recipe, AdamRecipe) else None,
            weight_decay=recipe.weight_decay if self._interface.weight_decay else None,
            steps=self.steps(recipe.batch_size),
            seed=self._first_seed + k,
        )

    def _afford(self, wanted: dict[str, Trial]) -> None:
        new = [trial for key, trial in wanted.items() if key not in self._asked]
        steps, limit = sum(trial.steps for trial in new), self._budget
        runs_later, steps_later = self.held_back.runs or 0, self.held_back.steps or 0
        if limit.runs is not None and self.n_runs + len(new) + runs_later > limit.runs:
            later = f", with {runs_later} to confirm it" if runs_later else ""
            raise BudgetSpentError(
                f"the budget of {limit.runs} runs has {limit.runs - self.n_runs} left, and the "
                f"next comparison takes {len(new)}{later}"
            )
        if limit.steps is not None and self.n_steps + steps + steps_later > limit.steps:
            later = f", with {steps_later:,} to confirm it" if steps_later else ""
            raise BudgetSpentError(
                f"the budget of {limit.steps:,} updates has {limit.steps - self.n_steps:,} left, "
                f"and the next comparison takes {steps:,}{later}"
            )
        seconds_later = runs_later * self.seconds / max(self.n_runs, 1)
        if new and limit.seconds is not None and self.seconds + seconds_later >= limit.seconds:
            told = f", and to confirm it takes about {seconds_later:.3g} s" if seconds_later else ""
            raise BudgetSpentError(
                f"the budget of {limit.seconds:g} s of training is spent ({self.seconds:.3g} s"
                f"{told})"
            )

    def _execute(self, wanted: dict[str, Trial]) -> None:
        stored = self._store.frame(wanted)
        have = {row["key"] for _, row in stored.iterrows() if not self._worth_trying(row)}
        missing = [trial for key, trial in wanted.items() if key not in have]
        if missing:
            execute(
                missing,
                self._store,
                self._engine,
                (_WORK, self._packed, self._timeout),
                retries=0,
                final={"done", "diverged"},
                n_stored=len(wanted) - len(missing),
                progress=self._progress,
            )

    def _worth_trying(self, row: "pd.Series[Any]") -> bool:
        """Failed runs are tried again, but not one that had as much time before."""
        if row["status"] != "failed":
            return False
        had = _time_limit(str(row["error"]))
        return had is None or self._timeout is None or self._timeout > had

    def _check(self, frame: pd.DataFrame) -> None:
        """A function that raises is the user's to mend; one that is late is a finding."""
        for _, row in frame[frame["status"] == "failed"].iterrows():
            error = str(row["error"])
            if _time_limit(error) is not None:
                continue
            given = [name for name in ARGUMENTS if name in row]
            settings = ", ".join(
                f"{name}={row[name]:g}" if name != "betas" else f"betas={tuple(row[name])}"
                for name in given
            )
            runs = self._store.frame()
            done = int((runs["status"] == "done")[runs["function"] == self._function].sum())
            kept = f": {done} finished runs are kept in {self._store.path}" if done else ""
            raise InputError(
                f"train({settings}) failed: {last_line(error)}. Mend it and call again{kept}."
            )


def _time_limit(error: str) -> float | None:
    return (
        float(error.removeprefix(f"{LATE} after ").removesuffix(" s"))
        if (error.startswith(LATE))
        else None
    )


def scores_of(
    train: TrainFunction,
    n_train: int,
    recipes: Sequence[AnyRecipe],
    *,
    epochs: float,
    n_seeds: int,
    first_seed: int,
    store: RunStore,
    engine: Engine,
    progress: Progress,
) -> Array:
    """(recipes, seeds): each recipe's scores over the same seeds, without any tuning."""
    trials = Trials(
        function=identity(train).name,
        packed=pack(train, "train"),
        timeout=None,
        n_train=n_train,
        epochs=epochs,
        first_seed=first_seed,
        store=store,
        engine=engine,
        budget=Budget(),
        progress=progress,
        interface=interface_of(train),
    )
    return trials.scores(recipes, n_seeds)


def means(scores: Array) -> Array:
    """Mean score of each recipe; minus infinity where any seed gave none."""
    return np.where(np.isnan(scores).any(axis=1), -np.inf, np.nan_to_num(scores).mean(axis=1))


def peak_frame(sizes: Iterable[int], scores: Array) -> pd.DataFrame:
    """Scores as :func:`noisescale.find_peak` wants them."""
    rows = [
        {
            "batch_size": size,
            "seed": seed,
            "score": value,
            "status": "diverged" if np.isnan(value) else "done",
        }
        for size, row in zip(sizes, scores, strict=True)
        for seed, value in enumerate(row)
    ]
    return pd.DataFrame(rows)
