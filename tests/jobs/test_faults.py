"""What a sweep survives: exceptions, dead workers, kill -9, Ctrl-C, and company."""

import os
import signal
import sqlite3
import time
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compare import results
from noisescale.errors import InputError
from noisescale.jobs.execution import _Sweep, complete
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from oracles.unruly import FREE, WORK, jobs

N_RUNS = 10
PATIENCE = 300  # seconds for what must happen at all: a machine may be slow, a test may not hang
SWEEP = """
    import sys
    from noisescale.jobs.execution import complete
    from oracles.unruly import WORK, jobs
    try:
        frame = complete(
            jobs("gated", range(int(sys.argv[2]), int(sys.argv[3]))), sys.argv[1], WORK, workers=2
        )
    except KeyboardInterrupt:
        print("interrupted")
    else:
        print(len(frame), "runs")
"""


def run(kind, seeds, path, **options):
    return complete(jobs(kind, seeds), path, WORK, **{"workers": 2, **options})


def wait_until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def n_stored(path):
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with RunStore(path) as store:
        return len(store.statuses())


def workers_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    # The pool's own threads may have started them.
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        children += (task / "children").read_text().split()
    return sorted({int(pid) for pid in children if "popen_loky" in command_of(pid)})


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check_integrity(path):
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, pool):
    return run("gated", N_RUNS, tmp_path_factory.mktemp("whole"), executor=pool)


def test_a_run_that_keeps_failing_is_stored_with_its_traceback(pool, tmp_path):
    frame = run("raises", 4, tmp_path, executor=pool).set_index("seed")
    assert dict(frame["status"]) == {0: "done", 1: "failed", 2: "done", 3: "done"}
    assert "ValueError: this seed never works" in frame.loc[1, "error"]
    assert "Traceback" in frame.loc[1, "error"]
    again = run("raises", 4, tmp_path, executor=pool).set_index("seed")
    assert again.loc[1, "finished"] == frame.loc[1, "finished"]


def test_a_run_that_fails_twice_is_tried_a_third_time(pool, pool_folder, tmp_path):
    frame = run("flaky", 2, tmp_path, executor=pool)
    assert set(frame["status"]) == {"done"}
    assert (pool_folder / "flaky-0").stat().st_size == 3


def test_the_cap_on_retries_and_trying_failed_runs_again(pool, pool_folder, tmp_path):
    frame = run("flaky", [2], tmp_path, executor=pool, retries=1)
    assert list(frame["status"]) == ["failed"]
    assert (pool_folder / "flaky-2").stat().st_size == 2
    frame = run("flaky", [2], tmp_path, executor=pool, retry_failed=True)
    assert list(frame["status"]) == ["done"]
    assert frame["error"].isna().all()


def test_a_run_that_calls_exit_is_a_failed_run(pool, tmp_path):
    frame = run("exits", 3, tmp_path, executor=pool, retries=0).set_index("seed")
    assert dict(frame["status"]) == {0: "done", 1: "failed", 2: "done"}
    assert "SystemExit: 3" in frame.loc[1, "error"]


def test_an_error_that_is_not_text_can_be_stored(pool, tmp_path):
    frame = run("mumbles", 1, tmp_path, executor=pool, retries=0)
    assert "not \\udcff text" in frame.loc[0, "error"]


def test_a_store_that_vanishes_is_noticed(pool, tmp_path):
    class Remove(Progress):
        def finished(self, run, record):
            (tmp_path / "runs.sqlite").unlink(missing_ok=True)

    with pytest.raises(InputError, match="was removed or replaced while it was in use"):
        run("gated", 6, tmp_path, executor=pool, progress=Remove())


def test_only_the_run_that_kills_its_worker_is_blamed(unruly, tmp_path):
    frame = run("deadly", 6, tmp_path).set_index("seed")
    assert [seed for seed in frame.index if frame.loc[seed, "status"] == "failed"] == [1]
    assert "its worker died 4 times" in frame.loc[1, "error"]
    assert (frame.drop(index=1)["status"] == "done").all()


def test_kill_9_of_the_main_process(gate, tmp_path, start_python, uninterrupted, pool):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    assert 2 <= n_stored(path) <= FREE
    # The gate is closed, so that no worker could come to its end by itself.
    wait_until(lambda: not any(alive(pid) for pid in workers))
    frame = run("gated", N_RUNS, path, executor=pool)
    assert results(frame).equals(results(uninterrupted))
    check_integrity(path)


def test_kill_9_of_the_main_process_while_its_workers_start(gate, tmp_path, start_python):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: workers_of(process))
    workers = workers_of(process)
    process.kill()
    process.wait()
    wait_until(lambda: not any(alive(pid) for pid in workers))


def test_kill_9_of_a_worker(gate, tmp_path, start_python, uninterrupted):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    gate.touch()
    out, err = process.communicate(timeout=PATIENCE)
    assert out == f"{N_RUNS} runs\n", err
    with RunStore(path) as store:
        assert results(store.frame()).equals(results(uninterrupted))
    check_integrity(path)


def test_ctrl_c(gate, tmp_path, start_python, uninterrupted, pool):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone
    out, err = process.communicate(timeout=PATIENCE)  # though the runs in flight would never end
    assert out == "interrupted\n", err
    assert err == ""
    assert not any(alive(pid) for pid in workers)
    assert 2 <= n_stored(path) <= FREE
    frame = run("gated", N_RUNS, path, executor=pool)
    assert results(frame).equals(results(uninterrupted))
    check_integrity(path)


def test_two_processes_share_a_store(gate, tmp_path, start_python, uninterrupted):
    path = tmp_path / "runs.sqlite"
    first = start_python(SWEEP, path, 0, 7)
    second = start_python(SWEEP, path, 3, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)  # both are at work, or will be
    gate.touch()
    for process in (first, second):
        assert process.communicate(timeout=PATIENCE)[0] == "7 runs\n"
    with RunStore(path) as store:
        assert results(store.frame()).equals(results(uninterrupted))
    check_integrity(path)


class Pool:
    """An engine in which chosen runs kill every task in flight, in a random order of events."""

    def __init__(self, deadly, rng, capacity=3):
        self.deadly, self.rng, self.flying, self._capacity = deadly, rng, [], capacity

    def capacity(self):
        return self._capacity

    def submit(self, work, configs):
        future = Future()
        self.flying.append((future, configs))
        if len(self.flying) == self._capacity or self.rng.random() < 0.5:
            self._advance()
        return future

    def _advance(self):
        future, configs = self.flying.pop(self.rng.integers(len(self.flying)))
        if any(config["seed"] in self.deadly for config in configs):
            for doomed in (future, *(other for other, _ in self.flying)):
                doomed.set_exception(BrokenExecutor("a worker died"))
            self.flying.clear()
        else:
            future.set_result([{"status": "done", "format": 1, "seed": c["seed"]} for c in configs])

    def restart(self):
        pass


def test_no_innocent_run_is_ever_blamed(monkeypatch):
    for trial in range(300):
        rng = np.random.default_rng(trial)
        deadly = set(rng.choice(8, size=2, replace=False).tolist())
        pool, stored = Pool(deadly, rng), {}

        def wait(futures, pool=pool, **_):
            while pool.flying and not any(future.done() for future in futures):
                pool._advance()
            return {future for future in futures if future.done()}, set()

        monkeypatch.setattr("noisescale.jobs.execution.wait", wait)
        store = SimpleNamespace(
            statuses=lambda keys: {},
            add=lambda records, stored=stored: stored.update(
                {record["key"]: record["status"] for record in records}
            ),
        )
        plan = list(jobs("good", 8).values())
        progress = SimpleNamespace(finished=lambda run, record: None)
        _Sweep(pool, store, ("work",), 2, {"done"}, progress).drive(plan)
        failed = {run.seed for run in plan if stored[run.key] == "failed"}
        assert failed == deadly
