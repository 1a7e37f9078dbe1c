"""A function that has changed is told, and its old runs are not taken for new ones."""

import subprocess
import sys

import pytest

import noisescale as ns
from noisescale.jobs.store import RunStore

TRAIN = """
from helper import shift

def train(*, batch_size, learning_rate, momentum, steps, seed):
    return shift + 1e-3 * seed + 1e-6 * batch_size * learning_rate * momentum * steps
"""
BUDGET = ("--n-train", "64", "--epochs", "1", "--max-runs", "12", "--quiet")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "mine.py").write_text(TRAIN)
    (tmp_path / "helper.py").write_text("shift = 1.0\n")
    return tmp_path


def tune(folder, *options):
    command = [sys.executable, "-m", "noisescale", "tune", "mine:train", *BUDGET, *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with RunStore(folder / "tune-runs") as store:
        return done.stdout, store.frame()


def test_an_edit_in_an_imported_helper_is_told_and_starts_anew(project):
    first, runs = tune(project)
    assert "no longer that of" not in first
    assert len(runs) == 12
    (project / "helper.py").write_text("shift = 2.0\n")
    reused, runs = tune(project, "--reuse")
    assert len(runs) == 12
    assert "12 stored runs are used although train (mine:train) has changed since" in reused
    changed, runs = tune(project)
    assert "train (mine:train) is no longer that of the 12 stored runs: its code, its data or" in (
        changed
    )
    assert len(runs) == 24
    assert runs["score"].gt(1.9).sum() == 12


def test_what_cannot_be_identified_is_not_reused(tmp_path):
    (tmp_path / "notes.txt").write_text("0.5")
    with (tmp_path / "notes.txt").open() as file:

        def train(*, batch_size, learning_rate, momentum, steps, seed):
            return batch_size + learning_rate + momentum + steps + seed + len(file.name)

        with pytest.raises(ns.InputError, match="stored runs cannot be reused: .* attribute ident"):
            ns.tune_large_batch(train, 64, epochs=1, store=tmp_path / "runs", reuse=True)
