from functools import partial

import pytest

from command_line import run
from noisescale.jobs import engines
from oracles.here import Here


@pytest.fixture(scope="session")
def engine():
    """An engine in this process: what a function scores does not depend on where it runs."""
    return Here()


@pytest.fixture(scope="session")
def workers():
    """Two worker processes, which the tests share that need some."""
    started = engines.open_engine(workers=2)
    yield started
    started.stop()


@pytest.fixture
def command(tmp_path, monkeypatch):
    """``noisescale tune`` in a folder of its own, with processes of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as the command does, but only for the test
    return partial(run, "tune")


@pytest.fixture
def command_here(command, monkeypatch):
    """The same, which trains in this process."""
    monkeypatch.setattr(engines, "LocalEngine", lambda *_, **__: Here())
    return command
