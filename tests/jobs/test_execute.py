import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from jobs.compare import results
from noisescale.errors import InputError
from noisescale.jobs.execution import _tasks
from noisescale.jobs.progress import Progress
from noisescale.sweep import RunConfig, RunStore, make_plan, run_sweep
from noisescale.sweep.work import run

SHARED = {
    "data": "digits",
    "hidden_widths": (16,),
    "learning_rate": 0.05,
    "momentum": 0.9,
    "steps": 200,
    "n_evaluations": 4,
}
PLAN = make_plan(SHARED, grid={"batch_size": [4, 32]}, seeds=3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The plan run by one worker."""
    return run_sweep(PLAN, tmp_path_factory.mktemp("reference"), workers=1)


def test_a_frame_with_every_run(reference):
    assert list(reference["key"]) == sorted(run.key for run in PLAN)
    assert set(reference["status"]) == {"done"}
    assert (reference["test_accuracy"] > 0.5).all()
    assert set(zip(reference["batch_size"], reference["seed"], strict=True)) == {
        (B, seed) for B in (4, 32) for seed in range(3)
    }
    assert json.loads(reference["versions"][0])["jax"]


def test_the_number_of_workers_changes_nothing(reference, tmp_path):
    two = run_sweep(PLAN, tmp_path, workers=2)
    assert results(two).equals(results(reference))
    with RunStore(tmp_path) as store:
        assert len(store.curves()) > len(PLAN)


def test_every_run_uses_one_thread(tmp_path):
    # Large enough that JAX would share the work between cores, and round differently.
    plan = make_plan(
        {
            "data": "digits",
            "hidden_widths": (400,),
            "learning_rate": 0.1,
            "batch_size": 1000,
            "steps": 20,
            "evaluate_at": "final",
        },
    )
    stored = [run_sweep(plan, tmp_path / f"{n}.sqlite", workers=n) for n in (1, 2)]
    assert results(stored[0]).equals(results(stored[1]))
    code = (
        "import sys, json\n"
        "from noisescale.sweep import RunConfig\nfrom noisescale.sweep.work import run\n"
        "print(json.dumps(run(RunConfig(**json.loads(sys.argv[1])))['final']))"
    )
    # A process with one core has no choice but one thread.
    core = min(os.sched_getaffinity(0))
    pinned = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", code, json.dumps(plan[0].to_dict())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(pinned.stdout)["test_cross_entropy"] == stored[0]["test_cross_entropy"][0]


def test_only_what_the_store_lacks_is_run(reference, tmp_path):
    class Count(Progress):
        runs = 0

        def finished(self, run, record):
            Count.runs += 1

    run_sweep(PLAN[:4], tmp_path, workers=1, progress=Count())
    assert Count.runs == 4
    frame = run_sweep(PLAN, tmp_path, workers=1, progress=Count())
    assert Count.runs == 6
    assert results(frame).equals(results(reference))
    again = run_sweep(PLAN, tmp_path, workers=1, progress=Count())
    assert Count.runs == 6
    assert again.equals(frame)


@pytest.mark.parametrize("kind", ["threads", "spawned processes"])
def test_any_executor_gives_the_same(reference, tmp_path, kind):
    if kind == "threads":
        executor = ThreadPoolExecutor(2)
    else:
        executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    with executor:
        frame = run_sweep(PLAN, tmp_path, executor, workers=2)
    assert results(frame).equals(results(reference))


def test_a_run_is_what_train_gives():
    import noisescale as ns
    from noisescale.data import load_digits

    config = PLAN[0]
    data = load_digits().subset(n_train=config.n_train, seed=config.seed)
    network = ns.DenseNetwork((64, 16, 10))
    trained = ns.train(
        network,
        network.init(config.seed),
        (data.x_train, data.y_train),
        learning_rate=0.05,
        momentum=0.9,
        batch_size=4,
        steps=200,
        seed=config.seed,
        test_data=(data.x_test, data.y_test),
        n_evaluations=4,
    )
    made = run(config)  # in this process, by the same compiled program
    assert made["final"]["test_accuracy"] == trained.final.test_accuracy
    assert made["final"]["test_cross_entropy"] == trained.final.test_cross_entropy
    assert made["history"]["step"] == [row.step for row in trained.history]


def test_divergence_is_a_result(tmp_path):
    plan = make_plan(SHARED | {"learning_rate": 1e30, "batch_size": 8})
    frame = run_sweep(plan, tmp_path, workers=1)
    assert list(frame["status"]) == ["diverged"]
    assert frame["test_accuracy"].isna().all()
    assert frame["diverged_at"][0] >= 1


def test_other_data_than_planned_are_refused():
    planned = RunConfig(**(PLAN[0].to_dict() | {"data_fingerprint": "0" * 64}))
    with pytest.raises(InputError, match="other content here than where the run was planned"):
        run(planned)


def test_bad_plans_fail_before_the_first_run(tmp_path):
    for plan, message in (
        ([], "the plan holds no runs"),
        ([{"batch_size": 3}], "must be a list of RunConfig"),
    ):
        with pytest.raises(InputError, match=message):
            run_sweep(plan, tmp_path)
    with pytest.raises(InputError, match="executor must be"):
        run_sweep(PLAN, tmp_path, executor=3)
    with pytest.raises(InputError, match="workers must be at least 1"):
        run_sweep(PLAN, tmp_path, workers=0)
    with pytest.raises(InputError, match="retries must be at least 0"):
        run_sweep(PLAN, tmp_path, retries=-1)


def test_short_runs_share_tasks_and_long_ones_do_not():
    short = make_plan(SHARED | {"steps": 10}, grid={"batch_size": [4, 8]}, seeds=10)
    long = make_plan(SHARED | {"steps": 300_000, "batch_size": 4}, seeds=4)
    tasks = _tasks(short + long, capacity=2)
    assert [len(task) for task in tasks] == [1, 1, 1, 1, 10, 10]
    assert all(len({run.shape for run in task}) == 1 for task in tasks)
    assert len(_tasks(short, capacity=2)) >= 16  # enough for both workers to share


def test_an_executor_that_breaks_is_replaced(unruly, tmp_path):
    plan = make_plan(
        SHARED | {"model": "oracles.unruly:deadly_once", "hidden_widths": (), "batch_size": 8},
        seeds=4,
    )
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(2, mp_context=spawn) as executor,
        pytest.warns(RuntimeWarning, match="goes on with local processes"),
    ):
        frame = run_sweep(plan, tmp_path, executor, workers=2)
    assert list(frame["status"]) == ["done"] * 4


def test_warnings_stay_out_of_a_quiet_sweep(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_sweep(PLAN[:1], tmp_path, workers=2)
