"""Running a plan: what the store lacks of it, and the plan's runs as a frame."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.checks import check_whole
from noisescale.data import load_kept
from noisescale.jobs.engines import engine_for
from noisescale.jobs.execution import execute
from noisescale.jobs.progress import Progress, chosen_progress
from noisescale.jobs.store import RunStore
from noisescale.sweep.config import METRICS, RunConfig
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
            ``dask.distributed.Client``, the address of a Dask scheduler, or an engine of your own
            (:class:`noisescale.jobs.engines.Engine`), which is left running.
        workers: how many local processes; as many as cores unless given.
        retries: how often a run that failed is tried again before it is stored as failed.
        retry_failed: try runs again that the store holds as failed.
        progress: True for bars on a terminal, or lines elsewhere; or a :class:`noisescale.Progress`
            of your own.

    Every run uses one thread, wherever it runs, so the results do not depend on the workers.
    Interrupt it at any time: finished runs are in the store, and the same call goes on from there.
    """
    runs = check_plan(plan)
    retries = check_whole("retries", retries, at_least=0)
    final = {"done", "diverged"} if retry_failed else {"done", "diverged", "failed"}
    opened = store if isinstance(store, RunStore) else RunStore(store, write=True)
    try:
        stored = opened.statuses(runs)
        missing = [run for key, run in runs.items() if stored.get(key) not in final]
        for name in sorted({run.data for run in missing}):
            load_kept(name)  # what cannot be had is said once, here, not by every run
        if missing:
            with (
                chosen_progress(progress) as shown,
                engine_for(executor, workers=workers) as engine,
            ):
                execute(
                    missing,
                    opened,
                    engine,
                    (_TRAINING,),
                    retries=retries,
                    final=final,
                    n_stored=len(runs) - len(missing),
                    progress=shown,
                )
        frame = opened.frame(runs)
        # Also where no run has come to its end.
        return frame.assign(**{name: math.nan for name in METRICS if name not in frame})
    finally:
        if opened is not store:
            opened.close()
