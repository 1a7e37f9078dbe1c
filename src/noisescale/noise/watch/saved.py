"""A watched run as a file: written by ``watch.save``, read again without the run.

``.csv`` holds the history, a row a measured update. ``.json`` holds all of ``state_dict``.
"""

import io
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescale.checks import check_path
from noisescale.errors import InputError
from noisescale.files import read_text, write_whole
from noisescale.noise.watch.advice import Advice, advise
from noisescale.saved import read_saved, write_saved
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from noisescale.noise.watch.record import NoiseRecord, Row

KIND = "noisescale watch"
SUFFIXES = (".csv", ".json")


def save(record: "NoiseRecord", path: Path | str) -> None:
    """Write what was measured into a ``.csv`` or ``.json`` file."""
    path = check_path("path", path)
    if _suffix(path) == ".csv":
        write_whole(path, record.history.to_csv(index=False))
    else:
        write_saved(path, KIND, record.state_dict())


def load(path: Path | str) -> "NoiseRecord":
    """What :func:`save` wrote; of a ``.csv`` its rows, averaged as they are by default."""
    from noisescale.noise.watch.record import NoiseRecord

    path = check_path("path", path)
    if _suffix(path) == ".csv":
        rows = _rows_of(read_text(path), path)
        # Weighted examples count for no more than there are; tokens do.
        tokens = any(row.batch_size > 1.001 * row.n_examples for row in rows)
        record = NoiseRecord(unit="token" if tokens else "example")
        record.rows = rows
        record.average_again()
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
    row = record.rows[-1]
    estimate = Estimate(row.critical_batch_size, low=row.low, high=row.high)
    return advise(
        estimate,
        batch_size=record.usual("batch_size"),
        latest=Estimate(row.latest, low=row.latest_low, high=row.latest_high),
        learning_rate=row.learning_rate,
        momentum=row.momentum,
        dampening=row.dampening,
        n_train=record.n_train,
        n_examples=record.usual("n_examples"),
        unit=record.unit,
        adam=record.adam,
    )


def _rows_of(text: str, path: Path) -> "list[Row]":
    import pandas as pd

    from noisescale.noise.watch.record import Row, check_rows

    try:
        frame = pd.read_csv(io.StringIO(text))
        names = [field.name for field in fields(Row) if field.name in frame]
        wanted = [field.name for field in fields(Row) if field.default is MISSING]
        if lacking := [name for name in wanted if name not in frame]:
            raise ValueError(f"it has no column {lacking[0]}")
        kinds = dict.fromkeys(names, float) | {"update": int, "n_examples": int}
        columns = frame[names].astype(kinds)
        rows = [
            Row(**dict(zip(names, row, strict=True)))
            for row in columns.itertuples(index=False, name=None)
        ]
        check_rows(rows)
        return rows
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is no history of a watched run: {reason}.") from None


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a history is a file that ends in {' or '.join(SUFFIXES)}, got {path}.")
    return path.suffix.lower()
