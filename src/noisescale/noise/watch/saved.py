"""A watched run as a file: written by ``watch.save``, read again without the run.

``.csv`` holds the history, a row a measured update. ``.json`` holds all of ``state_dict``; NaN is
null there, and the infinite end of an interval the word "infinite", which JSON has no number for.
"""

import io
import json
import math
from dataclasses import fields
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any

from noisescale.errors import InputError
from noisescale.noise.watch.advice import Advice, advise
from noisescale.uncertainty import Estimate

if TYPE_CHECKING:
    from noisescale.noise.watch.record import NoiseRecord, Row

_RECENT = 101  # updates
_KIND = "noisescale watch"
_INFINITE = "infinite"
SUFFIXES = (".csv", ".json")


def save(record: "NoiseRecord", path: Path | str) -> None:
    """Write what was measured into a ``.csv`` or ``.json`` file."""
    path = Path(path)
    if _suffix(path) == ".csv":
        text = record.history.to_csv(index=False)
    else:
        content = {"kind": _KIND} | record.state_dict()
        text = json.dumps(to_json(content), indent=1, allow_nan=False)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the history cannot be written to {path} ({error.strerror}): choose another place."
        ) from None


def load(path: Path | str) -> "NoiseRecord":
    """What :func:`save` wrote; of a ``.csv`` its rows alone, from which averages cannot go on."""
    from noisescale.noise.watch.record import NoiseRecord

    path = Path(path)
    suffix = _suffix(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(f"the history {path} cannot be read ({reason}).") from None
    if suffix == ".csv":
        rows = _rows_of(text, path)
        # Weighted examples count for no more than there are; tokens do.
        tokens = any(row.batch_size > 1.001 * row.n_examples for row in rows)
        record = NoiseRecord(unit="token" if tokens else "example")
        record.rows = rows
        return record
    try:
        content = from_json(json.loads(text))
        if content.pop("kind", None) != _KIND:
            raise KeyError("kind")
        record = NoiseRecord(n_train=content["n_train"], unit=content["unit"])
        record.load_state_dict(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no history that watch.save wrote ({type(error).__name__}: {error})."
        ) from None
    return record


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

    from noisescale.noise.watch.record import Row

    try:
        frame = pd.read_csv(io.StringIO(text))
        names = [field.name for field in fields(Row)]
        if lacking := [name for name in names if name not in frame]:
            raise ValueError(f"it has no column {lacking[0]}")
        kinds = dict.fromkeys(names, float) | {"update": int, "n_examples": int}
        columns = frame[names].astype(kinds)
        return [Row(*row) for row in columns.itertuples(index=False, name=None)]
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is no history of a watched run: {reason}.") from None


def _suffix(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"a history is a file that ends in {' or '.join(SUFFIXES)}, got {path}.")
    return path.suffix.lower()


def to_json(value: Any) -> Any:
    """With words for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: to_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return _INFINITE if value == math.inf else None
    return value


def from_json(value: Any) -> Any:
    """What :func:`to_json` was given."""
    if isinstance(value, dict):
        # What may be unknown is a number; only n_train may be nothing.
        return {
            key: math.nan if part is None and key != "n_train" else from_json(part)
            for key, part in value.items()
        }
    if isinstance(value, list):
        return [from_json(part) for part in value]
    return math.inf if value == _INFINITE else value
