"""Running what a store lacks, whatever fails on the way.

The rules, the same on every engine: a run that raises is tried again, up to ``retries`` times; the
runs in flight when a worker dies are tried again one by one, and a run that was there too often is
tried with nothing beside it, so that only a run that kills its worker itself is blamed. What
keeps failing is stored as ``failed`` with its traceback, and the sweep goes on.
"""

import socket
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from noisescale._version import __version__
from noisescale.checks import check_flag, check_whole
from noisescale.jobs.engines import Engine, check_executor, engine_for, is_death
from noisescale.jobs.progress import Progress, Run, chosen_progress
from noisescale.jobs.record import RESULT_FORMAT
from noisescale.jobs.store import RunSink, RunStore

Record = dict[str, Any]


class Runnable(Run, Protocol):
    """What can be executed into a store: a run of ours, or a call of a user's function."""

    @property
    def key(self) -> str:
        """Its name in a store."""
        ...

    @property
    def canonical(self) -> str:
        """The JSON that the key is the hash of."""
        ...

    @property
    def shape(self) -> tuple[object, ...]:
        """What short runs must share to be executed together."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """What the worker is given."""
        ...


# Runs are batched into tasks of about this much work, a second or so on one core: long against
# the cost of a task, short against what a kill may lose.
_TASK_COST = 4e10


def complete(
    runs: Mapping[str, Runnable],
    store: Path | str | RunStore,
    work: tuple[Any, ...],
    executor: Any = None,
    *,
    workers: int | None = None,
    retries: int = 2,
    retry_failed: bool = False,
    progress: bool | Progress = False,
    before: Callable[[Sequence[Any]], None] = lambda missing: None,
) -> pd.DataFrame:
    """Run what ``store`` lacks of ``runs``, by key; all of them as a frame.

    ``before`` is called with the runs that are missing, if any, before the first of them begins.
    """
    retries = check_whole("retries", retries, at_least=0)
    check_executor(executor, workers)
    check_flag("retry_failed", retry_failed)
    final = {"done", "diverged"} if retry_failed else {"done", "diverged", "failed"}
    opened = store if isinstance(store, RunStore) else RunStore(store, write=True)
    try:
        stored = opened.statuses(runs)
        missing = [run for key, run in runs.items() if stored.get(key) not in final]
        if missing:
            before(missing)
            with (
                chosen_progress(progress) as shown,
                engine_for(executor, workers=workers) as engine,
            ):
                execute(
                    missing,
                    opened,
                    engine,
                    work,
                    retries=retries,
                    final=final,
                    n_stored=len(runs) - len(missing),
                    progress=shown,
                )
        return opened.frame(runs)
    finally:
        if opened is not store:
            opened.close()


def execute(
    runs: Sequence[Runnable],
    store: RunSink,
    engine: Engine,
    work: tuple[Any, ...],
    *,
    retries: int,
    final: set[str],
    n_stored: int,
    progress: Progress,
) -> None:
    """Run all of ``runs`` into the store.

    ``work`` is the function that workers call, as ``module:function``, and its first arguments; the
    last is a list of runs as dictionaries. Runs that another process stores meanwhile, with one of
    the statuses ``final``, are left out.
    """
    with progress.sweep(runs, n_stored=n_stored):
        _Sweep(engine, store, work, retries, final, progress).drive(runs)


class _Sweep:
    """The runs of one sweep on their way through an engine."""

    def __init__(
        self,
        engine: Engine,
        store: RunSink,
        work: tuple[Any, ...],
        retries: int,
        final: set[str],
        progress: Progress,
    ) -> None:
        self._engine, self._store, self._progress = engine, store, progress
        self._work, self._retries, self._final = work, retries, final
        self._waiting: deque[list[Runnable]] = deque()
        self._alone: deque[Runnable] = deque()  # to be tried with nothing beside them
        self._flying: dict[Future[list[Record]], list[Runnable]] = {}
        self._landed: deque[tuple[list[Runnable], Future[list[Record]]]] = deque()
        self._one_alone = False  # in flight
        self._failures: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()
        self._broken = False

    def drive(self, runs: Sequence[Runnable]) -> None:
        """Execute the runs and store their records."""
        self._waiting.extend(_tasks(runs, self._engine.capacity()))
        try:
            while self._waiting or self._alone or self._flying:
                self._launch()
                done, _ = wait(self._flying, timeout=1.0, return_when=FIRST_COMPLETED)
                self._landed.extend((self._flying.pop(future), future) for future in done)
                self._broken |= any(_broke(future) for future in done)
                self._launch()  # before the results are written: no worker need wait for that
                while self._landed:
                    self._land(*self._landed[0])
                    self._landed.popleft()
        except BaseException:
            self._rescue()
            raise

    def _launch(self) -> None:
        """Keep as much in flight as the engine takes."""
        if self._broken:
            if self._flying:  # all of it is lost; hear it before starting again
                return
            self._engine.restart()
            self._broken = False
        self._one_alone &= bool(self._flying)
        while len(self._flying) < self._engine.capacity() and not self._one_alone:
            if self._waiting:
                task = self._waiting.popleft()
            elif self._alone and not self._flying and not self._landed:
                task = [self._alone.popleft()]
                self._one_alone = True
            else:
                return
            task = self._still_missing(task)
            if not task:
                self._one_alone = False
                continue
            try:
                future = self._engine.submit(*self._work, [run.to_dict() for run in task])
            except BrokenExecutor:
                self._waiting.appendleft(task)
                self._broken = True
                return
            self._flying[future] = task

    def _still_missing(self, task: list[Runnable]) -> list[Runnable]:
        """Without the runs that another process has stored in the meantime."""
        stored = self._store.statuses(run.key for run in task)
        left = []
        for run in task:
            if stored.get(run.key) in self._final and not self._failures[run.key]:
                self._progress.finished(run, {"status": stored[run.key]})
            else:
                left.append(run)
        return left

    def _land(self, task: list[Runnable], future: Future[list[Record]]) -> None:
        error = CancelledError("cancelled") if future.cancelled() else future.exception()
        if error is not None:
            if is_death(error):
                self._bury(task, error)
            else:
                self._retry(task, "".join(traceback.format_exception(error)))
            return
        good = []
        for run, record in zip(task, future.result(), strict=True):
            if record["format"] != RESULT_FORMAT:
                self._retry([run], f"a worker returned results of format {record['format']}.")
            elif record["status"] == "failed":
                self._retry([run], record["error"])
            else:
                good.append((run, record))
        self._keep(good)

    def _keep(self, results: list[tuple[Runnable, Record]]) -> None:
        if results:
            self._store.add(
                record | {"key": run.key, "config": run.canonical} for run, record in results
            )
        for run, record in results:
            self._progress.finished(run, record)

    def _retry(self, task: list[Runnable], error: str) -> None:
        """Runs that raised: again, by themselves, or given up."""
        for run in task:
            self._failures[run.key] += 1
            if self._failures[run.key] > self._retries:
                self._give_up(run, error)
            else:
                self._waiting.append([run])

    def _bury(self, task: list[Runnable], error: BaseException) -> None:
        """Runs whose worker died: again, by themselves; alone if it happens too often."""
        for run in task:
            self._deaths[run.key] += 1
            deaths = self._deaths[run.key]
            if deaths <= self._retries:
                self._waiting.append([run])
            elif deaths == self._retries + 1:
                self._alone.append(run)
            else:
                self._give_up(
                    run,
                    f"its worker died {deaths} times, the last time with no other "
                    f"run beside it: {type(error).__name__}: {error}",
                )

    def _give_up(self, run: Runnable, error: str) -> None:
        failed = {
            "status": "failed",
            "error": error.encode("utf-8", "backslashreplace").decode(),
            "history": {},
            "final": {},
            "duration": 0.0,
            "versions": {"noisescale": __version__},
            "host": socket.gethostname(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._keep([(run, failed)])

    def _rescue(self) -> None:
        """Store what has finished but was not looked at yet."""
        for task, future in (*self._landed, *((t, f) for f, t in self._flying.items())):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._land(task, future)
            elif not getattr(future, "ends_with_pool", False):
                future.cancel()


def _broke(future: Future[Any]) -> bool:
    return not future.cancelled() and isinstance(future.exception(), BrokenExecutor)


def _tasks(runs: Sequence[Runnable], capacity: int) -> list[list[Runnable]]:
    """Runs in tasks: the longest first, short ones of the same shape together."""
    tasks: list[list[Runnable]] = []
    # Several tasks for every worker, so that none is idle while another has a heap.
    most = min(_TASK_COST, sum(run.cost for run in runs) / (8 * capacity))
    room = 0.0
    for run in sorted(runs, key=lambda run: (-run.cost, run.key)):
        if tasks and run.cost <= room and run.shape == tasks[-1][-1].shape:
            tasks[-1].append(run)
            room -= run.cost
        else:
            tasks.append([run])
            room = most - run.cost
    return tasks
