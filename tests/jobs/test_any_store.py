"""Damaged stores and other files: refused in a sentence, left as they are, nothing invented."""

import hashlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import noisescale as ns
from noisescale.jobs.store import RunStore

FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _record(k):
    config = json.dumps({"batch_size": k, "seed": 0, "learning_rate": 0.1})
    return {
        "key": hashlib.sha256(config.encode()).hexdigest(),
        "config": config,
        "status": "done",
        "history": {},
        "final": {"test_accuracy": 0.5},
        "error": None,
        "duration": 1.0,
        "versions": {},
        "host": "h",
        "finished": "2026-01-01T00:00:00+00:00",
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    with RunStore(path, write=True) as store:
        store.add(_record(k) for k in range(200))
    return path.read_bytes()


@FEW
@given(
    st.floats(0, 0.999),
    st.binary(min_size=1, max_size=600),
    st.one_of(st.none(), st.floats(0.001, 0.999)),
)
def test_damage_is_told_and_what_is_read_is_genuine(whole, start, new, cut):
    content = bytearray(whole)
    at = int(start * len(content))
    content[at : at + len(new)] = new
    content = content[: len(whole) if cut is None else int(cut * len(whole))]
    with tempfile.TemporaryDirectory() as folder:
        look_at(Path(folder) / "damaged.sqlite", bytes(content))


def look_at(path, content):
    path.write_bytes(content)
    genuine = {_record(k)["key"] for k in range(200)}
    try:
        with RunStore(path) as store:
            frame = store.frame()
    except ns.InputError as told:
        assert "\n" not in str(told)
    else:
        assert len(frame) <= 200
        assert set(frame["key"]) <= genuine
    assert path.read_bytes() == content  # looking changes nothing


@FEW
@given(st.binary(max_size=300))
def test_other_files_are_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"x" + content)
    with pytest.raises(ns.InputError):
        RunStore(path, write=True)
    assert path.read_bytes() == b"x" + content
