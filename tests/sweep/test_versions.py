"""A model of the user's own is stored under its content: an edited one is another, and is told."""

import hashlib
import importlib
import json
import sqlite3
import sys
import warnings
from concurrent.futures import Future
from dataclasses import replace

import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.jobs.store import RunStore
from noisescale.sweep import make_plan, run_sweep
from noisescale.sweep.work import run

MODEL = """
import functools
import threading
from users_parts import WIDTH, Base

class Net(Base):
    slope = 1.0

def make(n_features, n_classes):
    return Net((n_features, WIDTH, n_classes))

def closed(width):
    def made(n_features, n_classes):
        return Net((n_features, width, n_classes))
    return made

def _wide(width, n_features, n_classes):
    return Net((n_features, width, n_classes))

def guarded(lock):
    def made(n_features, n_classes):
        with lock:
            return Net((n_features, WIDTH, n_classes))
    return made

closure = closed(3)
partial = functools.partial(_wide, 3)
"""
PARTS = """
import noisescale as ns
WIDTH = 3

class Base(ns.DenseNetwork):
    def scale(self):
        return 1
"""
RUN = {
    "data": "oracles.unruly:small",
    "learning_rate": 0.1,
    "batch_size": 4,
    "steps": 2,
    "evaluate_at": "final",
}


class Here:
    """An engine in this process, which counts its runs."""

    made = 0

    def submit(self, work, *args):
        self.made += len(args[-1])
        future = Future()
        module, _, name = work.partition(":")
        future.set_result(getattr(importlib.import_module(module), name)(*args))
        return future

    def capacity(self):
        return 1

    def restart(self):
        pass

    stop = restart


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the user's modules anew, as a new process would find them."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def write(model=MODEL, parts=PARTS):
        for name, text in (("users_model", model), ("users_parts", parts)):
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    yield write
    for name in ("users_model", "users_parts"):
        sys.modules.pop(name, None)


def key_of(name):
    return make_plan(RUN | {"model": f"users_model:{name}"})[0].key


@pytest.mark.parametrize("name", ["make", "Net", "closure", "partial"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(n_features, width", "(n_features, 2 * width"),
        ("slope = 1.0", "slope = 2.0"),
        ("closed(3)", "closed(4)"),
        ("(_wide, 3)", "(_wide, 4)"),
        ("WIDTH = 3", "WIDTH = 4"),
        ("return 1", "return 2"),
    ],
)
def test_whatever_is_edited_makes_another_run(write, name, old, new):
    write()
    before = key_of(name)
    write(MODEL + "\n# a remark\n")
    assert key_of(name) == before
    write(MODEL.replace(old, new), PARTS.replace(old, new))
    assert key_of(name) != before


def swept(store, name="make", seeds=2, **options):
    engine = Here()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plan = make_plan(RUN | {"model": f"users_model:{name}"}, seeds=seeds)
        frame = run_sweep(plan, store, engine, **options)
    assert (frame["status"] == "done").all(), frame["error"].iloc[0]
    return engine.made, [str(w.message) for w in told], frame


def test_an_edited_model_is_told_and_its_old_runs_are_taken_if_asked(write, tmp_path):
    write()
    made, told, first = swept(tmp_path)
    assert (made, told) == (2, [])
    assert swept(tmp_path)[:2] == (0, [])
    write(parts=PARTS.replace("WIDTH = 3", "WIDTH = 5"))
    made, told, reused = swept(tmp_path, reuse=True)
    assert made == 0
    assert told == ["2 stored runs are used although model (users_model:make) has changed since"]
    assert reused.equals(first)
    made, told, _ = swept(tmp_path, seeds=3, reuse=True)  # what is made now is the new model's
    assert (made, len(told)) == (1, 1)
    made, told, frame = swept(tmp_path, seeds=3)
    assert made == 2
    assert told == [
        "model (users_model:make) is no longer that of the 2 stored runs: its code, its data or a "
        "module that it imports has changed, so they are not used (reuse uses them all the same)"
    ]
    assert set(frame["model_fingerprint"]).isdisjoint(first["model_fingerprint"])
    assert swept(tmp_path, seeds=3)[:2] == (0, [])


def test_a_store_that_does_not_say_what_its_model_was(write, tmp_path):
    write()
    _, _, frame = swept(tmp_path)
    with sqlite3.connect(tmp_path / "runs.sqlite") as connection:
        for key, config in connection.execute("SELECT key, config FROM runs").fetchall():
            content = json.loads(config)
            del content["model_fingerprint"]
            old = json.dumps(content, sort_keys=True, separators=(",", ":"))
            given = (hashlib.sha256(old.encode()).hexdigest(), old, key)
            connection.execute("UPDATE runs SET key = ?, config = ? WHERE key = ?", given)
    connection.close()
    made, told, old = swept(tmp_path, reuse=True)
    assert (made, len(told)) == (0, 1)
    assert sorted(old["test_accuracy"]) == sorted(frame["test_accuracy"])
    made, told, _ = swept(tmp_path)
    assert made == 2
    assert "no longer that of the 2 stored runs: what it was then is not stored, so" in told[0]


def test_what_cannot_be_told_apart_is_made_anew_and_told(write, tmp_path):
    write(MODEL + "\nlock = guarded(threading.Lock())\n")
    for _ in range(2):
        made, told, _ = swept(tmp_path, "lock")
        assert made == 2
        assert "stored runs are not used, and these will not be: whether _thread:lock" in told[0]
    with pytest.raises(InputError, match="cannot be reused: .* give model an attribute identity"):
        swept(tmp_path, "lock", reuse=True)


def test_a_model_with_an_identity_of_its_own_is_known_by_that(write):
    write(MODEL + "\nmake.identity = 'mine'\n")
    before = key_of("make")
    write(MODEL.replace("n_classes))", "n_classes, ))") + "\nmake.identity = 'mine'\n")
    assert key_of("make") == before


def test_a_worker_that_finds_another_model_refuses(write):
    write()
    (planned,) = make_plan(RUN | {"model": "users_model:make"})
    assert run(planned)["status"] == "done"
    write(MODEL.replace("slope = 1.0", "slope = 3.0"))
    with pytest.raises(InputError, match="model users_model:make is not here what it was where"):
        run(replace(planned, model_fingerprint=planned.model_fingerprint + "0"))


def test_a_report_tells_versions_apart_and_no_more(write, tmp_path):
    from noisescale.cli.runs_table import varying

    write()
    swept(tmp_path)
    with RunStore(tmp_path, write=True) as store:
        run_sweep(make_plan(RUN | {"hidden_widths": [3]}), store, Here())
        assert varying(store.frame()) == ["hidden_widths", "model", "seed"]
    write(MODEL.replace("slope = 1.0", "slope = 3.0"))
    swept(tmp_path)
    with RunStore(tmp_path) as store:
        assert "model_fingerprint" in varying(store.frame())


def _score(*, batch_size, learning_rate, momentum, steps, seed):
    return batch_size + learning_rate + momentum + steps + seed


def _branch(checkpoint, *, batch_size, learning_rate, n_examples, seed):
    return [(0, checkpoint), (n_examples, checkpoint / (2 + batch_size + learning_rate + seed))]


def test_ctrl_c_says_that_what_has_finished_is_stored(tmp_path):
    class Stop(ns.Progress):
        def finished(self, run, record):
            raise KeyboardInterrupt

    plan = make_plan(RUN | {"hidden_widths": ()}, seeds=3)
    calls = [
        lambda **o: run_sweep(plan, **o),
        lambda **o: ns.tune_large_batch(_score, 64, epochs=1, **o),
        lambda **o: ns.measure_critical_batch(
            _branch, 2.0, batch_sizes=[8, 16], learning_rate=0.1, n_examples=100, **o
        ),
    ]
    for k, call in enumerate(calls):
        where = tmp_path / f"{k}.sqlite"
        with pytest.raises(KeyboardInterrupt) as stopped:
            call(store=where, executor=Here(), progress=Stop())
        assert stopped.value.__notes__ == [
            f"What has finished is stored in {where}: the same command goes on from there."
        ]
        with RunStore(where) as store:
            assert len(store.frame()) >= 1
    with pytest.raises(KeyboardInterrupt) as stopped:
        calls[1](executor=Here(), progress=Stop())
    assert not getattr(stopped.value, "__notes__", ())
