"""Verdicts recomputed from results/ by other code: NumPy, csv tables and JSON, from the criteria.

Nothing of noisescale is used but the verdict that is compared at the end.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from noisescale.paper import SECTIONS
from noisescale.paper.shipped import shipped

RESULTS = Path(__file__).parents[2] / "results"
YES, NO, OPEN = "reproduced", "not reproduced", "undecided"


@cache
def judged(section):
    """The package's verdicts under primary conventions."""
    found = SECTIONS[section].judge(shipped(SECTIONS[section]).data).judgements
    return {judgement.id: judgement.verdict.value for judgement in found if judgement.primary}


@cache
def read(section):
    """Its verdicts on second readings, a list of conventions each."""
    found = {}
    for judgement in SECTIONS[section].judge(shipped(SECTIONS[section]).data).readings:
        found.setdefault(judgement.id, []).append(judgement.verdict.value)
    return found


@cache
def data(section):
    return json.loads((RESULTS / "sections" / f"{section}.json").read_text())["data"]


@cache
def tables():
    runs = pd.concat([pd.read_csv(path) for path in RESULTS.glob("figure*.csv")])
    return runs.drop_duplicates("key"), pd.read_csv(RESULTS / "curves.csv")


def runs(keys):
    return tables()[0][lambda frame: frame["key"].isin(keys)]


def finals(frame, metric="test_accuracy"):
    """By seed; a run that diverged guesses."""
    frame = frame.sort_values("seed")
    return np.where(frame["status"] == "done", frame[metric], 0.1)


def curve(frame, metric="test_accuracy"):
    """Steps, and a row a seed."""
    long = tables()[1].merge(frame[["key", "seed"]], on="key")
    wide = long.pivot(index="seed", columns="step", values=metric)
    return wide.columns.to_numpy(float), wide.to_numpy(float)


def errors_above(differences, bound=0.0):
    """The mean over seeds less the bound, in standard errors."""
    differences = np.asarray(differences, float)
    return (differences.mean() - bound) / (differences.std(ddof=1) / len(differences) ** 0.5)


def by_errors(number, k):
    return YES if number > k else NO if number < -k else OPEN


def updates_to(part, steps, curves):
    found = []
    for one in curves:
        k = next(k for k, value in enumerate(one) if value >= part * one[-1])
        share = (part * one[-1] - one[k - 1]) / (one[k] - one[k - 1])
        found.append(steps[k - 1] * (steps[k] / steps[k - 1]) ** share)
    return np.array(found)


def logistic(section, labels):
    (found,) = (c for key, c in data(section)["curves"] if key == ["raw pixels", labels])
    return {name: np.array(column, float) for name, column in found.items()}


def margins():
    ratio = logistic("1", "informative")["margin"][:, 0] / logistic("1", "random")["margin"][:, 0]
    inside = (ratio >= 1.3) & (ratio <= 1.7)
    return YES if inside.all() else NO if not inside.any() else OPEN


def regimes_of_the_evidence():
    E = logistic("2", "informative")["E"]
    holds = [one[0] > 0 > one.min() and abs(one[-1]) < 0.01 * abs(one.min()) for one in E]
    return YES if all(holds) else NO if not any(holds) else OPEN


def minima_of_evidence_and_of_cross_entropy():
    found = logistic("2", "informative")
    x = np.log10(found["prior_precision"])

    def lowest(y):
        k = y.argmin()
        a, b, c = y[k - 1], y[k], y[k + 1]  # a parabola through three equally spaced points
        return x[k] + (x[1] - x[0]) * (a - c) / (2 * (a - 2 * b + c))

    pairs = list(zip(found["E"], found["test_cross_entropy"], strict=True))
    apart = np.mean([abs(lowest(E) - lowest(ce)) for E, ce in pairs])
    rank = [np.corrcoef(E.argsort().argsort(), ce.argsort().argsort())[0, 1] for E, ce in pairs]
    return YES if apart <= 0.5 and np.mean(rank) > 0.7 else NO


def small_batches_converge_later():
    frame = runs(data("3")["network"])
    small, large = (updates_to(0.95, *curve(frame[frame.batch_size == B])) for B in (30, 1000))
    return by_errors(errors_above(small - large), 2)


def gap_after_a_thousand_updates():
    frame = runs(data("3")["network"])
    steps, small = curve(frame[frame.batch_size == 30])
    gaps = (small - curve(frame[frame.batch_size == 1000])[1]).T
    early = [errors_above(gap) for step, gap in zip(steps, gaps, strict=True) if 0 < step < 300]
    late = [errors_above(gap) for step, gap in zip(steps, gaps, strict=True) if step >= 3_000]
    if max(early) >= 2 or min(late) < -3:
        return NO
    return YES if min(late) > 3 else OPEN


def interior_best_batch():
    frame = runs(data("4")["runs"])
    accuracy = {B: finals(part) for B, part in frame.groupby("batch_size")}
    means = {B: values.mean() for B, values in accuracy.items()}
    best = max(means, key=means.get)
    trainable = [B for B in means if means[B] >= 0.5 * means[best]]
    ends = [by_errors(errors_above(accuracy[best] - accuracy[B]), 3)
            for B in (min(trainable), max(means))]  # fmt: skip
    return NO if NO in ends else YES if ends == [YES, YES] else OPEN


def figure_8(B, prior_precision):
    keys = data("8")["regularised"] if prior_precision else data("8")["plain"]
    frame = runs(keys)
    return frame[(frame.batch_size == B) & (frame.prior_precision == prior_precision)]


def l2_shrinks_the_gap():
    plain, penalised = (finals(figure_8(30, L)) - finals(figure_8(1000, L)) for L in (0, 0.1))
    if penalised.mean() > plain.mean() / 2:
        return NO
    return by_errors(errors_above(plain - penalised), 2)


def cross_entropy_stays_low_with_l2():
    curves = [curve(figure_8(B, 0.1), "test_cross_entropy")[1] for B in (30, 1000)]
    rises = [(one[:, -1] / one.min(axis=1)).mean() for one in curves]
    return YES if max(rises) <= 1.05 else NO


def full_batches_converge_later_with_l2():
    small, large = (updates_to(0.95, *curve(figure_8(B, 0.1))) for B in (30, 1000))
    return by_errors(errors_above(large - small), 2)


def small_batches_fluctuate_with_l2():
    spread = []
    for B in (30, 1000):
        steps, curves = curve(figure_8(B, 0.1))
        spread.append(curves[:, steps >= 0.8 * steps[-1]].std(axis=1, ddof=1))
    apart = (finals(figure_8(30, 0.1)) - finals(figure_8(1000, 0.1))).mean()
    return NO if abs(apart) >= 0.01 else by_errors(errors_above(spread[0] - spread[1]), 2)


def sharper_for_random_labels_and_large_batches():
    top = {
        (labels, B): np.array([minimum["top_curvature"] for minimum in minima])
        for labels in ("true", "random")
        for B, minima in data("10")[labels]
    }
    parts = [
        by_errors(errors_above(top["random", 1000] - top["true", 1000]), 2),
        by_errors(errors_above(top["true", 1000] - top["true", 30]), 2),
    ]
    return NO if NO in parts else YES if parts == [YES, YES] else OPEN


def evidence_goes_with_accuracy():
    columns = [minima for _, minima in data("10")["true"]]
    found = []
    for seed in zip(*columns, strict=True):
        E = np.array([m["E"]["largest evidence"] for m in seed]).argsort().argsort()
        accuracy = np.array([m["test_accuracy"] for m in seed]).argsort().argsort()
        found.append(np.corrcoef(E, accuracy)[0, 1])
    # The bootstrap of a mean stays between the smallest and the largest value.
    return YES if max(found) < 0 else NO if min(found) > 0 else OPEN


def samples_beat_the_minimum():
    draws = data("A")["draws"]["the paper's network"]
    errors = np.array([np.array(one["samples"])[..., 0].ravel() for one in draws])
    better = (errors < np.array([[one["minimum"][0]] for one in draws])).mean(axis=1)
    reach = 2 / errors.shape[1] ** 0.5  # of a fraction of so many draws, generously
    return YES if better.mean() - reach > 0.5 else NO if better.mean() + reach < 0.5 else OPEN


def large_batches_without_loss():
    mnist = data("E")["tuned"][0]
    grown = mnist["result"]["recipe"]["batch_size"] / mnist["result"]["start"]["batch_size"]
    difference = np.subtract(mnist["after"], mnist["before"])
    return YES if grown >= 9 and errors_above(difference) >= -1 else NO


def best_batch_goes_with_n():
    frame = runs(data("6")["runs"]).query("n_train >= 20_000 and steps == 10_000")
    tops = []
    for N, part in frame.groupby("n_train"):
        by_size = part.groupby("batch_size").test_accuracy
        mean = by_size.mean()[by_size.count() == part.seed.nunique()]
        k = int(mean.to_numpy().argmax())
        near = mean.iloc[max(k - 2, 0) : k + 3]
        a, b, _ = np.polyfit(np.log(near.index), near, 2)
        tops.append((np.log(N), -b / (2 * a)))
    (slope, _), covariance = np.polyfit(*np.transpose(tops), 1, cov=True)
    reach = 3.18 * covariance[0, 0] ** 0.5  # Student's t of five points on a line
    return YES if abs(slope - 1) <= reach <= 0.3 else NO if reach <= 0.3 else OPEN


T = 2.776  # Student's t of five seeds, two-sided 95 %


def interval(values):
    values = np.asarray(values, float)
    reach = T * values.std(ddof=1) / len(values) ** 0.5
    return values.mean() - reach, values.mean() + reach


def cross_entropy_after_20_000_updates():
    """R24: final over lowest at most 1.05, both batch sizes, under both conventions."""
    frame, found = runs(data("R24")["runs"]), []
    for _, part in sorted(frame.groupby("prior_precision")):  # divided 0.1; undivided ten times it
        ends = []
        for B in (30, 1000):
            curves = curve(part[part.batch_size == B], "test_cross_entropy")[1]
            ends.append(interval(curves[:, -1] / curves.min(axis=1)))
        apart = any(low > 1.05 for low, _ in ends)
        found.append(NO if apart else YES if all(high <= 1.05 for _, high in ends) else OPEN)
    return found


def curvature_at_equal_loss():
    """R37: random over true labels, where both have the same loss; the full batch first."""
    paths, found = {tuple(key): seeds for key, seeds in data("R37")["trajectories"]}, []
    for B in (1000, 30):
        logs = []
        for random, true in zip(paths["random", B], paths["true", B], strict=True):
            (x, f), (y, g) = (
                np.log(sorted(zip(one["nll"], one["top"], strict=True))).T for one in (random, true)
            )
            at = np.linspace(max(x[0], y[0]), min(x[-1], y[-1]), 1_000)
            logs.append(np.mean(np.interp(at, x, f) - np.interp(at, y, g)))
        low, high = interval(logs)
        found.append(YES if low > 0 else NO if high < 0 else OPEN)
    return found


def samples_under_stronger_priors():
    """R38: more than half of the samples are better, if the chains have converged."""
    found = []
    for prior in ("30", "100", "300", "fan-in"):
        draws = data("R38")["draws"][prior]
        better = [np.array(d["samples"])[..., 0].ravel() < d["minimum"][0] for d in draws]
        low, high = interval([one.mean() for one in better])
        sure = max(d["r_hat"] for d in draws) <= 1.05
        found.append((YES if low > 0.5 else NO if high < 0.5 else OPEN) if sure else OPEN)
    return found


def undivided_penalty():
    """R23, R25 and R39: figure 8 with the penalty undivided, which is ten times the precision."""
    small, large = (figure_8(B, 1.0) for B in (30, 1000))
    plain = finals(figure_8(30, 0)) - finals(figure_8(1000, 0))
    penalised = finals(small) - finals(large)
    shrinks = penalised.mean() < plain.mean() / 2 and interval(plain - penalised)[0] > 0
    spreads, times, without = [], [], []
    for B in (30, 1000):
        steps, curves = curve(figure_8(B, 1.0))
        spreads.append(curves[:, steps >= 0.8 * steps[-1]].std(axis=1, ddof=1))
        times.append(updates_to(0.99, steps, curves))
        without.append(updates_to(0.99, *curve(figure_8(B, 0))))
    later = interval(times[1] - times[0])[0] > 0 and interval(without[0] - without[1])[0] > 0
    alike = max(np.abs(interval(penalised))) < 0.01
    fluctuates = interval(spreads[0] - spreads[1])[0] > 0 and alike
    return [[YES if holds else OPEN] for holds in (shrinks, later, fluctuates)]


READ_AGAIN = {
    ("R24", "R24"): cross_entropy_after_20_000_updates,
    ("R37", "R37"): curvature_at_equal_loss,
    ("R38", "R38"): samples_under_stronger_priors,
}


@pytest.mark.parametrize(("section", "reading"), READ_AGAIN)
def test_other_code_comes_to_the_same_verdict_on_a_reading(section, reading):
    assert READ_AGAIN[section, reading]() == read(section)[reading]


def test_other_code_finds_figure_8_with_the_penalty_undivided():
    assert undivided_penalty() == [read("8")[name] for name in ("R23", "R25", "R39")]


RECOMPUTED = {
    ("1", "C05"): margins,
    ("2", "C10"): regimes_of_the_evidence,
    ("2", "C11"): minima_of_evidence_and_of_cross_entropy,
    ("3", "C13"): small_batches_converge_later,
    ("3", "C14"): gap_after_a_thousand_updates,
    ("4", "C17"): interior_best_batch,
    ("6", "C20"): best_batch_goes_with_n,
    ("8", "C23"): l2_shrinks_the_gap,
    ("8", "C24"): cross_entropy_stays_low_with_l2,
    ("8", "C25"): full_batches_converge_later_with_l2,
    ("8", "C39"): small_batches_fluctuate_with_l2,
    ("10", "C32"): evidence_goes_with_accuracy,
    ("10", "C37"): sharper_for_random_labels_and_large_batches,
    ("A", "C38"): samples_beat_the_minimum,
    ("E", "C31"): large_batches_without_loss,
}


@pytest.mark.parametrize(("section", "claim"), RECOMPUTED)
def test_other_code_comes_to_the_same_verdict(section, claim):
    assert RECOMPUTED[section, claim]() == judged(section)[claim]
