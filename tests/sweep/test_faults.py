"""What a sweep survives: exceptions, dead workers, kill -9, Ctrl-C, and company."""

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from noisescale.sweep import RunStore, make_plan, run_sweep
from sweep.conftest import results

SHARED = {"data": "digits", "hidden_widths": (), "learning_rate": 0.5, "batch_size": 8,
          "steps": 20, "evaluate_at": "final"}  # fmt: skip
N_RUNS = 10
SWEEP = """
    import sys
    from noisescale.sweep import make_plan, run_sweep
    plan = make_plan(
        {"data": "digits", "hidden_widths": (), "learning_rate": 0.5, "batch_size": 8,
         "steps": 20, "evaluate_at": "final", "model": "oracles.unruly:slow"},
        seeds=range(int(sys.argv[2]), int(sys.argv[3])),
    )
    try:
        frame = run_sweep(plan, sys.argv[1], workers=2)
    except KeyboardInterrupt:
        print("interrupted")
    else:
        print(len(frame), "runs")
"""


def plan_of(model, seeds=4):
    return make_plan(SHARED | {"model": f"oracles.unruly:{model}"}, seeds=seeds)


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
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
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNRULY", str(folder))
        return run_sweep(plan_of("slow", N_RUNS), folder, workers=2)


def test_a_run_that_keeps_failing_is_stored_with_its_traceback(unruly, tmp_path):
    frame = run_sweep(plan_of("raises"), tmp_path, workers=2).set_index("seed")
    assert dict(frame["status"]) == {0: "done", 1: "failed", 2: "done", 3: "done"}
    assert "ValueError: this seed never works" in frame.loc[1, "error"]
    assert "Traceback" in frame.loc[1, "error"]
    again = run_sweep(plan_of("raises"), tmp_path, workers=1).set_index("seed")
    assert again.loc[1, "finished"] == frame.loc[1, "finished"]


def test_a_run_that_fails_twice_is_tried_a_third_time(unruly, tmp_path):
    frame = run_sweep(plan_of("flaky", 2), tmp_path, workers=1)
    assert set(frame["status"]) == {"done"}
    assert (unruly / "flaky-0").stat().st_size == 3


def test_the_cap_on_retries_and_trying_failed_runs_again(unruly, tmp_path):
    frame = run_sweep(plan_of("flaky", 1), tmp_path, workers=1, retries=1)
    assert list(frame["status"]) == ["failed"]
    assert (unruly / "flaky-0").stat().st_size == 2
    frame = run_sweep(plan_of("flaky", 1), tmp_path, workers=1, retry_failed=True)
    assert list(frame["status"]) == ["done"]
    assert frame["error"].isna().all()


def test_only_the_run_that_kills_its_worker_is_blamed(unruly, tmp_path):
    frame = run_sweep(plan_of("deadly", 6), tmp_path, workers=2).set_index("seed")
    assert [seed for seed in frame.index if frame.loc[seed, "status"] == "failed"] == [1]
    assert "its worker died 4 times" in frame.loc[1, "error"]
    assert (frame.drop(index=1)["status"] == "done").all()


def test_kill_9_of_the_main_process(unruly, tmp_path, start_python, uninterrupted):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    done = n_stored(path)
    assert 2 <= done < N_RUNS
    wait_until(lambda: not any(alive(pid) for pid in workers), 10)
    frame = run_sweep(plan_of("slow", N_RUNS), path, workers=2)
    assert results(frame).equals(results(uninterrupted))
    check_integrity(path)


def test_kill_9_of_a_worker(unruly, tmp_path, start_python, uninterrupted):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert out == f"{N_RUNS} runs\n", err
    with RunStore(path) as store:
        assert results(store.frame()).equals(results(uninterrupted))
    check_integrity(path)


def test_ctrl_c(unruly, tmp_path, start_python, uninterrupted):
    path = tmp_path / "runs.sqlite"
    process = start_python(SWEEP, path, 0, N_RUNS)
    wait_until(lambda: n_stored(path) >= 2)
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everyone
    out, err = process.communicate(timeout=15)
    assert out == "interrupted\n", err
    assert err == ""
    assert not any(alive(pid) for pid in workers)
    assert 2 <= n_stored(path) < N_RUNS
    frame = run_sweep(plan_of("slow", N_RUNS), path, workers=2)
    assert results(frame).equals(results(uninterrupted))
    check_integrity(path)


def test_two_processes_share_a_store(unruly, tmp_path, start_python, uninterrupted):
    path = tmp_path / "runs.sqlite"
    first = start_python(SWEEP, path, 0, 7)
    second = start_python(SWEEP, path, 3, N_RUNS)
    assert first.communicate(timeout=120)[0] == "7 runs\n"
    assert second.communicate(timeout=120)[0] == "7 runs\n"
    with RunStore(path) as store:
        assert results(store.frame()).equals(results(uninterrupted))
    check_integrity(path)
