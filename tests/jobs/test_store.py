import hashlib
import json
import sqlite3
import struct
from pathlib import Path

import pytest

from noisescale.errors import InputError
from noisescale.jobs.disk import _kind
from noisescale.jobs.store import APPLICATION_ID, RunStore


def record(number, status="done", **changes):
    config = json.dumps({"number": number, "batch_size": 4}, sort_keys=True, separators=(",", ":"))
    return {
        "key": hashlib.sha256(config.encode()).hexdigest(),
        "config": config,
        "status": status,
        "history": {"step": [0, 10], "test_accuracy": [0.1, 0.1 + number]},
        "final": {"test_accuracy": 0.1 + number, "steps_done": 10},
        "error": None,
        "duration": 1.5,
        "versions": {"noisescale": "0"},
        "host": "here",
        "finished": "2026-01-01T00:00:00+00:00",
    } | changes


@pytest.fixture
def filled(tmp_path):
    path = tmp_path / "runs.sqlite"
    with RunStore(path, write=True) as store:
        store.add(record(number, final={"blob": "x" * 2000}) for number in range(60))
    return path


def test_what_goes_in_comes_out(tmp_path):
    with RunStore(tmp_path, write=True) as store:
        store.add([record(1), record(2)])
        frame, curves = store.frame(), store.curves()
    assert list(frame["key"]) == sorted(frame["key"])
    assert set(frame["number"]) == {1, 2}
    assert set(frame["test_accuracy"]) == {1.1, 2.1}
    assert str(frame["steps_done"].dtype) == "Int64"
    assert len(curves) == 4
    with RunStore(tmp_path / "runs.sqlite") as again:
        assert again.frame().equals(frame)
        assert list(again.frame([record(2)["key"]])["number"]) == [2]


def test_final_numbers_keep_their_kind_where_some_runs_lack_them(tmp_path):
    with RunStore(tmp_path, write=True) as store:
        store.add([record(1), record(2, "failed", final={})])
        store.add([record(3, final={"score": 2, "words": "so"}), record(4, final={"score": None})])
        frame = store.frame().set_index("number").sort_index()
    assert frame["steps_done"].to_list()[0] == 10
    assert frame["steps_done"].isna().to_list() == [False, True, True, True]
    assert str(frame["steps_done"].dtype) == str(frame["score"].dtype) == "Int64"
    assert frame["test_accuracy"].dtype == float
    assert frame.loc[3, "words"] == "so"
    # Configuration, status, what was measured, circumstances.
    assert list(frame.columns[:3]) == ["key", "batch_size", "status"]
    assert list(frame.columns[-5:]) == ["error", "duration", "versions", "host", "finished"]


def test_the_file_says_what_it_is(filled):
    with sqlite3.connect(filled) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        row = connection.execute(
            "SELECT json_extract(config, '$.number'), status FROM runs LIMIT 1"
        ).fetchone()
        assert row[1] == "done"
    connection.close()


def test_a_result_is_never_replaced_and_a_failure_may_be(tmp_path):
    failed = record(1, "failed", error="boom", final={}, history={})
    with RunStore(tmp_path, write=True) as store:
        store.add([failed])
        assert store.statuses() == {failed["key"]: "failed"}
        store.add([record(1, duration=2.0)])
        store.add([record(1, duration=3.0), failed])
        frame = store.frame()
    assert list(frame["status"]) == ["done"]
    assert list(frame["duration"]) == [2.0]


def test_all_or_nothing(tmp_path):
    with RunStore(tmp_path, write=True) as store:
        with pytest.raises(InputError, match="cannot be stored: its status is 'no such status'"):
            store.add([record(1), record(2, "no such status")])
        assert store.statuses() == {}


def test_it_is_readable_while_another_writes(tmp_path):
    with RunStore(tmp_path, write=True) as writer:
        writer.add([record(1)])
        with RunStore(tmp_path) as reader:
            writer.add([record(2)])
            assert len(reader.frame()) == 2


def test_a_peek_leaves_this_process_its_locks(tmp_path, start_python):
    with RunStore(tmp_path, write=True) as writer:
        writer.add([record(1)])
        with RunStore(tmp_path) as peek:
            assert len(peek.frame()) == 1
        # Another process that closes the store must still see that it is in use.
        visitor = start_python(
            "import sys\nfrom noisescale.jobs.store import RunStore\n"
            "with RunStore(sys.argv[1], write=True) as store: print(len(store.statuses()))",
            tmp_path,
        )
        assert visitor.communicate(timeout=300)[0] == "1\n"
        assert (tmp_path / "runs.sqlite-wal").exists()
        writer.add([record(2)])
    with RunStore(tmp_path) as store:
        assert len(store.frame()) == 2


def test_a_folder_that_cannot_be_written_can_be_read(tmp_path, monkeypatch):
    with RunStore(tmp_path, write=True) as store:
        store.add([record(1)])
    from noisescale.jobs import store as module

    plain = module._connect

    def no_shared_memory(path, options):
        if options == "mode=ro":
            raise sqlite3.OperationalError("unable to open database file")
        return plain(path, options)

    monkeypatch.setattr(module, "_connect", no_shared_memory)
    with RunStore(tmp_path) as store:
        assert len(store.frame()) == 1


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="there is no store at"):
        RunStore(tmp_path)
    with pytest.raises(InputError, match="there is no store at"):
        RunStore(tmp_path / "no" / "runs.sqlite", write=True)


def test_a_file_cut_before_its_first_write_is_a_new_store(tmp_path):
    (tmp_path / "runs.sqlite").touch()
    with RunStore(tmp_path, write=True) as store:
        store.add([record(1)])


@pytest.mark.parametrize("write", [False, True])
def test_foreign_files_are_left_as_they_are(tmp_path, write):
    text = tmp_path / "text.sqlite"
    text.write_bytes(b"precious" * 100)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE runs (key)")
    connection.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(InputError, match="is not a store of noisescale: it was left as it is"):
            RunStore(path, write=write)
        assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.sqlite", "text.sqlite"]


@pytest.mark.parametrize("write", [False, True])
def test_a_newer_format_is_refused(filled, write):
    with filled.open("r+b") as file:
        file.seek(60)
        file.write(struct.pack(">I", 9))
    before = filled.read_bytes()
    with pytest.raises(InputError, match=r"newer noisescale \(format 9, this one knows 1\)"):
        RunStore(filled, write=write)
    assert filled.read_bytes() == before


def test_a_damaged_store_is_reported(filled):
    content = bytearray(filled.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = bytes(range(256)) * 16
    filled.write_bytes(content)
    for write in (False, True):
        with pytest.raises(InputError, match="is damaged .*what is missing runs again"):
            RunStore(filled, write=write)


def test_what_is_not_whole_is_not_read(filled):
    with sqlite3.connect(filled) as connection:
        keys = [key for (key,) in connection.execute("SELECT key FROM runs ORDER BY key")]
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE runs SET host = CAST(x'ff' AS TEXT) WHERE key = ?", (keys[10],))
        connection.execute("UPDATE runs SET status = 'odd' WHERE key = ?", (keys[20],))
        connection.execute("UPDATE runs SET final = '{' WHERE key = ?", (keys[30],))
    connection.close()
    with RunStore(filled) as store:
        for read in (store.frame, store.curves, store.records):
            with pytest.raises(InputError, match="is damaged"):
                read()
        assert len(store.records(keys[:10])) == 10


def test_records_go_to_another_store_as_they_are(filled, tmp_path):
    with RunStore(filled) as store, RunStore(tmp_path / "new.sqlite", write=True) as new:
        new.add(store.records())
        assert new.frame().equals(store.frame())
        assert new.curves().equals(store.curves())


def test_an_empty_store_has_columns(tmp_path):
    with RunStore(tmp_path, write=True) as store:
        assert {"key", "status", "finished"} <= set(store.frame().columns)
        assert {"key", "step"} <= set(store.curves().columns)


def test_a_truncated_store_is_reported(filled):
    filled.write_bytes(filled.read_bytes()[:5000])
    with pytest.raises(InputError, match="is damaged"):
        RunStore(filled, write=True)


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw
33 22 0:43 / /données rw - nfs4 server:/d rw
31 30 0:41 / /home/me/fast\040disk rw,relatime shared:3 - xfs /dev/sdb1 rw
32 22 0:42 / /mnt rw - fuse.sshfs me@there: rw
"""


def test_network_file_systems_are_known_from_the_mounts():
    def kind(path):
        return _kind(Path(path), MOUNTS.strip())

    assert kind("/tmp/runs.sqlite") is None
    assert kind("/home/me/runs.sqlite") == "nfs4"
    assert kind("/home/me/fast disk/runs.sqlite") is None
    assert kind("/mnt/x/runs.sqlite") == "fuse.sshfs"
    assert kind("/homeless/runs.sqlite") is None
    assert kind("/données/runs.sqlite") == "nfs4"


def test_network_file_systems_are_refused(tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 0:1 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr("noisescale.jobs.disk._MOUNTS", mounts)
    with pytest.raises(InputError, match=r"network file system \(nfs\).*local disk"):
        RunStore(tmp_path, write=True)
    assert not (tmp_path / "runs.sqlite").exists()
