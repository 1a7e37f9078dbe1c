"""A watched run as a file: written by ``watch.save``, read again without the run.

``.csv`` holds the history, a row a measured update. ``.json`` holds all of ``state_dict``.
"""

import io
import math
from dataclasses import fields
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_path
from noisescale.errors import InputError
from noisescale.files import read_text, write_whole
from noisescale.noise.watch.advice import Advice, advise
from noisescale.noise.watch.ratio import RunningRatio
from noisescale.saved import read_saved, write_saved
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from noisescale.noise.watch.record import NoiseRecord, Row

_RECENT = 101  # updates
KIND = "noisescale watch"
SUFFIXES = (".csv", ".json")


class _LastRow(RunningRatio):
    """The answer of a history's last row, which holds neither averages nor their decay."""

    def __init__(self, rows: "list[Row]") -> None:
        super().__init__(n_updates=len(rows))
        self.weight = self.weight_sq = self.signal = self.noise = math.nan
        self.row = rows[-1]

    def take(self, signal: float, noise: float) -> bool:
        raise InputError("a history has rows alone, which cannot go on: load a .json instead.")

    def interval(self, level: float = 0.95) -> Estimate:
        if level != 0.95:
            raise InputError(f"a history has intervals of 0.95 alone, got a level of {level}.")
        row = self.row
        return Estimate(row.critical_batch_size, low=row.low, high=row.high, n=self.n_updates)

    def described(self) -> str:
        many = "the only row" if self.n_updates == 1 else f"the last of {self.n_updates} rows"
        return f"{self._answer()} at update {self.row.update} ({many})"


def save(record: "NoiseRecord", path: Path | str) -> None:
    """Write what was measured into a ``.csv`` or ``.json`` file."""
    path = check_path("path", path)
    if _suffix(path) == ".csv":
        write_whole(path, record.history.to_csv(index=False))
    elif isinstance(record.whole, _LastRow):
        raise InputError(
            f"a record that was read from a .csv has its rows alone: {path} cannot be "
            "more than that; save it as a .csv."
        )
    else:
        write_saved(path, KIND, record.state_dict())


def load(path: Path | str) -> "NoiseRecord":
    """What :func:`save` wrote; of a ``.csv`` its rows and the answer of the last one alone."""
    from noisescale.noise.watch.record import NoiseRecord

    path = check_path("path", path)
    if _suffix(path) == ".csv":
        rows = _rows_of(read_text(path), path)
        # Weighted examples count for no more than there are; tokens do.
        tokens = any(row.batch_size > 1.001 * row.n_examples for row in rows)
        record = NoiseRecord(unit="token" if tokens else "example")
        record.rows = rows
        if rows:
            record.whole = _LastRow(rows)
        return record

    def read(state: Any) -> NoiseRecord:
        record = NoiseRecord(n_train=state["n_train"], unit=state["unit"])
        record.load_state_dict(state)
        return record

    return read_saved(path, KIND, read)


def advice_from(record: "NoiseRecord") -> Advice:
    """Advice from the last measured update, for the usual batch: an epoch's last may be shorter."""
    if not record.rows:
        raise InputError("nothing has been measured yet: train for some updates, then ask again.")
    row, recent = record.rows[-1], record.rows[-_RECENT:]
    batch_size = median_high(row.batch_size for row in recent)
    n_examples = median_high(row.n_examples for row in recent)
    estimate = Estimate(row.critical_batch_size, low=row.low, high=row.high)
    return advise(
        estimate,
        batch_size=batch_size,
        learning_rate=row.learning_rate,
        momentum=row.momentum,
        n_train=record.n_train,
        n_examples=n_examples,
        unit=record.unit,
    )


def _rows_of(text: str, path: Path) -> "list[Row]":
    import pandas as pd

    from noisescale.noise.watch.record import Row, check_rows

    try:
        frame = pd.read_csv(io.StringIO(text))
        names = [field.name for field in fields(Row)]
        if lacking := [name for name in names if name not in frame]:
            raise ValueError(f"it has no column {lacking[0]}")
        kinds = dict.fromkeys(names, float) | {"update": int, "n_examples": int}
        columns = frame[names].astype(kinds)
        rows = [Row(*row) for row in columns.itertuples(index=False, name=None)]
        check_rows(rows)
        return rows
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is no history of a watched run: {reason}.") from None


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a history is a file that ends in {' or '.join(SUFFIXES)}, got {path}.")
    return path.suffix.lower()
