"""Finished runs in one SQLite file: nothing lost on a kill, readable while a sweep writes.

A row a run in the table ``runs``, keyed by the hash of its configuration. Writing needs a local
disk: SQLite's write-ahead log shares memory between processes, which network disks cannot.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pandas as pd

from noisescale.errors import InputError
from noisescale.sweep.disk import network_file_system

APPLICATION_ID = 0x6E736772  # "nsgr", at byte 68 of the file
STORE_FORMAT = 1  # SQLite's user_version, at byte 60
FILE_NAME = "runs.sqlite"

_SCHEMA = """
CREATE TABLE runs (
    key      TEXT NOT NULL PRIMARY KEY,
    config   TEXT NOT NULL CHECK (json_valid(config)),
    status   TEXT NOT NULL CHECK (status IN ('done', 'diverged', 'failed')),
    history  TEXT NOT NULL CHECK (json_valid(history)),
    final    TEXT NOT NULL CHECK (json_valid(final)),
    error    TEXT,
    duration REAL NOT NULL,
    versions TEXT NOT NULL CHECK (json_valid(versions)),
    host     TEXT NOT NULL,
    finished TEXT NOT NULL
) STRICT, WITHOUT ROWID
"""
_COLUMNS = ("key", "config", "status", "history", "final", "error", "duration", "versions", "host",
            "finished")  # fmt: skip
# A run that failed once may succeed later; a result is never replaced.
_INSERT = f"""
INSERT INTO runs ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
ON CONFLICT (key) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _COLUMNS[1:])}
WHERE runs.status = 'failed'
"""
METRICS = ("train_accuracy", "train_cross_entropy", "test_accuracy", "test_cross_entropy")


def store_path(path: Path | str) -> Path:
    """The store's file: ``path`` itself, or ``runs.sqlite`` in the folder ``path``."""
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


class RunStore:
    """The runs in one file. Opened for reading unless ``create`` or ``write`` is set."""

    def __init__(self, path: Path | str, *, write: bool = False) -> None:
        self.path = store_path(path)
        if (kind := network_file_system(self.path)) is not None:
            raise InputError(
                f"{self.path} lies on a network file system ({kind}), where several processes "
                "cannot safely share a store: choose a folder on a local disk."
            )
        self._check_header(may_be_missing=write)
        try:
            self._connection = self._open(write)
        except sqlite3.Error as error:
            raise self._damaged(error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records, all or none. A key that is there already keeps its result."""
        rows = [tuple(_encode(record[column]) for column in _COLUMNS) for record in records]
        with self._reporting(), self._connection:
            self._connection.executemany(_INSERT, rows)

    def statuses(self, keys: Iterable[str] | None = None) -> dict[str, str]:
        """The status of the stored runs by key."""
        return {row["key"]: row["status"] for row in self._rows(keys, "key, status")}

    def frame(self, keys: Iterable[str] | None = None) -> pd.DataFrame:
        """A row a run, ordered by key: configuration, status, final metrics, circumstances."""
        rows = []
        for row in self._rows(keys):
            final = json.loads(row["final"])
            rows.append(
                {"key": row["key"], **json.loads(row["config"]), "status": row["status"]}
                | {name: final.get(name, float("nan")) for name in METRICS}
                | {name: final.get(name) for name in ("steps_done", "diverged_at", "n_classes")}
                | {
                    name: row[name]
                    for name in ("error", "duration", "host", "finished", "versions")
                }
            )
        frame = pd.DataFrame(rows)
        for column in ("steps_done", "diverged_at", "n_classes"):
            if column in frame:
                frame[column] = frame[column].astype("Int64")
        return frame

    def curves(self, keys: Iterable[str] | None = None) -> pd.DataFrame:
        """A row an evaluation: key, step, and the metrics then; ordered by key and step."""
        parts = []
        for row in self._rows(keys):
            history = json.loads(row["history"])
            if history:
                parts.append(pd.DataFrame({"key": row["key"], **history}))
        if not parts:
            return pd.DataFrame(columns=["key", "step", *METRICS])
        return pd.concat(parts, ignore_index=True)

    def _rows(self, keys: Iterable[str] | None, columns: str = "*") -> Iterator[sqlite3.Row]:
        chosen: str = ""
        values: tuple[str, ...] = ()
        if keys is not None:
            chosen = "WHERE key IN (SELECT value FROM json_each(?))"
            values = (json.dumps(list(keys)),)
        with self._reporting():
            yield from self._connection.execute(
                f"SELECT {columns} FROM runs {chosen} ORDER BY key", values
            )

    def _check_header(self, *, may_be_missing: bool) -> None:
        """Refuse what is not ours by reading its first bytes: SQLite never touches the file."""
        try:
            with self.path.open("rb") as file:
                header = file.read(100)
        except FileNotFoundError:
            if may_be_missing and self.path.parent.is_dir():
                return
            raise InputError(f"there is no store at {self.path}.") from None
        except OSError as error:
            raise InputError(f"the store {self.path} cannot be read ({error.strerror}).") from None
        if not header and may_be_missing:  # killed before its first write
            return
        version, application = (int.from_bytes(header[at : at + 4]) for at in (60, 68))
        if not header.startswith(b"SQLite format 3\0") or application != APPLICATION_ID:
            raise InputError(
                f"{self.path} is not a store of noisescale: it was left as it is, choose another."
            )
        if version > STORE_FORMAT:
            raise InputError(
                f"{self.path} was written by a newer noisescale (format {version}, this one knows "
                f"{STORE_FORMAT}): upgrade, or choose another store."
            )

    def _open(self, write: bool) -> sqlite3.Connection:
        address = f"{self.path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
        connection = sqlite3.connect(address, uri=True, timeout=60)
        connection.row_factory = sqlite3.Row
        if write:
            _create(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # safe against kills
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            connection.close()
            raise sqlite3.DatabaseError(found)
        return connection

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """SQLite's errors as one sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise InputError(f"the store {self.path} cannot be used: {error}.") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: sqlite3.Error) -> InputError:
        reason = " ".join(str(error).split())
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in reason:
            return InputError(f"the store {self.path} cannot be used: {reason}.")
        readable = len(salvage(self.path))
        return InputError(
            f"the store {self.path} is damaged ({reason}): {readable} of its runs can be read; "
            f"keep them with `noisescale runs {self.path} --salvage NEW.sqlite`."
        )


def salvage(path: Path | str) -> list[dict[str, Any]]:
    """The records of a damaged store that can still be read and are what their key says."""
    found: dict[str, dict[str, Any]] = {}
    address = f"{store_path(path).absolute().as_uri()}?mode=ro"
    # From both ends towards the damage.
    for order in ("ASC", "DESC"):
        try:
            connection = sqlite3.connect(address, uri=True)
            connection.row_factory = sqlite3.Row
            for row in connection.execute(f"SELECT * FROM runs ORDER BY key {order}"):
                record = _intact(row)
                if record is not None:
                    found[record["key"]] = record
        except sqlite3.Error:
            continue
        finally:
            connection.close()
    return [found[key] for key in sorted(found)]


def copy_readable(damaged: Path | str, new: Path | str) -> int:
    """Copy what can be read of a store into a new one; how many runs that were."""
    if Path(new).exists():
        raise InputError(f"{new} exists already: name a new file to save the runs in.")
    records = salvage(damaged)
    with RunStore(new, write=True) as store:
        store.add(records)
    return len(records)


def _intact(row: sqlite3.Row) -> dict[str, Any] | None:
    """The row as a record, or None if any part of it was overwritten."""
    try:
        record = {
            name: json.loads(row[name]) if name in ("history", "final", "versions") else row[name]
            for name in _COLUMNS
        }
        genuine = hashlib.sha256(row["config"].encode()).hexdigest() == row["key"]
    except (ValueError, TypeError, AttributeError):
        return None
    return record if genuine else None


def _create(connection: sqlite3.Connection) -> None:
    """The table, in one transaction: a kill leaves an empty file or a whole one."""
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone()
    if exists is None:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")
        connection.execute(_SCHEMA)
    connection.execute("COMMIT")
    connection.isolation_level = "DEFERRED"


def _encode(value: Any) -> Any:
    return json.dumps(value, allow_nan=False) if isinstance(value, dict) else value
