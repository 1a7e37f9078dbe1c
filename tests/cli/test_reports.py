"""``noisescale report``: one page of a watched run, a sweep, a tuning, or bets."""

import base64
import dataclasses
import hashlib
import io
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB

import noisescale as ns
from command_line import run
from noisescale.jobs.store import RunStore
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord
from noisescale.tune.result import Decision


@pytest.fixture
def record():
    rng = np.random.default_rng(0)
    made = NoiseRecord(n_train=1_000)
    for update in range(50):
        batch = Batch(1.2 + 0.1 * rng.random(), 0.6, 1 / 32, n_examples=32, n_units=32.0)
        made.take(batch, update=update, learning_rate=0.1, momentum=0.5)
    made.note("a <note>")
    return made


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_one_page_with_everything(record, tmp_path, suffix):
    log = tmp_path / f"run<1>.{suffix}"
    record.save(log)
    ended = run("report", str(log))
    assert ended.code == 0, ended
    page = (tmp_path / "run<1>.html").read_text("utf-8")
    assert "run&lt;1&gt;" in page
    assert "<1>" not in page
    assert ("a &lt;note&gt;" in page) == (suffix == "json")
    assert page.count('class="picture"') == 2
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)  # needs nothing else
    sentence = record.advice().sentences[0]
    assert sentence in page
    assert sentence in ended.out
    coded = re.search(r"data:text/csv;base64,([^\"]+)", page)[1]
    history = pd.read_csv(io.BytesIO(base64.b64decode(coded)))
    assert history["trace"].to_list() == pytest.approx(record.history["trace"].to_list())
    assert f"<td>{record.rows[-1].update}</td>" in page
    assert page.count("<tr>") == 2 + 4 + 17  # heads, costs, every third of fifty updates


def test_as_json(record, tmp_path):
    record.save(tmp_path / "run.json")
    told = json.loads(run("report", str(tmp_path / "run.json"), "--json").out)
    assert told["answer"] == [list(record.advice().sentences)]
    assert told["report"].endswith("run.html")


def test_bad_logs_are_refused_in_a_sentence(tmp_path):
    assert "cannot be read" in run("report", str(tmp_path / "no.csv")).sentence
    (tmp_path / "other.json").write_text("{}")
    assert (
        "is no result that noisescale saved" in run("report", str(tmp_path / "other.json")).sentence
    )
    NoiseRecord().save(tmp_path / "empty.csv")
    assert "nothing has been measured" in run("report", str(tmp_path / "empty.csv")).sentence


def page_of(folder, *runs):
    """The report of a store with these runs, and what was printed."""
    with RunStore(folder, write=True) as store:
        store.add(runs)
    ended = run("report", str(folder))
    assert ended.code == 0, ended
    return (folder / "report.html").read_text("utf-8"), ended.out


def record_of(config, *, score, history=None, status="done", error=None):
    """A run as a store keeps it."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return {
        "key": hashlib.sha256(text.encode()).hexdigest(),
        "config": text,
        "status": status,
        "history": history or {},
        "final": score,
        "error": error,
        "duration": 0.1,
        "versions": {},
        "host": "here",
        "finished": "2026-01-01T00:00:00+00:00",
    }


def trained(batch_size, learning_rate, seed, **more):
    config = {
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "data": "<b>mine</b>",
        "hidden_widths": [8],
        "n_train": 1_000,
        "momentum": 0.0,
        "steps": 10,
    }
    # A peak at B = 16 times the learning rate, which every seed sees alike.
    accuracy = 0.9 - 0.05 * np.log2(batch_size / (16 * learning_rate)) ** 2 + 0.001 * seed
    score = {"test_accuracy": accuracy, "n_classes": 10}
    history = {"step": [0, 5, 10], "test_accuracy": [0.1, accuracy / 2, accuracy]}
    return record_of(config, score=score, history=history, **more)


def test_a_sweep_is_answered_for_with_its_peaks_and_their_rule(tmp_path):
    rates, sizes = (0.5, 1.0, 2.0), (2, 4, 8, 16, 32, 64, 128)
    runs = [trained(B, rate, seed) for B in sizes for rate in rates for seed in range(3)]
    page, out = page_of(tmp_path, *runs)
    for rate in rates:
        assert f"At learning rate {rate:g}: the best batch size is {16 * rate:.3g} [" in out
    power = re.search(r"grows as the learning rate to the power (\S+) \[", out)[1]
    assert float(power) == pytest.approx(1, abs=0.02)
    assert page.index("the best batch size is 16") < page.index("<svg") < page.index("<table>")
    assert page.count('class="picture"') == 2
    assert "batch size: 16\ntest accuracy: 0.901" in page  # shown at the pointer
    assert f"<td>{len(rates)}</td>" in page
    for name, rows in (("runs.csv", len(runs)), ("curves.csv", 3 * len(runs))):
        coded = re.search(rf'download="{name}" href="data:text/csv;base64,([^"]+)"', page)[1]
        assert len(pd.read_csv(io.BytesIO(base64.b64decode(coded)))) == rows


def test_what_went_wrong_in_a_sweep_is_said(tmp_path):
    page, _ = page_of(
        tmp_path,
        trained(8, 1.0, 0),
        trained(16, 1.0, 0, status="diverged"),
        trained(32, 1.0, 0, status="failed", error="Traceback\nValueError: <b>no</b>"),
    )
    assert "1 runs failed, the first: ValueError: &lt;b&gt;no&lt;/b&gt;" in page
    assert "1 runs diverged" in page
    assert "<b>" not in page
    assert "3 training runs" in page
    empty = tmp_path / "empty"
    empty.mkdir()
    RunStore(empty, write=True).close()
    assert "is empty: there is nothing to report yet" in run("report", str(empty)).sentence
    (tmp_path / "nothing").mkdir()
    assert "there is nothing to report in" in run("report", str(tmp_path / "nothing")).sentence
    assert "there is no store at" in run("report", str(tmp_path / "no-such-folder")).sentence


def test_a_diverged_run_counts_in_the_headline_as_in_the_curve(tmp_path):
    """Of five runs at 8 four diverged, and the fifth is the best of all."""
    accuracies = {8: 0.96, 16: 0.9, 32: 0.93, 64: 0.94, 128: 0.93, 256: 0.9}
    runs, trials = [], []
    for B, accuracy in accuracies.items():
        for seed in range(5):
            lost = B == 8 and seed < 4
            final = {"n_classes": 10} if lost else {"test_accuracy": accuracy, "n_classes": 10}
            status = "diverged" if lost else "done"
            recipe = {"learning_rate": 0.1, "batch_size": B, "seed": seed, "n_train": 1_000}
            runs.append(record_of(recipe, score=final, status=status))
            trial = recipe | {"kind": "trial", "function": "mine#1", "momentum": 0.9, "steps": 9}
            trials.append(
                record_of(trial, score={} if lost else {"score": accuracy}, status=status)
            )
    page, out = page_of(tmp_path, *runs)
    assert "The highest mean test accuracy, 0.9400, has batch size 64 (5 runs)." in out
    assert "64 was the best tried" in out
    assert "4 runs diverged: they count as chance in every mean" in page
    assert "<td>0.272</td>" in page  # (4/10 + 0.96)/5
    (tmp_path / "tuning").mkdir()
    page, out = page_of(tmp_path / "tuning", *trials)
    assert "The highest mean score, 0.94, has batch size 64" in out
    assert "4 trials diverged: they count as the worst score seen" in page
    assert "<td>0.912</td>" in page  # (4 x 0.9 + 0.96)/5


def test_trials_and_stages_of_a_store_have_a_chapter_each(tmp_path):
    trials = [
        record_of(
            {"kind": "trial", "function": "mine#1", "batch_size": B, "learning_rate": 0.1,
             "momentum": 0.9, "n_train": 100, "steps": 10, "seed": seed},
            score={"score": 0.9 - B / 1_000 + seed / 10_000},
        )
        for B in (8, 32) for seed in (0, 1)
    ]  # fmt: skip
    stages = [
        record_of(
            {"kind": "prequential", "procedure": "mine", "seed": 0, "order": order,
             "start": start, "stop": 2 * start, "ensemble": 1},
            score={"score": 0.5},
            history={"temperature": [1.0, 2.0], "loss": [0.25 * start, None]},
        )
        for start in (4, 8) for order in (0, 1)
    ]  # fmt: skip
    page, out = page_of(tmp_path, *trials, *stages)
    assert "The highest mean score, 0.8921, has batch size 8, learning rate 0.1" in out
    # The first block also pays for the temperature that was wrong: ln 2 over four examples.
    assert f"After 4 examples the next cost {0.25 + np.log(2) / 4:.3g} nats each" in out
    assert "after 8 they cost 0.25" in out
    assert page.count("<h2") == 2


def test_a_tuning_that_was_saved(tmp_path):
    recipe = ns.Recipe(learning_rate=0.1, batch_size=32, n_train=1_000, momentum=0.9)
    larger = recipe.scaled_to(batch_size=128)
    steps = (
        Decision(1, "batch_size", recipe, 0.93, math.nan, None, None, 3, True, "<i>best</i>"),
        Decision(2, "learning_rate", larger, 0.929, 0.002, -0.001, 0.002, 3, True, "no loss"),
    )
    tuned = ns.TuneResult(
        larger, recipe, True, "It ended.", steps, 310, 78, 10.0, 6, 900, 1.5, 1e-3, 1e-5, ("mind",)
    )
    tuned.save(tmp_path / "tuning.json")
    again = ns.TuneResult.load(tmp_path / "tuning.json")
    assert repr(again) == repr(tuned)
    assert again.recipe == larger
    assert again.trail[0].difference is None
    told = run("report", str(tmp_path / "tuning.json")).out
    assert (
        "Take B = 128, learning rate 0.4, momentum 0.9: 78 updates where B = 32 takes 310" in told
    )
    page = (tmp_path / "tuning.html").read_text("utf-8")
    assert "&lt;i&gt;best" in page
    assert "mind" in page
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=32, n_train=1_000)
    other = dataclasses.replace(tuned, recipe=adam, start=adam, trail=(), inconclusive="no data")
    other.save(tmp_path / "adam.json")
    assert ns.TuneResult.load(tmp_path / "adam.json").recipe == adam
    assert "Inconclusive: no data" in run("report", str(tmp_path / "adam.json")).out


def test_a_prequential_evidence_that_was_saved(tmp_path):
    evidence = ns.prequential_evidence(GaussianNB(), load_iris(return_X_y=True), orders=2)
    evidence.save(tmp_path / "bets.json")
    again = ns.PrequentialEvidence.load(tmp_path / "bets.json")
    assert again.to_dict() == evidence.to_dict()
    told = run("report", str(tmp_path / "bets.json")).out
    assert f"E = {evidence.E:.4g} nats" in told
    assert evidence.odds in told
    page = (tmp_path / "bets.html").read_text("utf-8")
    assert 'download="blocks.csv"' in page
    (tmp_path / "bets.json").write_text('{"kind": "noisescale prequential evidence"}')
    assert "evidence that save wrote: " in run("report", str(tmp_path / "bets.json")).sentence
    with pytest.raises(ns.InputError, match="ends in .json"):
        evidence.save(tmp_path / "bets.csv")
    with pytest.raises(ns.InputError, match="cannot be written"):
        evidence.save(tmp_path / "no" / "bets.json")
