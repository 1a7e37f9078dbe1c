"""Engines of users' own, and engines that are started only when they are needed."""

import pytest

from noisescale.errors import InputError
from noisescale.jobs.engines import Engine, LazyEngine, engine_for, open_engine
from noisescale.jobs.execution import complete
from oracles.here import Here
from oracles.unruly import WORK, jobs


def test_any_object_with_the_four_methods_is_an_engine(tmp_path):
    engine = Here()
    assert isinstance(engine, Engine)
    frame = complete(jobs("good", 2), tmp_path, WORK, engine)
    assert list(frame["status"]) == ["done", "done"]
    assert engine.calls > 0
    assert not engine.stopped  # it is the caller's


def test_a_lazy_engine_starts_with_the_first_task(tmp_path):
    opened = []

    def open_one():
        opened.append(Here())
        return opened[-1]

    lazy = LazyEngine(open_one)
    assert isinstance(lazy, Engine)
    lazy.stop()
    assert opened == []
    complete(jobs("good", 2), tmp_path, WORK, lazy)
    complete(jobs("good", 2), tmp_path, WORK, lazy)
    assert len(opened) == 1
    calls = opened[0].calls
    complete(jobs("good", 2), tmp_path, WORK, lazy)
    assert opened[0].calls == calls
    lazy.stop()
    assert opened[0].stopped


def test_the_callers_own_is_not_stopped_and_others_are(monkeypatch):
    own = Here()
    with engine_for(own) as engine:
        assert engine is own
    assert not own.stopped
    monkeypatch.setattr("noisescale.jobs.engines.open_engine", lambda executor, **options: own)
    with engine_for(None, workers=2) as engine:
        assert engine.capacity() == 1
    assert own.stopped


@pytest.mark.parametrize("executor", [3, print, object()])
def test_what_is_no_engine_is_refused(executor):
    with pytest.raises(InputError, match="executor must be None, .* or an engine, got"):
        open_engine(executor)
