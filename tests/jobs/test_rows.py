"""Rows that are not what was written: named in one sentence, whoever reads the store."""

import hashlib
import json
import sqlite3
import subprocess
import sys

import pytest

from command_line import run
from noisescale.errors import InputError
from noisescale.jobs.store import RunStore

CONFIG = {"batch_size": 4, "data": "digits", "learning_rate": 0.1, "seed": 0}
RESULT = {"history": {"step": [0, 9], "test_accuracy": [0.1, 0.5]}, "final": {"test_accuracy": 0.5}}


def record(config=CONFIG, **changes):
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    around = {"error": None, "duration": 1.5, "versions": {"noisescale": "0"}, "host": "here"}
    return (
        {"key": hashlib.sha256(text.encode()).hexdigest(), "config": text, "status": "done"}
        | RESULT
        | around
        | {"finished": "2026-01-01T00:00:00+00:00"}
        | changes
    )


def store_with(path, *rows):
    """A store of two good runs, and these as they are."""
    with RunStore(path, write=True) as store:
        store.add([record(CONFIG | {"seed": 1}), record(CONFIG | {"seed": 2})])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for row in rows:
            values = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()}
            connection.execute(
                f"INSERT INTO runs ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})",
                tuple(values.values()),
            )
    connection.close()
    return path


def trial(**changes):
    return record({"kind": "trial", "function": "f", "batch_size": 4} | changes)


DAMAGED = {
    "key": (record(key="0" * 64), "its key is not the hash of its configuration"),
    "config list": (record([1, 2]), "its config is no JSON object"),
    "config number": (record(3), "its config is no JSON object"),
    "config empty text": (record() | {"config": ""}, "its key is not the hash"),
    "final list": (record(final="[1]"), "its final is no JSON object"),
    "final text": (record(final='"good"'), "its final is no JSON object"),
    "final infinite": (record(final='{"score":1e999}'), "its final is no JSON, or has a number"),
    "final beyond floats": (record(final=f'{{"n":{"9" * 400}}}'), "its final is no JSON, or has"),
    "final deep": (record(final='{"a":' + "[" * 9000 + "]" * 9000 + "}"), "its final is no JSON"),
    "history number": (record(history="3"), "its history is no JSON object"),
    "history of numbers": (record(history={"step": 3}), "its history is not made of lists of nu"),
    "history of texts": (record(history={"step": ["a"]}), "its history is not made of lists of nu"),
    "history ragged": (record(history={"step": [1], "x": []}), "its history has lists of several"),
    "versions text": (record(versions='"1"'), "its versions is no JSON object"),
    "status": (record(status="odd"), "its status is 'odd'"),
    "duration": (record(duration=float("inf")), "its duration is inf"),
    "host": (record(host=b"\xff"), "its host is no text"),
    "score": (record(final={"score": "good"}), "its score is 'good', no number"),
    "batch size": (record(CONFIG | {"batch_size": [4]}), "its batch_size is [4], no number"),
    "function": (trial(function=3), "its function is 3, no text"),
    "trial": (record({"function": "f"}, final={"score": 1}), "it has function and no batch_size"),
    "stage": (record({"procedure": "p", "seed": 0, "order": 0}), "it has procedure and no start"),
    "run": (record({"seed": 9}), "it has test_accuracy and no batch_size"),
    "checksum": (record() | {"checksum": "0" * 64}, "its result has changed since it was written"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_row_is_named(tmp_path, name):
    row, reason = DAMAGED[name]
    if name == "host":  # the column is one of texts, whatever is in them
        row = row | {"host": "?"}
    path = store_with(tmp_path / "runs.sqlite", row)
    if name == "host":
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE runs SET host = CAST(x'ff' AS TEXT) WHERE host = '?'")
        connection.close()
    with RunStore(path) as store:
        for read in (store.frame, store.curves):
            with pytest.raises(InputError) as told:
                read()
            assert f"is damaged (run '{row['key'][:10]}': {reason}" in str(told.value)


@pytest.mark.parametrize(
    "command", [("runs",), ("report",), ("runs", "--json"), ("runs", "--export", "x.csv")], ids=str
)
def test_every_command_names_it(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    store_with(tmp_path / "runs.sqlite", DAMAGED["history number"][0])
    done = run(command[0], ".", *command[1:])
    assert "its history is no JSON object" in done.sentence
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".csv", ".html")]


@pytest.mark.parametrize("name", ["key", "config empty text", "status", "checksum"])
def test_what_was_altered_is_told_before_any_run(tmp_path, name):
    path = store_with(tmp_path / "runs.sqlite", DAMAGED[name][0])
    with pytest.raises(InputError, match="is damaged"):
        RunStore(path, write=True)


def test_one_altered_letter_anywhere_in_a_result_is_told(tmp_path):
    path = store_with(tmp_path / "runs.sqlite")
    for column, old, new in (
        ("history", "0.1", "0.2"),
        ("final", "0.5", "0.6"),
        ("duration", "1.5", "1.25"),
        ("versions", "0", "1"),
        ("host", "here", "hare"),
        ("finished", "2026", "2027"),
    ):
        with sqlite3.connect(path) as connection:
            connection.execute("SAVEPOINT s")
            connection.execute(f"UPDATE runs SET {column} = replace({column}, '{old}', '{new}')")
            connection.execute("RELEASE s")
        connection.close()
        with RunStore(path) as store, pytest.raises(InputError, match="has changed since"):
            store.frame()
        with sqlite3.connect(path) as connection:
            connection.execute(f"UPDATE runs SET {column} = replace({column}, '{new}', '{old}')")
        connection.close()
    with RunStore(path) as store:
        assert len(store.frame()) == 2


def test_many_damaged_rows_are_counted(tmp_path):
    rows = [record(CONFIG | {"seed": 10 + k}, history="3") for k in range(8)]
    path = store_with(tmp_path / "runs.sqlite", *rows)
    with RunStore(path) as store, pytest.raises(InputError, match="; and 3 more") as told:
        store.frame()
    assert str(told.value).count("its history is no JSON object") == 5


def test_a_store_from_before_the_checksum_answers_and_goes_on(tmp_path):
    path = store_with(tmp_path / "runs.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE runs DROP COLUMN checksum")
    connection.close()
    with RunStore(path) as store:
        before = store.frame()
    with RunStore(path, write=True) as store:
        assert store.frame().equals(before)
        store.add([record(CONFIG | {"seed": 3})])
    with sqlite3.connect(path) as connection:
        kept = connection.execute("SELECT count(checksum), count(*) FROM runs").fetchone()
    connection.close()
    assert kept == (1, 3)


def test_numbers_beyond_64_bits_are_floats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = CONFIG | {"steps": 10**30}
    with RunStore(tmp_path / "runs.sqlite", write=True) as store:
        final = {"test_accuracy": 0.5, "steps_done": 10**30}
        history = {"step": [0, 10**30], "test_accuracy": [0.1, 0.5]}
        store.add([record(config, final=final, history=history), record()])
        frame, curves = store.frame(), store.curves()
    assert frame["steps"].dtype == frame["steps_done"].dtype == curves["step"].dtype == float
    assert frame["steps"].max() == frame["steps_done"].max() == curves["step"].max() == 1e30
    for command in (("runs",), ("runs", "--export", "x.csv"), ("runs", "--export", "x.parquet")):
        assert run(command[0], ".", *command[1:]).code == 0
    assert run("report", ".").code == 0
    rows = json.loads(run("runs", ".", "--json").out, parse_constant=lambda _: pytest.fail("inf"))
    assert {row["steps"] for row in rows} == {None, 1e30}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400], ids=["nan", "inf", "huge"])
def test_what_could_not_be_read_back_is_not_written(tmp_path, value):
    with RunStore(tmp_path, write=True) as store:
        with pytest.raises((InputError, ValueError)):
            store.add([record(final={"score": value})])
        assert store.frame().empty


ENDLESS = """CREATE VIEW runs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT i AS key, i AS config, i AS status, i AS history, i AS final, i AS error, i AS duration,
i AS versions, i AS host, i AS finished FROM n"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("DROP TABLE runs", ENDLESS), "runs is not a table"),
        (("ALTER TABLE runs DROP COLUMN host",), "runs has no column host"),
        (("DROP TABLE runs",), "runs has no column key"),
    ],
    ids=["view", "column", "table"],
)
def test_another_table_is_not_read(tmp_path, change, reason):
    path = store_with(tmp_path / "runs.sqlite")
    with sqlite3.connect(path) as connection:
        for statement in change:
            connection.execute(statement)
    connection.close()
    # In a process of its own, which is ended if it reads on without end.
    code = (
        "import sys\nfrom noisescale.jobs.store import RunStore\n"
        "for read in (RunStore, lambda path: RunStore(path, write=True)):\n"
        "    try: read(sys.argv[1])\n"
        "    except ValueError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    told = f"is not a store that noisescale wrote ({reason}): it was left as it is"
    assert done.stdout.count(told) == 2, done.stderr


def test_a_failed_run_without_an_error_is_reported(tmp_path):
    path = tmp_path / "runs.sqlite"
    with RunStore(path, write=True) as store:
        store.add([record(status="failed", error="", history={}, final={})])
    done = run("report", str(path))
    assert done.code == 0
    assert "its error was not stored" in (tmp_path / "runs.html").read_text()


def test_columns_of_several_types_are_exported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunStore(tmp_path, write=True) as store:
        finals = ({"x": 1, "y": [1]}, {"x": "so", "y": {"a": None}}, {"x": True})
        store.add(record({"number": k}, final=final) for k, final in enumerate(finals))
    for name in ("x.csv", "x.parquet"):
        assert run("runs", ".", "--export", name).code == 0
