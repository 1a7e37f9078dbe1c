import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pytest

from compare import results
from noisescale.jobs.execution import _tasks, complete
from noisescale.jobs.progress import Progress
from oracles.unruly import WORK, jobs


def test_only_what_the_store_lacks_is_run(pool, tmp_path):
    class Count(Progress):
        runs = 0

        def finished(self, run, record):
            Count.runs += 1

    some, everything = jobs("good", 4), jobs("good", 6)
    begun = []
    options = {"executor": pool, "progress": Count(), "before": begun.append}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a quiet sweep
        complete(some, tmp_path, WORK, **options)
    assert Count.runs == 4
    frame = complete(everything, tmp_path, WORK, **options)
    assert Count.runs == 6
    assert list(frame["key"]) == sorted(everything)
    again = complete(everything, tmp_path, WORK, **options)
    assert Count.runs == 6
    assert again.equals(frame)
    assert [len(missing) for missing in begun] == [4, 2]
    whole = complete(everything, tmp_path / "whole.sqlite", WORK, pool)
    assert results(frame).equals(results(whole))


@dataclass(frozen=True)
class Task:
    key: int
    cost: float
    shape: tuple


def test_short_runs_share_tasks_and_long_ones_do_not():
    short = [Task(k, 1e9, (k % 2,)) for k in range(20)]
    long = [Task(100 + k, 1e11, (0,)) for k in range(4)]
    tasks = _tasks(short + long, capacity=2)
    assert [len(task) for task in tasks[:4]] == [1, 1, 1, 1]
    assert all(len({run.shape for run in task}) == 1 for task in tasks)
    by_shape = sorted(short, key=lambda run: run.shape)
    alike = [Task(k, 1e9, (0,)) for k in range(10)]
    assert [len(task) for task in _tasks(alike + long, capacity=2)] == [1, 1, 1, 1, 10]
    assert len(_tasks(by_shape, capacity=2)) >= 16  # enough for both workers to share


def test_an_executor_that_breaks_is_replaced(unruly, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(2, mp_context=spawn) as executor,
        pytest.warns(RuntimeWarning, match="goes on with local processes"),
    ):
        frame = complete(jobs("deadly_once"), tmp_path, WORK, executor, workers=2)
    assert list(frame["status"]) == ["done"] * 4
