"""Where section 5 looks for its peaks, and what it says of slopes."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from noisescale.jobs.progress import Progress
from noisescale.paper import figure5, figure6
from noisescale.paper.claims import Verdict
from noisescale.paper.runs import Runs
from noisescale.paper.scaling import LADDER, judge_slope, run_until_interior, setting
from noisescale.sweep.peak import find_peak
from noisescale.sweep.rules import fit_scaling_rule
from noisescale.uncertainty import Estimate

R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED


class FakeContext(SimpleNamespace):
    """Gives runs a curve with a known top instead of training them."""

    def runs(self, plan):
        rows = [
            run.to_dict()
            | {"key": run.key, "status": "done", "n_classes": 10}
            | {"test_accuracy": self.accuracy(run) + 1e-4 * run.seed}
            for run in plan
        ]
        return Runs(pd.DataFrame(rows), pd.DataFrame(columns=["key"]))


class Told(Progress):
    def __init__(self):
        self.lines = []

    def line(self, text):
        self.lines.append(text)


def context(top, scale="full"):
    def accuracy(run):
        return 0.9 - 0.01 * math.log(run.batch_size / top(run)) ** 2

    return FakeContext(
        scale=scale,
        seeds=2,
        at=SimpleNamespace(scale=scale, seeds=2, decidable=True),
        data=SimpleNamespace(name="mnist-embedded"),
        accuracy=accuracy,
        progress=Told(),
    )


def test_the_ladder_is_fine_enough():
    assert LADDER[:9] == tuple(range(1, 10))
    ratios = np.diff(np.log(LADDER[8:]))
    assert np.exp(ratios.max()) < 1.5


@pytest.mark.parametrize("top", [1.0, 3.0, 20.0, 150.0, 800.0])
def test_the_window_moves_until_the_peak_is_inside(top):
    # The search starts near 20, wherever the peak is.
    runs = run_until_interior(context(lambda run: top), [setting(steps=100)])
    sizes = sorted(set(runs.frame["batch_size"]))
    best = min(sizes, key=lambda B: abs(math.log(B / top)))
    below, above = sizes.index(best), len(sizes) - 1 - sizes.index(best)
    assert below >= min(3, LADDER.index(best))
    assert above >= 3 or LADDER[LADDER.index(sizes[-1]) + 1] > 1000


def test_a_search_that_ends_before_its_peak_is_inside_says_so():
    searched = [setting(steps=100), setting(learning_rate=0.3, steps=100)]
    for scale, told in (("full", []), ("quick", ["1 of 2 searches for a peak ended near an end"])):
        fake = context(lambda run: 6 if run.learning_rate == 0.3 else 150.0, scale)
        frame = run_until_interior(fake, searched).frame
        assert [line.partition(" of their")[0] for line in fake.progress.lines] == told
        at_end = find_peak(frame[frame["learning_rate"] == 1.0])
        assert (at_end.undetermined is None) == (scale == "full")


@pytest.mark.parametrize("top", [4.0, 30.0, 150.0, 1_000.0])
def test_a_coarse_pass_spares_the_long_runs_and_changes_no_peak(top):
    # The rule says 1,200.
    fake = context(lambda run: top)
    at = setting(n_train=5_000, learning_rate=12.0, steps=100)
    frame = run_until_interior(fake, [at], coarse=True).frame
    sizes = frame["batch_size"][frame["seed"] == 1]
    best = min(LADDER, key=lambda B: abs(math.log(B / top)))
    around = LADDER[LADDER.index(best) - 3 : LADDER.index(best) + 4]
    assert set(around) <= set(sizes)
    assert {20, 80, 320, 1280} <= set(frame["batch_size"])
    if top < 300:
        assert max(sizes) <= 4 * 4 * top
    assert find_peak(frame).fitted == pytest.approx(top, rel=0.05)


def test_rules_that_are_not_true_are_found_out():
    settings = [setting(learning_rate=rate, steps=100) for rate in (0.3, 1.0, 3.0, 10.0)]
    found = context(lambda run: 20 * run.learning_rate**0.5)
    rule = fit_scaling_rule(run_until_interior(found, settings).frame, "learning_rate")
    assert rule.slope.value == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (Estimate(1.1, low=0.9, high=1.3), R),
        (Estimate(0.8, low=0.7, high=0.9), N),
        (Estimate(1.0, low=0.6, high=1.4), U),
        (None, U),
    ],
)
def test_slopes_are_judged_with_their_width(slope, verdict):
    rule = SimpleNamespace(n_resolved=3, excluded=[])
    judged = judge_slope(SimpleNamespace(decidable=True), "C18", rule, slope)
    assert judged.verdict is verdict
    few = judge_slope(SimpleNamespace(decidable=True), "C33", rule, slope, fewest=4)
    assert few.verdict is U


def peaks_at(accuracies):
    """Runs whose peak accuracy at each learning rate is given."""
    fake = context(lambda run: 20 * run.learning_rate)
    fake.seeds = 4
    plain = fake.accuracy
    fake.accuracy = lambda run: (
        plain(run)
        - 0.9
        + accuracies[run.learning_rate]
        + 1e-3 * ((7 * run.seed + 3 * run.batch_size) % 5)
    )
    settings = [setting(learning_rate=rate, steps=100) for rate in accuracies]
    runs = run_until_interior(fake, settings)
    return figure5._judge_peaks(figure5.Data(fake.at, runs, None, None)).verdict


def test_peaks_that_hold_and_then_fall():
    assert peaks_at({0.3: 0.92, 1.0: 0.92, 3.0: 0.92, 5.6: 0.88}) is R
    assert peaks_at({0.3: 0.92, 1.0: 0.92, 3.0: 0.92, 5.6: 0.92}) is N
    assert peaks_at({0.3: 0.95, 1.0: 0.92, 3.0: 0.92, 5.6: 0.88}) is N
    late = {0.3: 0.92, 1.0: 0.92, 5.6: 0.919, 18.0: 0.7}
    assert peaks_at(late) is N


def test_monotone_within_errors():
    def series(*means):
        noise = np.array([-1e-3, 0, 1e-3])
        return [mean + noise * (1 + k % 2) for k, mean in enumerate(means)]

    assert figure6._monotone(series(0.8, 0.85, 0.9), 1) is True
    assert figure6._monotone(series(0.8, 0.9, 0.85), 1) is False
    assert figure6._monotone(series(0.9, 0.85, 0.8), -1) is True
    assert figure6._monotone([], 1) is None
