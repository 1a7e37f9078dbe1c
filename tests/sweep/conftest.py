import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
# How a run came about may differ between two sweeps; what came out may not.
CIRCUMSTANCES = ["duration", "host", "finished", "versions"]


def results(frame):
    return frame.drop(columns=CIRCUMSTANCES)


@pytest.fixture
def unruly(tmp_path, monkeypatch):
    """Where the models of oracles/unruly.py leave their marks."""
    folder = tmp_path / "unruly"
    folder.mkdir()
    monkeypatch.setenv("UNRULY", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return folder


@pytest.fixture
def start_python(tmp_path):
    """Run code in a process group of its own, as a terminal would."""
    started = []

    def start(code, *args):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
