import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from compare import results
from noisescale.errors import InputError
from noisescale.jobs.engines import open_engine
from noisescale.sweep import RunConfig, RunStore, make_plan, run_sweep
from noisescale.sweep.work import run

SHARED = {
    "data": "digits",
    "hidden_widths": (16,),
    "learning_rate": 0.05,
    "steps": 200,
    "n_evaluations": 4,
}
PLAN = make_plan(SHARED | {"batch_size": 32}, grid={"momentum": [0.5, 0.9]}, seeds=3)


@pytest.fixture(scope="module")
def engine():
    """Two workers, which the tests share: what takes time is to start JAX in them."""
    started = open_engine(workers=2)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reference")


@pytest.fixture(scope="module")
def reference(engine, folder):
    """The plan run by two workers."""
    return run_sweep(PLAN, folder, engine)


def test_a_frame_with_every_run(reference, folder):
    assert list(reference["key"]) == sorted(run.key for run in PLAN)
    assert set(reference["status"]) == {"done"}
    assert (reference["test_accuracy"] > 0.5).all()
    assert set(zip(reference["momentum"], reference["seed"], strict=True)) == {
        (m, seed) for m in (0.5, 0.9) for seed in range(3)
    }
    assert json.loads(reference["versions"][0])["jax"]
    with RunStore(folder) as store:
        assert len(store.curves()) > len(PLAN)


def test_every_run_uses_one_thread(engine, tmp_path):
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
    stored = run_sweep(plan, tmp_path, engine)
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
    assert json.loads(pinned.stdout)["test_cross_entropy"] == stored["test_cross_entropy"][0]


@pytest.mark.parametrize("kind", ["threads", "spawned processes"])
def test_any_executor_and_number_of_workers_gives_the_same(reference, tmp_path, kind):
    if kind == "threads":
        executor = ThreadPoolExecutor(1)
    else:
        executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with executor:
        frame = run_sweep(PLAN, tmp_path, executor, workers=1)
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
        momentum=0.5,
        batch_size=32,
        steps=200,
        seed=config.seed,
        test_data=(data.x_test, data.y_test),
        n_evaluations=4,
    )
    made = run(config)  # in this process, by the same compiled program
    assert made["final"]["test_accuracy"] == trained.final.test_accuracy
    assert made["final"]["test_cross_entropy"] == trained.final.test_cross_entropy
    assert made["history"]["step"] == [row.step for row in trained.history]


def test_divergence_is_a_result(engine, tmp_path):
    plan = make_plan(SHARED | {"learning_rate": 1e30, "batch_size": 32})
    frame = run_sweep(plan, tmp_path, engine)
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
