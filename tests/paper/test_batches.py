"""Figures 3, 4 and 8 judged on runs whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from noisescale.paper import figure3, figure4, figure8
from noisescale.paper.batches import PENALTIES, SIZES, late_steps
from noisescale.paper.claims import Verdict, conclude
from noisescale.paper.runs import Runs, updates_to
from noisescale.uncertainty import mean_of
from paper.circumstances import DECIDING, SMALL

STEPS = np.unique(np.geomspace(1, 10_000, 30).round())
R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED


def make_runs(cases, *, n_seeds=5, noise=1e-4, steps=STEPS, draw=0):
    """Runs with the given curves: (fields, accuracy of step, cross-entropy of step)."""
    rng = np.random.default_rng(draw)
    rows, curves = [], []
    for fields, accuracy, cross_entropy in cases:
        for seed in range(n_seeds):
            key = f"{sorted(fields.items())}-{seed}"
            a = accuracy(steps) + rng.normal(0, noise) + rng.normal(0, noise / 10, len(steps))
            ce = cross_entropy(steps) + rng.normal(0, noise)
            rows.append(
                {
                    "key": key,
                    **fields,
                    "seed": seed,
                    "status": "done",
                    "n_classes": 10,
                    "test_accuracy": a[-1],
                    "test_cross_entropy": ce[-1],
                }
            )
            curves.append(
                pd.DataFrame(
                    {"key": key, "step": steps, "test_accuracy": a, "test_cross_entropy": ce}
                )
            )
    return Runs(pd.DataFrame(rows), pd.concat(curves))


def rise(final, scale):
    return lambda step: final * step / (step + scale)


def bowl(final, low=0.3):
    return lambda step: (
        low + (final - low) * np.log10(step / 300) ** 2 / np.log10(10_000 / 300) ** 2
    )


def falling(step):
    return 2 - 0.4 * np.log10(step)


def verdicts(judgements):
    return {judgement.id: judgement.verdict for judgement in judgements}


def judge_figure3(runs, at=DECIDING):
    return figure3._judge(figure3.Data(at, runs, runs), 1000)


def test_the_papers_own_story_is_reproduced():
    runs = make_runs(
        [
            ({"batch_size": 30}, rise(0.92, 40), bowl(0.5)),
            ({"batch_size": 1000}, rise(0.90, 10), bowl(0.6)),
        ]
    )
    assert verdicts(judge_figure3(runs)) == {"C13": R, "C14": R, "C15": R}


def test_the_opposite_is_not_reproduced():
    runs = make_runs(
        [
            ({"batch_size": 30}, rise(0.88, 10), bowl(0.7)),
            ({"batch_size": 1000}, rise(0.90, 40), bowl(0.6)),
        ]
    )
    assert verdicts(judge_figure3(runs)) == {"C13": N, "C14": N, "C15": N}


def test_noise_leaves_it_undecided_and_small_scales_always_do():
    cases = [
        ({"batch_size": 30}, rise(0.901, 10), bowl(0.60)),
        ({"batch_size": 1000}, rise(0.9, 10), bowl(0.60)),
    ]
    noisy = [
        verdict
        for draw in range(20)
        for verdict in verdicts(judge_figure3(make_runs(cases, noise=0.05, draw=draw))).values()
    ]
    assert noisy.count(U) > 0.75 * len(noisy)  # at two errors with four degrees of freedom
    assert set(verdicts(judge_figure3(make_runs(cases), SMALL)).values()) == {U}


@pytest.mark.parametrize("noise", [2e-4, 0.01])
def test_a_gap_that_opens_late_is_not_surely_there_before(noise):
    """C14 before 300 updates."""

    def opens_late(step):
        return 0.9 * step / (step + 10) + 0.06 * (step > 1_000)

    runs = make_runs(
        [
            ({"batch_size": 30}, opens_late, bowl(0.5)),
            ({"batch_size": 1000}, rise(0.9, 10), bowl(0.6)),
        ],
        noise=noise,
        draw=4,
    )
    data = figure3.Data(DECIDING, runs, runs)
    assert verdicts(figure3._judge(data, 1000))["C14"] is R


def test_a_curve_that_only_falls_has_no_minimum_inside():
    runs = make_runs(
        [
            ({"batch_size": 30}, rise(0.92, 40), falling),
            ({"batch_size": 1000}, rise(0.90, 10), bowl(0.6)),
        ]
    )
    assert verdicts(judge_figure3(runs))["C15"] is N


@pytest.mark.parametrize(
    ("gap", "noise", "verdict"), [(0.0, 1e-3, R), (0.02, 1e-3, N), (0.003, 1e-4, U)]
)
def test_no_gap_in_a_linear_model(gap, noise, verdict):
    values = gap + noise * np.array([-2, -1, 0, 1, 2])
    assert (
        figure3._judge_linear(figure3.Data(DECIDING, None, None), mean_of(values)).verdict
        is verdict
    )


@pytest.mark.parametrize(("fails_up_to", "verdict"), [(10, R), (5, R), (3, N), (20, N)])
def test_the_largest_batch_that_cannot_train(fails_up_to, verdict):
    sizes = SIZES["full"].batch_sizes
    runs = make_runs(
        [
            (
                {"batch_size": B},
                rise(0.1 if fails_up_to >= B else 0.92 - 0.01 * abs(np.log(B / 40)), 1),
                falling,
            )
            for B in sizes
        ]
    )
    judged = verdicts(figure4._judge(figure4.Data(DECIDING, runs)))
    assert judged == {"C16": verdict, "C17": R}


def test_a_peak_at_the_largest_batch_is_no_interior_peak():
    runs = make_runs(
        ({"batch_size": B}, rise(0.8 + 0.01 * np.log(B), 1), falling)
        for B in SIZES["full"].batch_sizes
    )
    assert verdicts(figure4._judge(figure4.Data(DECIDING, runs)))["C17"] is N


def test_diverged_runs_count_as_chance():
    runs = make_runs([({"batch_size": 3}, rise(0.9, 1), falling)])
    runs.frame["status"] = "diverged"
    short = Runs(runs.frame, runs.curves[runs.curves["step"] < 100])
    assert (short.final("test_accuracy", batch_size=3) == 0.1).all()
    assert short.final("test_cross_entropy", batch_size=3)[0] == pytest.approx(np.log(10))


def regularised(small, large, penalty, wobble=0.01):
    def shaking(step):
        return rise(small, 10)(step) + wobble * np.sin(step)

    name = {"prior_precision": PENALTIES[penalty]}
    return [
        ({"batch_size": 30} | name, shaking, falling),
        ({"batch_size": 1000} | name, rise(large, 40), falling),
    ]


def test_l2_closes_the_gap():
    penalty = next(iter(PENALTIES))
    steps = np.array(late_steps(SIZES["full"]))[1:]
    plain = make_runs(
        [
            ({"batch_size": 30}, rise(0.92, 40), bowl(0.9)),
            ({"batch_size": 1000}, rise(0.90, 10), bowl(1.0)),
        ]
    )
    closed = make_runs(regularised(0.915, 0.913, penalty), steps=steps)
    judged = verdicts(figure8._judge(figure8.Data(DECIDING, plain, closed), penalty))
    assert judged == {"C23": R, "C24": R, "C25": R, "C26": R, "C39": R}
    wider = make_runs(regularised(0.93, 0.89, penalty, wobble=0), steps=steps)
    judged = verdicts(figure8._judge(figure8.Data(DECIDING, plain, wider), penalty))
    assert judged["C23"] is N
    assert judged["C26"] is N
    assert judged["C39"] is N


def test_updates_to_a_share_of_the_end_are_interpolated_in_log_steps():
    steps = np.array([0.0, 1, 10, 100, 1000])
    curve = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
    assert updates_to(steps, curve, 0.7) == pytest.approx(10**1.5)
    assert updates_to(steps, np.array([0.1, 1, 1, 1, 1])) == 1
    assert updates_to(steps, np.array([1.0, 1, 1, 1, 1])) == 1


def test_conclusions_need_every_part():
    def verdict(*parts, decidable=True):
        return conclude("C13", parts, decidable=decidable, measured=None).verdict

    assert verdict(True, True) is R
    assert verdict(True, None) is U
    assert verdict(None, False) is N
    assert verdict(True, decidable=False) is U
    assert verdict() is U
