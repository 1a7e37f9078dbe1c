"""Running a plan: what the store lacks of it, and the plan's runs as a frame."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.checks import check_whole
from noisescale.data import load_kept
from noisescale.jobs.engines import open_engine
from noisescale.jobs.execution import execute
from noisescale.jobs.progress import Progress, show_progress
from noisescale.jobs.store import RunStore
from noisescale.sweep.config import RunConfig
from noisescale.sweep.plan import check_plan

_TRAINING = "noisescale.sweep.work:run_batch"


def run_sweep(
    plan: Iterable[RunConfig],
    store: Path | str | RunStore,
    executor: Any = None,
    *,
    workers: int | None = None,
    retries: int = 2,
    retry_failed: bool = False,
    progress: bool | Progress = False,
) -> pd.DataFrame:
    """Run what ``store`` lacks of ``plan``; the plan's runs as a frame, ordered by key.

    Args:
        plan: run configurations, as :func:`make_plan` gives.
        store: a file, or a folder that holds or will hold ``runs.sqlite``.
        executor: None for local processes, any ``concurrent.futures.Executor``, a
            ``dask.distributed.Client``, or the address of a Dask scheduler.
        workers: how many local processes; as many as cores unless given.
        retries: how often a run that failed is tried again before it is stored as failed.
        retry_failed: try runs again that the store holds as failed.
        progress: show bars on a terminal, or lines elsewhere.

    Every run uses one thread, wherever it runs, so the results do not depend on the workers.
    Interrupt it at any time: finished runs are in the store, and the same call goes on from there.
    """
    runs = check_plan(plan)
    retries = check_whole("retries", retries, at_least=0)
    if isinstance(progress, bool):
        with show_progress(silent=not progress) as shown:
            return _fill(runs, store, executor, workers, retries, retry_failed, shown)
    return _fill(runs, store, executor, workers, retries, retry_failed, progress)


def _fill(
    runs: dict[str, RunConfig],
    store: Path | str | RunStore,
    executor: Any,
    workers: int | None,
    retries: int,
    retry_failed: bool,
    progress: Progress,
) -> pd.DataFrame:
    opened = store if isinstance(store, RunStore) else RunStore(store, write=True)
    try:
        final = {"done", "diverged"} if retry_failed else {"done", "diverged", "failed"}
        stored = opened.statuses()
        missing = [run for key, run in runs.items() if stored.get(key) not in final]
        for name in sorted({run.data for run in missing}):
            load_kept(name)  # what cannot be had is said once, here, not by every run
        if missing:
            engine = open_engine(executor, workers=workers)
            try:
                execute(
                    missing,
                    opened,
                    engine,
                    (_TRAINING,),
                    retries=retries,
                    final=final,
                    n_stored=len(runs) - len(missing),
                    progress=progress,
                )
            finally:
                if engine is not executor:  # ours, not the caller's
                    engine.stop()
        return opened.frame(runs)
    finally:
        if opened is not store:
            opened.close()
