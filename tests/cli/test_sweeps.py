import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from noisescale.cli import app
from noisescale.errors import InputError
from noisescale.sweep import RunStore
from oracles.here import Here

PLAN = """
seeds = 2

[run]
data = "digits"
hidden_widths = []
learning_rate = 0.5
steps = 50
n_evaluations = 3

[grid]
batch_size = [4, 32]
"""


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=True)


@pytest.fixture(scope="module", autouse=True)
def _in_this_process():
    """Workers would start Python and JAX anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noisescale.jobs.engines.LocalEngine", lambda *_, **__: Here())
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "plan.toml").write_text(PLAN)
    done = invoke("sweep", folder / "plan.toml", "--out", folder / "runs", "--workers", "1")
    assert done.exit_code == 0, done.output
    assert "4 runs: 4 done." in done.stdout
    assert "4 runs to make" in done.stderr
    assert "best test accuracy" in done.stderr
    return folder / "runs"


def test_a_sweep_told_as_json(folder):
    plan = folder.parent / "plan.toml"
    done = invoke("sweep", plan, "--out", folder, "--json")
    assert json.loads(done.stdout)["runs"] == {"done": 4}
    assert done.stderr == ""
    quiet = invoke("sweep", plan, "--out", folder, "--quiet")
    assert quiet.output == ""


def test_listing(folder):
    listed = invoke("runs", folder)
    assert listed.exit_code == 0
    assert "batch_size" in listed.stdout
    assert "4 runs" in listed.stdout
    few = invoke("runs", folder, "--where", "batch_size<=4", "--where", "seed=1")
    assert "1 runs" in few.stdout
    assert "1 runs" in invoke("runs", folder, "--where", "batch_size<5 and seed=1").stdout
    rows = json.loads(invoke("runs", folder, "--json", "--sort", "batch_size").stdout)
    assert [row["batch_size"] for row in rows] == [4, 4, 32, 32]
    assert invoke("runs", folder, "--where", "hidden_widths=[]", "--quiet").exit_code == 0
    assert "0 runs" in invoke("runs", folder, "--where", "status=diverged").stdout
    assert "2 runs" in invoke("runs", folder, "--where", "batch_size > 4 and status = done").stdout
    assert "4 runs" in invoke("runs", folder, "--where", "error=None").stdout
    assert "4 runs" in invoke("runs", folder, "--sort", "hidden_widths").stdout
    with RunStore(folder) as store:
        accuracies = set(store.frame()["test_cross_entropy"])
    assert {row["test_cross_entropy"] for row in rows} == accuracies  # to the last digit


@pytest.mark.parametrize("condition", ["hidden_widths=[1]", "status=" + "[" * 10_000])
def test_conditions_that_no_run_meets(folder, condition):
    assert "0 runs" in invoke("runs", folder, "--where", condition).stdout


def test_export(folder, tmp_path):
    with RunStore(folder) as store:
        stored, curves = store.frame(), store.curves()
    for name in ("runs.csv", "runs.parquet"):
        assert invoke("runs", folder, "--export", tmp_path / name).exit_code == 0
    back = pd.read_csv(tmp_path / "runs.csv").sort_values("key")
    assert list(back["test_accuracy"]) == list(stored["test_accuracy"])
    parquet = pd.read_parquet(tmp_path / "runs.parquet").sort_values("key")
    assert list(parquet["test_accuracy"]) == list(stored["test_accuracy"])
    invoke("runs", folder, "--curves", "--export", tmp_path / "curves.csv")
    assert len(pd.read_csv(tmp_path / "curves.csv")) == len(curves)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--where", "batch_size"], "a condition must be like 'batch_size<30', got 'batch_size'"),
        (["--where", "batch_size==4"], "a condition must be like"),
        (["--where", "seed=__import__('os')"], "seed cannot be compared with"),
        (["--where", "size=3"], "a run has no 'size'"),
        (["--where", "batch_size<many"], "batch_size cannot be compared with 'many'"),
        (["--sort", "size"], "a run has no 'size'"),
        (["--where", "batch_size=ten"], "batch_size cannot be compared with 'ten'"),
        (["--where", "diverged_at=[1]"], "diverged_at cannot be compared with '[1]'"),
        (["--where", "status<done"], "status cannot be compared with 'done'"),
        (["--limit", "0"], "limit must be at least 1, got 0"),
        (["--curves"], "--curves goes with --export"),
        (["--export", "runs.xls"], "must end in .csv or .parquet, got 'runs.xls'"),
        (["--export", "/no/such/folder/runs.csv"], "cannot be written"),
    ],
)
def test_bad_requests(folder, options, message):
    failed = invoke("runs", folder, *options)
    assert isinstance(failed.exception, InputError)
    assert message in str(failed.exception)


def test_bad_plans_and_folders(tmp_path):
    missing = invoke("sweep", tmp_path / "none.toml")
    assert "cannot be read" in str(missing.exception)
    (tmp_path / "plan.toml").write_text(PLAN.replace("batch_size = [4, 32]", "batch_size = [9999]"))
    large = invoke("sweep", tmp_path / "plan.toml", "--out", tmp_path / "runs")
    assert "batch_size must be at most 1438" in str(large.exception)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "file").touch()
    blocked = invoke("sweep", tmp_path / "plan.toml", "--out", tmp_path / "file" / "runs")
    assert "choose another folder" in str(blocked.exception)


def test_failed_runs_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    (tmp_path / "plan.toml").write_text(
        PLAN + '\n[zip]\nmodel = ["oracles.unruly:useless_model"]\n'
    )
    done = invoke(
        "sweep",
        tmp_path / "plan.toml",
        "--out",
        tmp_path / "runs",
        "--retries",
        "0",
        "--workers",
        "1",
    )
    assert done.exit_code == 1
    assert "4 of 4 runs failed, the first: ValueError: no such model" in done.stderr
