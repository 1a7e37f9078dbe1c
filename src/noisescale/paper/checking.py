"""Shipped data checked here: a sample of the runs run again, and a slice of the other sections.

The whole takes a given time and no longer. A first round of runs tells how fast this machine is;
then come the slices for which there is time, and a second round of runs fills what is left.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from noisescale.data import DataUnavailableError, load_kept
from noisescale.jobs.engines import Engine
from noisescale.jobs.execution import execute
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from noisescale.paper.section import Section
from noisescale.paper.shipped import runs_of, shipped
from noisescale.paper.slices import SLICES, WORK, Compared, SliceRun, compare, shipped_data
from noisescale.paper.spot_check import (
    Agreement,
    Chance,
    Conclusion,
    Pair,
    chances,
    choose,
    classify,
    conclude_agreement,
    shifts_noticed,
)
from noisescale.seeds import random_stream
from noisescale.sweep import RunConfig, run_sweep
from noisescale.sweep.tables import config_of

_FIRST_SHARE = 0.08  # of the time for the first round: enough to know how fast runs are
_SLICES_SHARE = 0.4  # of what is left, at the most
_FILLED = 0.9  # of what is left: the workers' last runs do not end together
_FINAL = {"done", "diverged"}
_INTERRUPTED = "interrupted"
_NO_IMAGES = "MNIST is not on this machine and could not be fetched"
_NO_TIME = "not checked: no run came to its end within the time, --minutes gives it more"


@dataclass(frozen=True)
class SpotCheck:
    """What measuring a sample again says of the shipped data.

    Attributes:
        seed: of the sample; ``minutes`` it was to take, ``seconds`` it took.
        stopped: why it was not run, or not to its end; None if it was.
        runs: the comparison of runs; None if none was run.
        slices: the comparison of parts of the other sections.
        left_out: the sections of which no part was measured, for want of time.
        shifts: by section, whether this sample would notice that all its runs are off.
        chances: that a single wrong run is noticed, by its error.
        speed: how long runs take here over how long they took.
        failed: what ended in an error, and in which; each is a disagreement.
    """

    seed: int
    minutes: float
    seconds: float
    stopped: str | None
    runs: Agreement | None
    slices: list[Compared]
    left_out: list[str]
    shifts: dict[str, bool]
    chances: list[Chance]
    speed: float
    failed: list[str]

    @property
    def conclusion(self) -> Conclusion | None:
        """Of runs and slices together; None if no run was made.

        What shipped is the result of code that ran: that it ends in an error here disagrees.
        """
        if self.failed or any(not one.agrees for one in self.slices):
            return "disagree"
        return None if self.runs is None else self.runs.conclusion

    @property
    def interrupted(self) -> bool:
        """Whether it was ended by Ctrl-C."""
        return self.stopped == _INTERRUPTED

    def __str__(self) -> str:
        told = []
        if self.failed:
            n = len(self.failed)
            what = "re-measurement" if n == 1 else "re-measurements"
            told.append(f"disagree: {n:,} {what} ended in an error, the first: {self.failed[0]}")
        if self.runs is not None:
            told.append(str(self.runs))
        if self.slices:
            off = [one for one in self.slices if not one.agrees]
            sections = ", ".join(dict.fromkeys(one.section for one in off or self.slices))
            n = sum(one.n for one in self.slices)
            verdict = f"disagree in {sections}" if off else f"agree (sections {sections})"
            told.append(f"{n:,} other numbers measured again: {verdict}")
        if self.stopped is not None:
            told.append(f"the check was {self.stopped}" if told else f"not checked: {self.stopped}")
        if self.runs is None and self.stopped is None and not self.failed:
            told.append("no run came to its end within the time" if told else _NO_TIME)
        return "; ".join(told)


def check_shipped(
    sections: Sequence[Section],
    *,
    minutes: float,
    seed: int,
    engine: Engine,
    progress: Progress,
    keep: RunStore | None = None,
) -> SpotCheck:
    """Run a sample again within ``minutes``, always afresh; ``keep`` is given the runs, too.

    An interruption (Ctrl-C) ends the check, which then rests on what was finished.
    """
    began = time.monotonic()
    runs = shipped_runs(sections)
    progress.line("spot check: loading the images")
    there = {name for name in {"mnist", *runs["data"]} if _can_load(name)}
    slices = [section.id for section in sections] if "mnist" in there else []
    check = _Check(runs, runs["data"].isin(there), slices, seed)
    if not check.possible:
        return check.conclude(minutes, time.monotonic() - began, _NO_IMAGES)
    stopped = None
    with TemporaryDirectory() as folder, RunStore(folder, write=True) as store:
        try:
            check.run(store, _UntilEngine(engine, began + 60 * minutes), progress)
        except _OutOfTimeError:
            pass
        except KeyboardInterrupt:
            stopped = _INTERRUPTED
        finally:
            engine.stop()
        check.collect(store)
        if keep is not None:
            keep.add(store.records(check.configs))
    return check.conclude(minutes, time.monotonic() - began, stopped)


def _can_load(name: str) -> bool:
    try:
        load_kept(name)
    except DataUnavailableError:
        return False
    return True


def shipped_runs(sections: Sequence[Section]) -> pd.DataFrame:
    """The runs that ship with the sections, classified; one of several is the smallest section's.

    ``taken`` are the steps at which the metrics of a run were taken, where they ship.
    """
    parts = []
    for section in sections:
        kept = shipped(section)
        for runs in [] if kept is None else runs_of(kept.data):
            taken = runs.curves.groupby("key")["step"].agg(tuple)
            frame = runs.frame.assign(section=section.id, taken=runs.frame["key"].map(taken))
            parts.append(frame)
    if not parts:
        names = ["key", "section", "data", "regime", "duration", "noise", "taken"]
        return pd.DataFrame(columns=names)
    whole = pd.concat(parts, ignore_index=True)
    size = whole.groupby("section")["key"].transform("nunique")
    whole = whole.assign(size=size).sort_values(["size", "section", "key"])
    whole = whole.drop_duplicates("key").drop(columns="size")
    return classify(whole[whole["status"] == "done"].sort_values("key", ignore_index=True))


class _OutOfTimeError(Exception):
    """The time for the check is over."""


class _UntilEngine:
    """An engine that works until a time; then it ends the sweep, wherever that is."""

    def __init__(self, engine: Engine, deadline: float) -> None:
        self._engine, self._deadline = engine, deadline

    def seconds_left(self) -> float:
        """Of all workers together."""
        return max(self._deadline - time.monotonic(), 0.0) * self._engine.capacity()

    def submit(self, work: str, *args: Any) -> Future[list[dict[str, Any]]]:
        """Have the runs executed."""
        return self._engine.submit(work, *args)

    def capacity(self) -> int:
        """As the engine says. A sweep asks at least once a second, so here it is ended."""
        if time.monotonic() > self._deadline:
            raise _OutOfTimeError
        return self._engine.capacity()

    def restart(self) -> None:
        """Start it again after a broken pool."""
        self._engine.restart()

    def stop(self) -> None:
        """Stop it."""
        self._engine.stop()


class _Check:
    """A check on its way: what to run, and what came of it."""

    def __init__(
        self, runs: pd.DataFrame, there: "pd.Series[bool]", sections: Sequence[str], seed: int
    ) -> None:
        self._runs = runs.set_index("key", drop=False)
        self._there, self._seed = self._runs[there.to_numpy(bool)], seed
        self._slices = [name for name, one in SLICES.items() if {*one.sections} & {*sections}]
        covered = {*runs["section"]}.union(*(one.sections for one in SLICES.values()))
        # Of figure 11 every part takes minutes.
        self._left_out = [s for s in sections if s not in covered and shipped_data(s) is not None]
        self._compared: list[Compared] = []
        self._failed: list[str] = []
        self._made = pd.DataFrame()
        self.configs: dict[str, RunConfig] = {}

    @property
    def possible(self) -> bool:
        """Whether anything can be run: its images are there."""
        return bool(self._slices) or not self._there.empty

    def run(self, store: RunStore, engine: _UntilEngine, progress: Progress) -> None:
        """Some runs, slices, and runs again."""
        self._run_some(store, engine, progress, _FIRST_SHARE * engine.seconds_left())
        self.collect(store)
        left = _SLICES_SHARE * engine.seconds_left()
        if slices := self._choose_slices(left / self._speed):
            progress.line(f"spot check: parts of {', '.join(run.name for run in slices)}")
            execute(
                slices,
                store,
                engine,
                (WORK,),
                retries=0,
                final=_FINAL,
                n_stored=0,
                progress=progress,
            )
        self._run_some(store, engine, progress, _FILLED * engine.seconds_left() / self._speed)

    def _choose_slices(self, seconds: float) -> list[SliceRun]:
        """Those for which there is time: the first, and others in an order of chance."""
        others = self._slices[1:]
        random_stream(self._seed, "slices").shuffle(others)
        chosen = []
        for name in (*self._slices[:1], *others):
            if SLICES[name].seconds <= seconds:
                chosen.append(SliceRun(name))
                seconds -= SLICES[name].seconds
            else:
                self._left_out += SLICES[name].sections
        return chosen

    def _run_some(
        self, store: RunStore, engine: Engine, progress: Progress, seconds: float
    ) -> None:
        """A sample that takes so many seconds of one core, by the shipped durations."""
        keys = choose(self._there, seconds=seconds, seed=self._seed, without=[*self.configs])
        plan = {}
        for _, row in self._runs.loc[keys].iterrows():
            taken = row["taken"] if isinstance(row["taken"], tuple) else ()
            if (config := config_of(row, taken)) is not None:
                plan[config.key] = config
        self.configs |= plan
        if plan:
            progress.line(f"spot check: {len(plan)} of {len(self._runs):,} runs, run again")
            run_sweep(plan.values(), store, engine, retries=1, progress=progress)

    def collect(self, store: RunStore) -> None:
        """Take what has come to its end out of the store."""
        self._made = store.frame(self.configs)
        slices = {run.key: name for name in self._slices if (run := SliceRun(name))}
        self._compared, self._failed = [], []
        for _, row in store.frame(slices).iterrows():
            name = slices[row["key"]]
            if row["status"] == "done":
                self._compared += compare(name, row["values"])
            else:
                self._failed.append(f"section {name}: {_reason(row['error'])}")
        for _, row in self._made[self._made["status"] == "failed"].iterrows():
            self._failed.append(f"{_describe(row)}: {_reason(row['error'])}")

    @property
    def _work(self) -> float:
        """Of the runs that were made, in seconds by the shipped durations."""
        return float(self._runs.loc[self._made["key"], "duration"].sum())

    @property
    def _speed(self) -> float:
        """How long the runs took here over how long they had taken; 1 if none was made."""
        made = self._made[self._made["status"] != "failed"] if len(self._made) else self._made
        if made.empty:
            return 1.0
        before = self._runs.loc[made["key"], "duration"].sum()
        return float(made["duration"].sum() / max(before, 1e-9))

    def conclude(self, minutes: float, seconds: float, stopped: str | None) -> SpotCheck:
        """What follows."""
        pairs = self._pairs()
        runs = conclude_agreement(pairs, len(self._runs)) if pairs else None
        return SpotCheck(
            seed=self._seed,
            minutes=minutes,
            seconds=round(seconds, 1),
            stopped=stopped,
            runs=runs,
            slices=self._compared,
            left_out=sorted(self._left_out),
            shifts={} if runs is None else shifts_noticed(runs, sorted({*self._runs["section"]})),
            chances=[] if runs is None else chances(self._runs, runs, seconds=self._work),
            speed=self._speed,
            failed=self._failed,
        )

    def _pairs(self) -> list[Pair]:
        pairs = []
        for _, row in self._made.iterrows():
            if row["status"] == "failed":
                continue
            before = self._runs.loc[row["key"]]
            diverged = row["status"] == "diverged"
            pairs.append(
                Pair(
                    key=row["key"],
                    section=before["section"],
                    regime=before["regime"],
                    run=_describe(row),
                    shipped=float(before["test_accuracy"]),
                    here=1 / row["n_classes"] if diverged else float(row["test_accuracy"]),
                    noise=float(before["noise"]),
                    relative_size=float(before["relative_size"]),
                    seconds=float(row["duration"]),
                )
            )
        return sorted(pairs, key=lambda pair: (pair.section, pair.run))


def _describe(row: "pd.Series[Any]") -> str:
    """A run in words."""
    told = f"ε = {row['learning_rate']:g}, m = {row['momentum']:g}, N = {row['n_train']:,}, "
    told += f"B = {row['batch_size']:,}, {row['steps']:,} updates, seed {row['seed']}"
    return told if row["data"] == "mnist" else f"{row['data']}, {told}"


def _reason(error: Any) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[-1]
