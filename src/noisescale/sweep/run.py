"""Running a plan: what the store lacks of it, and the plan's runs as a frame."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.data import load_kept
from noisescale.jobs.execution import complete
from noisescale.jobs.progress import Progress
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
    frame = complete(
        check_plan(plan),
        store,
        (_TRAINING,),
        executor,
        workers=workers,
        retries=retries,
        retry_failed=retry_failed,
        progress=progress,
        before=_have_data,
    )
    # Also where no run has come to its end.
    return frame.assign(**{name: math.nan for name in METRICS if name not in frame})


def _have_data(missing: Sequence[RunConfig]) -> None:
    """Data that cannot be had are refused once, here, not by every run."""
    for name in sorted({run.data for run in missing}):
        load_kept(name)
