"""Verdicts recomputed from results/ by other code: NumPy, csv tables and JSON, from the criteria.

Nothing of noisescale is used but the verdict that is compared at the end.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from judged import findings
from noisescale.paper import SECTIONS

RESULTS = Path(__file__).parents[2] / "results"
YES, NO, OPEN = "reproduced", "not reproduced", "undecided"


@cache
def judged(section):
    """The package's verdicts under primary conventions."""
    found = findings(section).judgements
    return {judgement.id: judgement.verdict.value for judgement in found if judgement.primary}


@cache
def read(section):
    """Its verdicts on second readings, a list of conventions each."""
    found = {}
    for judgement in findings(section).readings:
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
    shrinks = interval(penalised - plain / 2)[1] < 0 and interval(plain - penalised)[0] > 0
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


def within(found, low, high):
    """Of an interval: inside, outside, neither."""
    if low <= found[0] and found[1] <= high:
        return YES
    return NO if found[1] < low or found[0] > high else OPEN


def when_the_gap_opens():
    """R14: when the gap exceeds 3 SE (t, 99 %) for good, with any seed left out."""
    frame = runs(data("3")["network"])
    steps, small = curve(frame[frame.batch_size == 30])
    gaps = small - curve(frame[frame.batch_size == 1000])[1]
    ends = []
    for out in (None, *range(5)):
        some = gaps if out is None else np.delete(gaps, out, axis=0)
        t = {5: 4.604, 4: 5.841}[len(some)]
        sure = some.mean(axis=0) > t * some.std(axis=0, ddof=1) / len(some) ** 0.5
        first = np.flatnonzero(~sure)[-1] + 1  # from here on it is there
        ends += [steps[first - 1], steps[first]]
    return [within((min(ends), max(ends)), 500, 2_000)]


def law_or_slope_one():
    """R20: tops by parabolas through three and five sizes, which differ by more than seeds do."""
    frame, tops, errors = runs(data("law")["runs"]).query("steps == 40_000"), [], []
    for _, part in frame.groupby("n_train"):
        mean = part.groupby("batch_size").test_accuracy.mean()
        x, k, two = np.log(mean.index.to_numpy(float)), int(mean.to_numpy().argmax()), []
        for reach in (1, 2):
            near = slice(k - reach, k + reach + 1)
            a, b, _ = np.polyfit(x[near], mean.to_numpy()[near], 2)
            two.append(-b / (2 * a))
        tops.append(np.mean(two))
        errors.append(abs(two[1] - two[0]) / 2)
    table = pd.read_csv(RESULTS / "predictions.csv").query("steps == 40_000")
    y, e, law = np.array(tops), np.array(errors), np.log(table.predicted.to_numpy())
    one = np.log(table.n_train.to_numpy())
    slope, by_law = np.diff(y) / np.diff(one), np.diff(law) / np.diff(one)
    error = np.hypot(*e) / np.diff(one)
    ratio = density((slope - by_law) / error) / density((slope - 1) / error)
    heights = np.linspace(min(y - one), max(y - one), 2_001)[:, None]
    of_sizes = density((y - law) / e) / density((y - one - heights) / e).max()
    both = min(ratio, of_sizes), max(ratio, of_sizes)
    return [YES if both[0] >= 20 else NO if both[1] <= 1 / 20 else OPEN]


def density(t):
    """Student's t of five seeds, but for a constant."""
    return np.prod((1 + np.square(t) / 4) ** -2.5, axis=-1)


def equal_noise_at_small_steps():
    """R29: paired by seed, every ratio inside 1 +- 0.1, twice g apart by more than a half."""
    shown = [
        {(s["batch_size"], s["momentum"], s["kind"]): np.mean(blocks) for s, blocks in one}
        for one in data("R29")["shown"]
    ]
    equal = [key for key in shown[0] if key[2] == "equal g"]
    found = [
        within(interval([one[a] / one[b] for one in shown]), 0.9, 1.1)
        for k, a in enumerate(equal)
        for b in equal[:k]
    ]
    for B, m, kind in shown[0]:
        if kind == "twice g":
            ratio = interval([one[B, m, kind] / one[B, m, "equal g"] for one in shown])
            found.append(YES if ratio[0] > 1.5 else NO if ratio[1] < 1.5 else OPEN)
    return [NO if NO in found else YES if set(found) == {YES} else OPEN]


def one_procedure_for_figures_1_and_2():
    """R05-11: no cell holds them all, if in each one claim at least fails in every seed."""
    cells, broken = {}, []
    for (cell, labels), curves in data("R05-11")["curves"]:
        cells.setdefault(cell, {})[labels] = {k: np.array(v, float) for k, v in curves.items()}
    for cell in cells.values():
        ratio = cell["informative"]["margin"][:, 0] / cell["random"]["margin"][:, 0]
        loss = cell["informative"]["test_cross_entropy"]
        both_signs = (loss[:, 0] > np.log(2)) & (loss.min(axis=1) < np.log(2))
        broken.append(not ((ratio >= 1.3) & (ratio <= 1.7)).any() or not both_signs.any())
    return [NO if len(cells) == 8 and all(broken) else OPEN]


def appendix_e_in_the_unit_of_the_paper():
    """R31: nine times the batch, and at most 0.002 lost, by twelve fresh seeds."""
    tuned = data("R31")["tuned"]
    grown = tuned["result"]["recipe"]["batch_size"] / tuned["result"]["start"]["batch_size"]
    change = np.subtract(tuned["after"], tuned["before"])
    low = change.mean() - 2.201 * change.std(ddof=1) / 12**0.5  # t of twelve
    return [
        YES if grown >= 9 and low >= -0.002 and len(change) == 12 else NO if grown < 9 else OPEN
    ]


def best_rate_goes_with_the_batch():
    """R33: too few batch sizes whose best rate stands out of the spread of those that train."""
    frame, used = runs(data("5")["footnote_runs"]).query("n_train == 1000"), 0
    for _, part in frame[frame.batch_size.isin([7, 14, 28, 56])].groupby("batch_size"):
        part = part.assign(accuracy=part.test_accuracy.where(part.status == "done", 0.1))
        table = part.pivot(index="seed", columns="learning_rate", values="accuracy")
        errors = 1 - table.dropna(axis="columns").to_numpy()
        mean, best = errors.mean(axis=0), int(errors.mean(axis=0).argmin())
        behind = errors - errors[:, [best]]
        near = [k for k in range(len(mean)) if k != best and mean[k] < 2 * mean[best]]
        spread = (behind[:, near].var(axis=0, ddof=1).mean() / len(errors)) ** 0.5
        used += min(mean[0], mean[-1]) - mean[best] > 2 * spread
    return [OPEN if used < 4 else YES]


READ_AGAIN = {
    ("3", "R14"): when_the_gap_opens,
    ("5", "R33"): best_rate_goes_with_the_batch,
    ("law", "R20"): law_or_slope_one,
    ("R05-11", "R05-11"): one_procedure_for_figures_1_and_2,
    ("R29", "R29"): equal_noise_at_small_steps,
    ("R31", "R31"): appendix_e_in_the_unit_of_the_paper,
    ("R24", "R24"): cross_entropy_after_20_000_updates,
    ("R37", "R37"): curvature_at_equal_loss,
    ("R38", "R38"): samples_under_stronger_priors,
}


@pytest.mark.parametrize(("section", "reading"), READ_AGAIN)
def test_other_code_comes_to_the_same_verdict_on_a_reading(section, reading):
    assert READ_AGAIN[section, reading]() == read(section)[reading]


def test_other_code_finds_figure_8_with_the_penalty_undivided():
    assert undivided_penalty() == [read("8")[name] for name in ("R23", "R25", "R39")]


def test_every_reading_is_recomputed():
    named = {reading for _, reading in READ_AGAIN} | {"R23", "R25", "R39"}
    assert named == {reading for section in SECTIONS for reading in read(section)}


def test_a_cell_of_the_grid_is_figure_2_again():
    """By other code on the way there: raw images at the exact minimum are those of figure 2."""
    cells = {tuple(key): curves for key, curves in data("R05-11")["curves"]}
    for labels in ("informative", "random"):
        again, first = cells["raw, exact minimum", labels], logistic("2", labels)
        np.testing.assert_allclose(again["E"], first["E"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(again["test_accuracy"], first["test_accuracy"], atol=2e-4)


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
