"""Which chapters a file, a folder or a store has."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from noisescale.cli.reports.page import Chapter
from noisescale.errors import InputError
from noisescale.jobs.store import FILE_NAME, RunStore, store_path
from noisescale.saved import kind_of

if TYPE_CHECKING:
    import pandas as pd

TUNING = "tuning.json"  # beside the runs of a tuning


def tuning_beside(store: Path) -> Path:
    """Where the result of a tuning lies whose runs a store has: a folder, or a file in one.

    A file that is not named as a folder's store is has one of its own, so that several fit beside
    each other.
    """
    path = store_path(store)
    own = path.name == FILE_NAME
    return path.with_name(TUNING if own else f"{path.stem}.{TUNING}")


def chapter_of_file(path: Path) -> Chapter:
    """The chapter of a saved result: a watched run, a tuning, or prequential evidence."""
    from noisescale.evidence.prequential import result as prequential
    from noisescale.noise.watch import saved as watch
    from noisescale.tune import saved as tuning

    kind = watch.KIND if path.suffix.lower() == ".csv" else kind_of(path)
    if kind == watch.KIND:
        from noisescale.cli.reports.watch import watch_chapter

        return watch_chapter(watch.load(path))
    if kind == tuning.KIND:
        from noisescale.cli.reports.tuning import tuning_chapter

        return tuning_chapter(tuning.load(path))
    if kind == prequential.SAVED:
        from noisescale.cli.reports.prequential import prequential_chapter

        return prequential_chapter(prequential.PrequentialEvidence.load(path))
    raise InputError(
        f"{path} is no result that noisescale saved: give what `save` of a watch, a tuning or a "
        "prequential evidence wrote."
    )


def chapters_of_store(path: Path, tell: Callable[[str], None]) -> list[Chapter]:
    """A chapter for each kind of run that the store holds, and for a tuning beside it."""
    from noisescale.cli.reports.prequential import stages_chapter
    from noisescale.cli.reports.sweep import sweep_chapter
    from noisescale.cli.reports.tuning import trials_chapter

    chapters = []
    if os.path.lexists(tuning := tuning_beside(path)):
        chapters.append(chapter_of_file(tuning))
    with RunStore(path) as store:
        frame, curves = store.frame(), store.curves()
    if frame.empty:
        raise InputError(f"the store {path} is empty: there is nothing to report yet.")
    tell(f"looking for peaks in {len(frame)} runs, and drawing")
    trials = frame["function"].notna() if "function" in frame else frame["key"].isna()
    stages = frame["procedure"].notna() if "procedure" in frame else frame["key"].isna()
    sweep = frame[~(trials | stages)]
    if len(sweep):
        chapters.append(sweep_chapter(_own(sweep), curves[curves["key"].isin(sweep["key"])]))
    if trials.any():
        chapters.append(trials_chapter(_own(frame[trials])))
    if stages.any():
        chapters.append(
            stages_chapter(_own(frame[stages]), curves[curves["key"].isin(frame["key"][stages])])
        )
    return chapters


def _own(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Without the columns of other kinds of runs."""
    return frame.dropna(axis="columns", how="all").assign(error=frame["error"])
