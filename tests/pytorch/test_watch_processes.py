"""DistributedDataParallel: two processes read what one process with the whole batch reads.

They choose their pace together; a model that is sharded over them gets a sentence.
"""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from oracles import watched_processes

pytestmark = pytest.mark.frameworks


def test_two_processes_read_what_one_reads(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, watched_processes.__file__, str(rank), "2", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate() for process in started]
    assert all(process.returncode == 0 for process in started), told
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in told)
    assert first == second
    *trained, paced, sharded = first
    # Chosen by all together, or they would wait for one another.
    assert paced["every"] is not None
    assert paced["updates"][:4] == [0, 3, 6, 9]
    assert len(sharded) == 2
    assert all("sharded over processes (FSDP) cannot be watched" in told for told in sharded)
    for passes, found in zip((1, 2), trained, strict=True):
        alone = watched_processes.train(0, 1, passes)
        # The step that overflows in one process is skipped in all.
        assert found["skipped"] == alone["skipped"] == 1
        assert [row[0] for row in found["rows"]] == [0, 2]
        for row, wanted in zip(found["rows"], alone["rows"], strict=True):
            assert row == pytest.approx(wanted, rel=1e-9)
        for layer, wanted in alone["layers"].items():
            assert found["layers"][layer] == pytest.approx(wanted, rel=1e-9)
