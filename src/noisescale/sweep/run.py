"""Running a plan: what the store lacks of it, and the plan's runs as a frame."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.data import load_kept
from noisescale.jobs.execution import complete
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore, resumable
from noisescale.jobs.versions import older_version
from noisescale.sweep.config import METRICS, RunConfig, model_identity
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
    reuse: bool = False,
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
        reuse: take stored runs of a model of your own for its runs although it has changed since.
        progress: True for bars on a terminal, or lines elsewhere; or a :class:`noisescale.Progress`
            of your own.

    Every run uses one thread, wherever it runs, so the results do not depend on the workers.
    Interrupt it at any time: finished runs are in the store, and the same call goes on from there.
    """
    runs: Mapping[str, RunConfig] = check_plan(plan)
    with ExitStack() as closing:
        if not isinstance(store, RunStore):
            store = closing.enter_context(RunStore(store, write=True))
        closing.enter_context(resumable(store))
        for model in sorted({run.model for run in runs.values()} - {"dense"}):
            runs = _by_stored_keys(model, runs, store, reuse=reuse)
        frame = complete(
            runs,
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


def _by_stored_keys(
    model: str, runs: Mapping[str, RunConfig], store: RunStore, *, reuse: bool
) -> dict[str, RunConfig]:
    """The runs by the keys under which they are looked up: those of an older model, with ``reuse``.

    That the model has changed is told where the store has such runs, and none of its own.
    """
    stored = store.frame().reindex(
        columns=["key", "model", "model_fingerprint", "finished", "status"]
    )
    stored = stored[(stored["model"] == model) & (stored["status"] != "failed")].set_index("key")
    stored["version"] = stored["model_fingerprint"].astype("string").fillna("")
    older = {
        run.key_with(version): key
        for version in stored["version"].unique()
        for key, run in runs.items()
        if run.model == model and key not in stored.index
    }
    stored = stored[stored.index.isin(older.keys())]
    version, told = older_version("model", model, model_identity(model), stored, reuse=reuse)
    for note in told:
        warnings.warn(note, RuntimeWarning, stacklevel=3)
    if version is None:
        return dict(runs)
    taken = {older[key]: key for key in stored.index[stored["version"] == version]}
    return {taken.get(key, key): run for key, run in runs.items()}


def _have_data(missing: Sequence[RunConfig]) -> None:
    """Data that cannot be had are refused once, here, not by every run."""
    for name in sorted({run.data for run in missing}):
        load_kept(name)
