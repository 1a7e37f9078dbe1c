"""The tuner on functions whose answer is known."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import noisescale as ns
import tune_functions as functions
from command_line import run as report
from noisescale.jobs.store import RunStore
from noisescale.tune import TuneWarning
from noisescale.tune.function import Interface, check_function
from tune_functions import N_TRAIN

# Where processes find the functions of tests, and what this one finds.
PATH = os.pathsep.join([str(Path(functions.__file__).parent), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def tune(engine):
    def call(train, **options):
        usual = {"epochs": 10, "executor": engine, "confirm": False}
        return ns.tune_large_batch(train, N_TRAIN, **usual | options)

    return call


@pytest.fixture(scope="module")
def found(engine):
    return ns.tune_large_batch(functions.peaked, N_TRAIN, epochs=10, confirm=False, executor=engine)


def test_finds_the_peak_then_grows_until_each_quantity_costs_accuracy(found):
    # g = 200 is B = 50 at the start. The learning rate may grow to 1 (B = 450 at .9), then
    # 1 - m to .02 (B = 1350 at .0333, the next would be .0111).
    assert found.start.batch_size == pytest.approx(50, rel=0.1)
    assert found.recipe.learning_rate == pytest.approx(0.9)
    assert found.recipe.momentum == pytest.approx(1 - 0.1 / 3)
    assert found.recipe.batch_size == round(1.5 * 27 * found.start.batch_size)
    grown = [d.recipe for d in found.trail if d.stage == 2 and d.accepted]
    assert grown[-1].batch_size == 27 * found.start.batch_size
    assert grown[-1].kept("linear") == pytest.approx(found.start.kept("linear"))
    assert found.complete
    assert found.updates_before == round(10 * N_TRAIN / found.start.batch_size)
    assert found.updates_after == round(10 * N_TRAIN / found.recipe.batch_size)
    stages = [(d.stage, d.changed, d.accepted) for d in found.trail]
    assert (2, "learning_rate", False) in stages
    assert (2, "momentum", False) in stages
    rejected = next(d for d in found.trail if d.stage == 2 and not d.accepted)
    assert rejected.difference < -0.03
    assert "loses more than the tolerance" in rejected.why


def test_prints_the_recipe_and_every_decision(found):
    told = repr(found)
    assert told.startswith("B = 2")
    assert "Projected speed-up by devices" in told
    assert "the score peaks at B = " in told
    assert "no worse, within the tolerance" in told
    assert "beyond the 3 up to which the rule was seen to hold" in told  # the recipe's own note


def test_result_is_json_and_a_picture(found, tmp_path):
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["recipe"]["batch_size"] == found.recipe.batch_size
    assert len(content["trail"]) == len(found.trail)
    found.plot(tmp_path / "trail.png")
    assert (tmp_path / "trail.png").stat().st_size > 5_000


def test_speedup_follows_the_timings(found):
    found = replace(found, seconds_per_update=1e-3, seconds_per_example=1e-5)
    assert found.projected_speedup(1) > 1  # fewer updates, the same examples
    assert found.projected_speedup(16) >= found.projected_speedup(4)
    many = found.projected_speedup(10**9)
    a, b = found.seconds_per_update, found.seconds_per_example
    limit = found.updates_before * (a + b * found.start.batch_size) / (found.updates_after * a)
    assert many == pytest.approx(limit, rel=1e-3)


def test_flat_scores_end_at_the_largest_batch(tune):
    found = tune(functions.flat, largest_batch=2_000, tolerance=0.05)
    assert found.recipe.batch_size == 2_000
    assert "up to the largest batch allowed" in found.conclusion


def test_rising_scores_end_at_the_limit_and_ask_for_a_lower_learning_rate(tune):
    found = tune(functions.rising, largest_batch=4_000)
    assert found.recipe.batch_size == 4_000
    first = next(d for d in found.trail if d.accepted)
    assert "still rises at the largest batch allowed, 4000" in first.why
    assert "lower learning rate" in first.why


def test_falling_scores_stay_at_the_smallest_batch(tune):
    found = tune(functions.falling)
    assert found.start.batch_size == found.recipe.batch_size == 1
    assert "higher learning rate" in next(d for d in found.trail if d.accepted).why
    assert found.conclusion.startswith("No larger batch was shown to lose less")


def test_reduces_a_learning_rate_at_which_training_is_not_stable(tune):
    found = tune(functions.touchy)
    assert found.start.learning_rate == pytest.approx(0.1 / 9)
    assert found.notes[:2] == (
        "training was not stable at learning rate 0.1",
        "training was not stable at learning rate 0.0333",
    )
    # Beyond .02 it diverges, so only the momentum can grow.
    assert found.recipe.learning_rate == pytest.approx(0.1 / 9)
    assert found.recipe.momentum > 0.95
    assert any("gave no score in 3 of 3 seeds" in d.why for d in found.trail)


def test_training_that_always_diverges_is_refused_in_words(tune):
    with pytest.raises(ns.InputError, match=r"no score at any learning rate from 0.1 down to 0.00"):
        tune(functions.diverging)


def test_a_function_that_raises_stops_the_tuning_and_keeps_what_is_done(tune, tmp_path):
    with pytest.raises(ns.InputError, match="out of memory at this batch") as caught:
        tune(functions.raising, store=tmp_path)
    assert "train(batch_size=" in str(caught.value)
    assert "finished runs are kept" in str(caught.value)
    with RunStore(tmp_path) as store:
        assert (store.frame()["status"] == "done").sum() == 6


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (functions.texting, "train must return a number, got 'ninety per cent' of type str"),
        (functions.infinite, "train must return a number, got 'inf'"),
    ],
)
def test_what_is_no_score_is_refused(tune, train, told):
    with pytest.raises(ns.InputError, match=told):
        tune(train)


def test_runs_that_hang_are_given_up(tune, workers, tmp_path):
    train = functions.HangingWhenSmall(tmp_path)
    options = {"timeout": 1, "batch_sizes": [8, 32, 128, 512], "store": tmp_path, "seeds": 2}
    options |= {"executor": workers}
    found = tune(train, **options)
    assert found.start.batch_size == pytest.approx(50, rel=0.2)
    hung = (tmp_path / "hung").stat().st_size
    assert hung >= 2
    again = tune(train, **options)
    assert again.recipe == found.recipe
    # What had as much time before is not tried again.
    assert (tmp_path / "hung").stat().st_size == hung


def test_a_seed_without_effect_is_noticed(tune):
    with pytest.warns(TuneWarning, match="ignore seed"):
        found = tune(functions.seedless)
    assert any("ignore seed" in note for note in found.notes)
    assert found.recipe.batch_size >= 9 * found.start.batch_size


def test_an_argument_that_is_never_used_is_noticed():
    assert check_function(functions.without_momentum) == [
        "train takes momentum but never uses it: what is tuned must have an effect"
    ]
    assert check_function(functions.peaked) == []
    assert check_function(functions.noisy) == []


def test_arguments_used_inside_a_nested_function_count():
    def train(*, batch_size, learning_rate, momentum, steps, seed):
        def inner():
            return batch_size + learning_rate + momentum + steps + seed

        return inner()

    assert check_function(train) == []


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (3, "train must be a function, got int"),
        (lambda batch_size, learning_rate, momentum, steps: 0.0, "it has no seed"),
        (lambda data, **settings: 0.0, "an argument 'data' without a default"),
    ],
)
def test_what_cannot_be_called_is_refused(train, told):
    with pytest.raises(ns.InputError, match=told):
        ns.tune_large_batch(train, N_TRAIN, epochs=1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epochs": 0}, "epochs must be a finite number above 0, got 0"),
        ({"epochs": 1e18}, r"epochs must be at most 4.61e\+14, 2\*\*62 updates, got 1e\+18"),
        ({"n_train": 1}, "n_train must be at least 2, got 1"),
        ({"learning_rate": -1}, "learning_rate must be"),
        ({"momentum": 1.0}, r"momentum must be a finite number in \[0, 1\), got 1"),
        ({"largest_batch": 20_000}, "largest_batch must be at most n_train, 10000, got 20000"),
        ({"batch_sizes": [5]}, r"two batch sizes or more, got \[5\]"),
        ({"batch_sizes": [5, 50_000]}, "a batch size must be at most 10000, got 50000"),
        ({"seeds": 1}, "seeds must be at least 2, got 1"),
        ({"timeout": 0}, "timeout must be a finite number above 0, got 0"),
        ({"max_runs": 5}, "a budget of 5 runs is too small to decide anything: .* takes 12"),
        ({"max_steps": 99}, "a budget of 99 updates is too small to decide anything"),
        ({"max_seconds": float("nan")}, "max_seconds must be"),
        ({"tolerance": -1}, "tolerance must be a finite number at least 0, got -1"),
        ({"start": 0}, "start must be a finite number above 0, or a recipe, got 0"),
        ({"start": "big"}, "start must be a finite number above 0, or a recipe, got 'big'"),
        ({"start": 9, "batch_sizes": [1, 2]}, "start and batch_sizes both say where stage 1 beg"),
        ({"betas": (0.9, 0.999)}, "betas was given, but train takes no betas"),
        ({"weight_decay": 0.1}, "weight_decay was given, but train takes no weight_decay"),
        ({"accelerator": True, "workers": 2}, "accelerator=True runs one at a time"),
    ],
)
def test_bad_input_is_one_sentence(options, told):
    with pytest.raises(ns.InputError, match=told) as caught:
        ns.tune_large_batch(functions.peaked, **{"n_train": N_TRAIN, "epochs": 1} | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("budget", [{"max_runs": 20}, {"max_steps": 60_000}])
def test_a_budget_is_kept_and_the_best_recipe_so_far_given(tune, budget):
    found = tune(functions.peaked, **budget)
    assert not found.complete
    assert found.conclusion.startswith("Stopped early: the budget of")
    assert found.n_runs <= budget.get("max_runs", 10**9)
    assert found.n_updates <= budget.get("max_steps", 10**9)
    assert 8 <= found.recipe.batch_size <= 512


def test_a_budget_of_time_stops_too(tune):
    found = tune(functions.peaked, max_seconds=1e-9)
    assert not found.complete
    assert "s of training is spent" in found.conclusion
    found.plot()  # of a trail without a step


def test_a_budget_that_ends_before_anything_is_decided_promises_no_recipe(tune):
    """It is spent on learning rates that are not stable; nothing is said of a best recipe."""
    sentence = "before anything could be decided.*give it more"
    with pytest.raises(ns.InputError, match=sentence) as told:
        tune(functions.diverging, max_runs=20)
    assert "the budget of 20 runs has" in str(told.value)
    assert "best recipe" not in str(told.value)
    assert "\n" not in str(told.value)


def test_no_run_is_made_twice(tune, tmp_path):
    calls, runs = tmp_path / "calls", tmp_path / "runs"
    calls.mkdir()
    runs.mkdir()
    train = functions.Counting(calls)
    first = tune(train, store=runs)
    assert len(list(calls.iterdir())) == first.n_runs
    again = tune(train, store=runs)
    assert again.recipe == first.recipe
    assert again.trail == first.trail
    assert all(path.read_text() == "called\n" for path in calls.iterdir())


def report_of(path):
    """What is said of the tuning itself, rather than of its runs alone."""
    ended = report("report", path)
    assert ended.code == 0, ended.err
    assert re.search(r"How large a batch costs nothing\?\n(Take B = |Inconclusive: )", ended.out)


def n_stored(folder):
    if not (folder / "runs.sqlite").exists():
        return 0
    with suppress(ns.InputError), RunStore(folder) as store:  # may be in the making
        return len(store.statuses())
    return 0


def test_killed_and_resumed_ends_the_same(tune, tmp_path):
    for name in ("calls", "runs", "other"):
        (tmp_path / name).mkdir()
    script = (
        "import sys; from pathlib import Path; import noisescale as ns, tune_functions as f\n"
        f"ns.tune_large_batch(f.Counting({str(tmp_path / 'calls')!r}, 0.05), f.N_TRAIN, epochs=10, "
        f"store={str(tmp_path / 'runs')!r}, workers=2)\n"
    )
    env = {**os.environ, "PYTHONPATH": PATH}
    process = subprocess.Popen([sys.executable, "-c", script], env=env)
    while n_stored(tmp_path / "runs") < 10 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with RunStore(tmp_path / "runs") as store:
        done = len(store.frame())
    assert done > 0
    resumed = tune(functions.Counting(tmp_path / "calls"), store=tmp_path / "runs")
    fresh = tune(functions.Counting(tmp_path / "calls"), store=tmp_path / "other")
    assert resumed.recipe == fresh.recipe
    assert resumed.trail == fresh.trail


def test_closures_travel(tune, workers):
    best = 100

    def train(*, batch_size, learning_rate, momentum, steps, seed):
        return -abs(np.log(batch_size / best)) + 1e-3 * seed * steps / batch_size**2 + momentum * 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TuneWarning)
        found = tune(train, max_runs=21, executor=workers)
    assert 50 <= found.recipe.batch_size <= 200


def test_what_cannot_be_identified_is_never_answered_from_a_store(tune, tmp_path):
    (tmp_path / "notes.txt").write_text("0.5")
    with (tmp_path / "notes.txt").open() as file:

        def train(*, batch_size, learning_rate, momentum, steps, seed):
            return batch_size + learning_rate + momentum + steps + seed + len(file.name)

        options = {"max_runs": 4, "seeds": 2, "batch_sizes": [8, 32], "store": tmp_path}
        for n_stored in (4, 8):
            found = tune(train, **options)
            assert any("stored runs are not used" in note for note in found.notes)
            assert any("TextIOWrapper" in note for note in found.notes)
            with RunStore(tmp_path) as store:
                assert len(store.statuses()) == n_stored


def test_a_store_that_cannot_be_made_is_refused_in_the_callers_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ns.InputError, match="choose another folder") as caught:
        ns.tune_large_batch(functions.peaked, N_TRAIN, epochs=1, store=tmp_path / "file" / "runs")
    assert "--" not in str(caught.value)


def test_every_argument_is_given(tune):
    seen = tune(
        lambda **given: float(sorted(given) == sorted(Interface().arguments)) + given["seed"],
        max_runs=20,
        largest_batch=600,
    )
    assert seen.trail[0].score == pytest.approx(2.0)


USUAL = ("--n-train", 10_000, "--epochs", 10)


class TestCommand:
    def test_json_is_all_that_is_printed(self, command, capfd):
        talking = ("tune_functions:talking", *USUAL)
        done = command(*talking, "--json", "--plot", "trail.svg")
        assert done.code == 0, done.err
        assert capfd.readouterr().out == ""  # nor by workers
        assert json.loads(done.out)["recipe"]["batch_size"] > 400
        assert Path("trail.svg").exists()
        assert Path("tune-runs", "runs.sqlite").exists()
        again = command(*talking)
        assert again.out.startswith("B = ")
        assert "stage 1: B = " in again.err  # what was decided, and why
        assert "loses more than the tolerance" in again.err
        assert "runs to make" not in again.err

    @pytest.mark.parametrize("out", ["store", "store/runs.sqlite", "store/mine.sqlite"])
    def test_a_report_of_the_runs_finds_what_was_decided(self, out, command_here):
        if out != "store":
            Path("store").mkdir()
        done = command_here("tune_functions:peaked", *USUAL, "--max-runs", 15, "--out", out)
        assert done.code == 0, done.err
        report_of(out)
        if out != "store/mine.sqlite":  # a folder is its runs.sqlite
            report_of("store")
            report_of("store/runs.sqlite")

    def test_no_confirm(self, command_here):
        usual = ("tune_functions:flat", "--n-train", "600", "--epochs", "2", "--tolerance", "0.5")
        told = json.loads(command_here(*usual, "--json").out)
        assert told["confirmed"] is True
        assert told["trail"][-1]["stage"] == 4
        without = json.loads(command_here(*usual, "--json", "--no-confirm").out)  # of the same runs
        assert without["confirmed"] is None
        assert without["n_runs"] < told["n_runs"]

    @pytest.mark.parametrize(
        ("args", "told"),
        [
            (["nowhere:train", "--epochs", "1"], "the training function 'nowhere:train' cannot"),
            (["tune_functions:peaked", "--epochs", "1"], "give --n-train"),
            (["tune_functions:N_TRAIN", "--epochs", "1"], "must be a function, got int"),
        ],
    )
    def test_bad_usage_is_one_line(self, args, told, command):
        assert told in command(*args).sentence
