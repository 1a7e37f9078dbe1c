"""Finished runs in one SQLite file: nothing lost on a kill, readable while a sweep writes.

A row a run in the table ``runs``, keyed by the hash of its configuration. Writing needs a local
disk: SQLite's write-ahead log shares memory between processes, which network disks cannot.
"""

import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import pandas as pd

from noisescale.checks import check_flag, check_list, check_path
from noisescale.errors import InputError
from noisescale.jobs.disk import network_file_system
from noisescale.jobs.rows import COLUMNS, Row, checksum, decode, history, sound, verify

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
    finished TEXT NOT NULL,
    checksum TEXT
) STRICT, WITHOUT ROWID
"""
# A run that failed once may succeed later; a result is never replaced.
_WRITTEN = (*COLUMNS, "checksum")
_INSERT = f"""
INSERT INTO runs ({", ".join(_WRITTEN)}) VALUES ({", ".join("?" * len(_WRITTEN))})
ON CONFLICT (key) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _WRITTEN[1:])}
WHERE runs.status = 'failed'
"""
_KIND = "SELECT type FROM pragma_table_list WHERE schema = 'main' AND name = 'runs'"
_TABLE = "SELECT name FROM pragma_table_info('runs')"
_CIRCUMSTANCES = COLUMNS[5:]


def make_folder(folder: Path) -> Path:
    """The folder of a store, made if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the store cannot be put into {folder} ({error.strerror}): choose another folder."
        ) from None
    return folder


@contextmanager
def opened(store: "Path | str | RunStore | None") -> "Iterator[RunStore]":
    """A store to write into; an open one stays open, and None is one for this call alone."""
    if isinstance(store, RunStore):
        with resumable(store):
            yield store
        return
    with ExitStack() as leaving:
        place = leaving.enter_context(tempfile.TemporaryDirectory()) if store is None else store
        path = check_path("store", place)
        if not path.suffix:  # a folder's name
            make_folder(path)
        runs = leaving.enter_context(RunStore(path, write=True))
        if store is not None:
            leaving.enter_context(resumable(runs))
        yield runs


class RunSource(Protocol):
    """Where runs come from: a store that is written, or tables that were shipped.

    Keys that a source lacks are left out of what it gives.
    """

    def statuses(self, keys: Iterable[str]) -> dict[str, str]:
        """The status of the runs by key."""
        ...

    def frame(self, keys: Iterable[str]) -> pd.DataFrame:
        """A row a run, ordered by key."""
        ...

    def curves(self, keys: Iterable[str]) -> pd.DataFrame:
        """A row an evaluation, ordered by key and step."""
        ...


class RunSink(Protocol):
    """Where runs are executed into: a store, or whatever keeps records by their keys."""

    def statuses(self, keys: Iterable[str]) -> dict[str, str]:
        """The status of the runs that are there, by key."""
        ...

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Keep records, failed ones too."""
        ...


def store_path(path: Path | str) -> Path:
    """The store's file: ``path`` itself, or ``runs.sqlite`` in the folder ``path``."""
    path = check_path("store", path)
    return path / FILE_NAME if path.is_dir() else path


class RunStore:
    """The runs in one file. With ``write`` it is made if it is not there."""

    def __init__(self, path: Path | str, *, write: bool = False) -> None:
        self.path = store_path(path)
        if (kind := network_file_system(self.path)) is not None:
            raise InputError(
                f"{self.path} lies on a network file system ({kind}), where several processes "
                "cannot safely share a store: choose a folder on a local disk."
            )
        check_file(self.path, may_be_missing=check_flag("write", write))
        try:
            self._connection = self._open(write)
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        self._opened = self._file_id()
        if write:  # before hours of work, whatever of the store they will need
            try:
                with self._reporting():
                    sound(self._rows(None), verify)
            except InputError:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records, all or none. A key that is there already keeps its result."""
        rows = []
        for record in records:
            row = {column: _encode(record[column]) for column in COLUMNS}
            try:
                decode(row)
            except ValueError as error:  # it could not be read back
                raise InputError(f"run {row['key'][:10]} cannot be stored: {error}.") from None
            rows.append((*row.values(), checksum(row)))
        if self._file_id() != self._opened:
            raise InputError(
                f"the store {self.path} was removed or replaced while it was in use: what was "
                "finished since then is lost, start again."
            )
        with self._reporting(), self._connection:
            self._connection.executemany(_INSERT, rows)

    def statuses(self, keys: Iterable[str] | None = None) -> dict[str, str]:
        """The status of the stored runs by key."""
        with self._reporting():
            return {row["key"]: row["status"] for row in self._rows(keys, "key, status")}

    def frame(self, keys: Iterable[str] | None = None) -> pd.DataFrame:
        """A row a run, ordered by key: configuration, status, final numbers, circumstances."""
        rows: list[dict[str, Any]] = []
        configured: dict[str, None] = {}  # dictionaries keep the order of their names
        measured: dict[str, None] = {}
        with self._reporting():
            for row, (config, final) in sound(self._rows(keys), lambda row: (row, decode(row))):
                configured |= dict.fromkeys(config)
                measured |= dict.fromkeys(final)
                around = {name: row[name] for name in ("key", "status", *_CIRCUMSTANCES)}
                rows.append(config | final | around)
        columns = ["key", *configured, "status", *measured, *_CIRCUMSTANCES]
        frame = pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))
        numbers = {name: _as_numbers([row.get(name) for row in rows]) for name in measured}
        return frame.assign(**numbers)

    def curves(self, keys: Iterable[str] | None = None) -> pd.DataFrame:
        """A row an evaluation: key, step, and the metrics then; ordered by key and step."""
        parts = []
        with self._reporting():
            for key, columns in sound(self._rows(keys), _curve):
                if columns:
                    parts.append(pd.DataFrame(key | columns | key))
        if not parts:
            return pd.DataFrame(columns=["key", "step"])
        return pd.concat(parts, ignore_index=True)

    def records(self, keys: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """The stored runs as :meth:`add` takes them, for another store."""
        with self._reporting():
            return sound(self._rows(keys), _record)

    def _rows(self, keys: Iterable[str] | None, columns: str = "*") -> Iterator[Row]:
        chosen: str = ""
        values: tuple[str, ...] = ()
        if keys is not None:
            chosen = "WHERE key IN (SELECT value FROM json_each(?))"
            named = list(keys) if isinstance(keys, dict) else keys
            asked = check_list("keys", named, "a list of keys")
            values = (json.dumps([str(key) for key in asked]),)
        query = f"SELECT {columns} FROM runs {chosen} ORDER BY key"
        yield from map(dict, self._connection.execute(query, values))

    def _file_id(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _open(self, write: bool) -> sqlite3.Connection:
        try:
            connection = _connect(self.path, "mode=rwc" if write else "mode=ro")
            if write:
                _create(connection)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")  # safe against kills
            found = _quick_check(connection)
        except sqlite3.OperationalError:
            # A folder that cannot be written has no place for the log's shared memory; where there
            # is no log, the file can be read without it.
            if write or self.path.with_name(f"{self.path.name}-wal").exists():
                raise
            connection = _connect(self.path, "mode=ro&immutable=1")
            found = _quick_check(connection)
        if found != "ok":
            connection.close()
            raise sqlite3.DatabaseError(found)
        return connection

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """SQLite's errors, and content that is not what it should be, as one sentence."""
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> InputError:
        reason = " ".join(str(error).split())
        if isinstance(error, (sqlite3.OperationalError, sqlite3.IntegrityError, InputError)):
            return InputError(f"the store {self.path} cannot be used: {reason}.")
        return InputError(
            f"the store {self.path} is damaged ({reason}): put back a copy of it, or move it away, "
            "and what is missing runs again."
        )


@contextmanager
def resumable(store: RunStore) -> Iterator[None]:
    """Time in which Ctrl-C says that what has finished is in the store."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(
            f"What has finished is stored in {store.path}: the same command goes on from there."
        )
        raise


def check_file(path: Path, *, may_be_missing: bool) -> None:
    """Refuse what is not a store of ours, or of a newer version; it is not altered.

    Through SQLite, and without locks: opening the file ourselves would, on closing it, drop the
    locks of every other connection that this process has to it.
    """
    try:
        size = path.stat().st_size
        regular = path.is_file()
    except FileNotFoundError:
        if may_be_missing and path.parent.is_dir():
            return
        advice = "make its folder first" if may_be_missing else "give its file or folder"
        raise InputError(f"there is no store at {path}: {advice}.") from None
    except OSError as error:
        raise InputError(f"the store {path} cannot be read ({error.strerror}).") from None
    if size == 0 and may_be_missing:  # killed before its first write
        return
    application, version, kinds, table = 0, 0, [], []
    if regular:
        try:
            with closing(_connect(path, "mode=ro&immutable=1")) as connection:
                (application,) = connection.execute("PRAGMA application_id").fetchone()
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                kinds = [row["type"] for row in connection.execute(_KIND)]
                table = [row["name"] for row in connection.execute(_TABLE)]
        except sqlite3.OperationalError as error:
            raise InputError(f"the store {path} cannot be read ({error}).") from None
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                return  # a damaged store, which opening it will tell
    if application != APPLICATION_ID:
        raise InputError(
            f"{path} is not a store of noisescale: it was left as it is, choose another."
        )
    if version > STORE_FORMAT:
        raise InputError(
            f"{path} was written by a newer noisescale (format {version}, this one knows "
            f"{STORE_FORMAT}): upgrade, or choose another store."
        )
    missing = [column for column in COLUMNS if column not in table]
    if missing or kinds != ["table"]:
        what = f"has no column {missing[0]}" if missing else "is not a table"
        raise InputError(
            f"{path} is not a store that noisescale wrote (runs {what}): it was left as it is, "
            "choose another."
        )


def _record(row: Row) -> dict[str, Any]:
    """A row as :meth:`RunStore.add` takes it."""
    decoded = {"history": history(row), "final": decode(row)[1]}
    return (
        {name: row[name] for name in COLUMNS} | decoded | {"versions": json.loads(row["versions"])}
    )


def _curve(row: Row) -> tuple[dict[str, str], dict[str, list[Any]]]:
    decode(row)
    return {"key": row["key"]}, history(row)


def _connect(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=60)
    connection.row_factory = sqlite3.Row
    connection.text_factory = _text  # one letter out of place must not stop the reading
    return connection


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _quick_check(connection: sqlite3.Connection) -> str:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return str(found)


def _create(connection: sqlite3.Connection) -> None:
    """The table, in one transaction: a kill leaves an empty file or a whole one."""
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    exists = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone()
    if exists is None:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")
        connection.execute(_SCHEMA)
    elif not any(row["name"] == "checksum" for row in connection.execute(_TABLE)):
        connection.execute("ALTER TABLE runs ADD COLUMN checksum TEXT")
    connection.execute("COMMIT")
    connection.isolation_level = "DEFERRED"


def _as_numbers(values: list[Any]) -> "pd.Series[Any]":
    """A column: whole numbers stay whole where some runs have none, others become floats."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return pd.Series(values, dtype="Int64")
    return pd.Series(values, dtype=float if kinds <= {int, float} else object)


def _encode(value: Any) -> Any:
    return json.dumps(value, allow_nan=False) if isinstance(value, dict) else value
