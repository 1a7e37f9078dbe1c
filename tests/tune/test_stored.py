"""A function that has changed is told, and its old runs are not taken for new ones."""

import importlib
import sys
from pathlib import Path

import pytest

import noisescale as ns
from noisescale.jobs.store import RunStore

TRAIN = """
from helper_of_mine import shift

def train(*, batch_size, learning_rate, momentum, steps, seed):
    return shift + 1e-3 * seed + 1e-6 * batch_size * learning_rate * momentum * steps
"""
BUDGET = ("--n-train", "64", "--epochs", "1", "--max-runs", "12", "--quiet", "--workers", "1")


@pytest.fixture
def tune(command, monkeypatch):
    """The command as a new process would run it: nothing of the user's is imported yet."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("mine.py").write_text(TRAIN)

    def tune(shift, *options):
        Path("helper_of_mine.py").write_text(f"shift = {shift}\n")
        for name in ("mine", "helper_of_mine"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        done = command("mine:train", *BUDGET, *options)
        assert done.code == 0, done.err
        with RunStore("tune-runs") as store:
            return done.out, store.frame()

    yield tune
    for name in ("mine", "helper_of_mine"):
        sys.modules.pop(name, None)


def test_an_edit_in_an_imported_helper_is_told_and_starts_anew(tune):
    first, runs = tune(1.0)
    assert "no longer that of" not in first
    assert len(runs) == 12
    reused, runs = tune(2.0, "--reuse")
    assert len(runs) == 12
    assert "12 stored runs are used although train (mine:train) has changed since" in reused
    changed, runs = tune(2.0)
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
