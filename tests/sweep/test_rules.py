import json
import math

import numpy as np
import pandas as pd
import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.sweep.batch_law import fit_batch_size_law
from noisescale.sweep.peak import find_peak
from noisescale.sweep.rules import fit_scaling_rule

# A few of a study's trials at every run of the tests, all of them in the long ones.
TRIALS = pytest.mark.parametrize("trials", [8, pytest.param(40, marks=pytest.mark.long)])
LADDER = np.array([*range(1, 10), 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450, 640, 900])


def frame_of(peaks, over, *, n_seeds=5, noise=0.002, draw=0, n_train=1000, momentum=0.9):
    """Runs with a known best batch size at each value of ``over``."""
    rng = np.random.default_rng(draw)
    rows = []
    for value, top in peaks.items():
        sizes = LADDER[(top / 4.5 < LADDER) & (top * 4.5 > LADDER)]
        for seed in range(n_seeds):
            for B in sizes:
                accuracy = 0.91 - 0.02 * math.log(B / top) ** 2 + rng.normal(0, noise)
                rows.append(
                    {
                        "batch_size": int(B),
                        "seed": seed,
                        "status": "done",
                        "n_classes": 10,
                        "learning_rate": 1.0,
                        "momentum": momentum,
                        "n_train": n_train,
                        "test_accuracy": accuracy,
                    }
                    | {over: value}
                )
    return pd.DataFrame(rows)


RATES = (0.3, 1.0, 1.8, 3.0, 5.6, 10.0)


def test_a_perfect_rule():
    frame = frame_of({rate: 20 * rate for rate in RATES}, "learning_rate", noise=0)
    rule = fit_scaling_rule(frame, "learning_rate")
    assert rule.slope.value == pytest.approx(1, abs=1e-6)
    assert rule.constant.value == pytest.approx(20, rel=1e-6)
    assert rule.predict(2.0).value == pytest.approx(40, rel=1e-6)
    assert not rule.excluded


def test_an_exact_rule_in_g_has_exact_slope_one():
    peaks = {rate: 1000 / (1 + 500 / rate) for rate in (1.0, 10.0, 100.0, 300.0)}
    rule = fit_scaling_rule(frame_of(peaks, "learning_rate", noise=0), "learning_rate")
    assert rule.exact_slope.value == pytest.approx(1, abs=1e-6)
    assert rule.slope.value < 0.99
    assert rule.optimal_noise_scale.value == pytest.approx(500 / 0.1, rel=1e-6)
    at = rule.predict_batch_size(learning_rate=30.0, n_train=1000, momentum=0.9)
    assert at.value == pytest.approx(1000 / (1 + 500 / 30), rel=1e-6)
    double = rule.predict_batch_size(learning_rate=15.0, n_train=1000, momentum=0.95)
    assert double.value == pytest.approx(at.value, rel=1e-6)


def as_per_class(frame, rows=slice(None)):
    """The same runs by the paper's convention: the cost divided, the learning rate multiplied."""
    rows = frame.index[rows]
    rates = frame["learning_rate"].astype(float)
    rates[rows] *= 10
    conventions = pd.Series("per_example", frame.index)
    conventions[rows] = "per_class"
    return frame.assign(learning_rate=rates, cost_convention=conventions)


def over_learning_rates():
    peaks = {0.05: 12, 0.1: 24, 0.15: 36, 0.2: 48}
    frame = frame_of(peaks, "learning_rate", noise=0)
    frame.loc[frame["learning_rate"] == 0.15, ["status", "n_classes"]] = ["failed", np.nan]
    return frame


def over_batch_sizes():
    frame = frame_of({B: B for B in (10, 20, 40, 80)}, "n_train", noise=0)
    return frame.assign(
        learning_rate=frame["batch_size"] / 200, batch_size=frame["n_train"], n_train=1000
    )


def plain(result):
    return json.loads(json.dumps(result.to_dict()))


@pytest.mark.parametrize("rows", [slice(None), slice(None, None, 2)], ids=["all", "every other"])
@pytest.mark.parametrize(
    ("frame", "call"),
    [
        (over_learning_rates(), lambda f: fit_scaling_rule(f, "learning_rate")),
        (over_batch_sizes(), lambda f: fit_scaling_rule(f, "batch_size", optimum="learning_rate")),
        (
            frame_of({m: 2 / (1 - m) for m in (0.5, 0.8, 0.9)}, "momentum", noise=0),
            lambda f: fit_scaling_rule(f, "momentum"),
        ),
        (
            over_batch_sizes()[lambda f: f["batch_size"] == 20],
            lambda f: find_peak(f, over="learning_rate"),
        ),
        (
            frame_of({0.05: 12, 0.2: 48}, "learning_rate", noise=0).assign(steps=10_000),
            lambda f: fit_batch_size_law(f, power=0.2, n_resamples=2),
        ),
    ],
    ids=["learning rate", "best learning rate", "momentum", "find_peak", "law"],
)
def test_runs_of_a_cost_per_class_are_those_of_a_cost_per_example(frame, call, rows):
    frame = frame.reset_index(drop=True)
    assert plain(call(as_per_class(frame, rows))) == plain(call(frame))


def test_the_noise_scale_is_that_of_a_cost_per_example():
    """Whose best batch at a learning rate of 0.1 is 20 of 1,000 examples: g = 49."""
    peaks = {rate: 1000 / (1 + 49 / (rate / 0.1)) for rate in (0.05, 0.1, 0.2, 0.4)}
    frame = as_per_class(frame_of(peaks, "learning_rate", noise=0))
    rule = fit_scaling_rule(frame, "learning_rate")
    g = ns.noise_scale(0.1, 20, 1000, momentum=0.9)
    assert rule.optimal_noise_scale.value == pytest.approx(g)
    at = rule.predict_batch_size(learning_rate=0.1, n_train=1000, momentum=0.9)
    assert at.value == pytest.approx(20)
    assert [point.value for point in rule.points] == [0.05, 0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cost_convention": "per_clas"}, "cost_convention must be one of .* got 'per_clas'"),
        ({"cost_convention": None}, "cost_convention must be one of"),
        ({"cost_convention": "per_class", "n_classes": np.nan}, "n_classes must be a finite"),
        ({"batch_size": 1001}, "batch_size must be at most n_train in every run, got 1001 of 1000"),
    ],
)
def test_runs_outside_the_domain_are_refused(changed, message):
    frame = frame_of({0.05: 12, 0.2: 48}, "learning_rate").assign(steps=10_000, **changed)
    for call in (lambda f: fit_scaling_rule(f, "learning_rate"), fit_batch_size_law):
        with pytest.raises(InputError, match=message):
            call(frame)


def test_momentum_enters_as_one_over_one_minus_m():
    momenta = (0.5, 0.8, 0.9, 0.95)
    frame = frame_of({m: 2 / (1 - m) for m in momenta}, "momentum", noise=0)
    rule = fit_scaling_rule(frame, "momentum")
    assert rule.slope.value == pytest.approx(1, abs=1e-6)
    assert rule.predict(0.96).value == pytest.approx(50, rel=1e-6)


@TRIALS
@pytest.mark.parametrize("slope", [1.0, 0.7])
def test_the_slopes_interval_covers_the_truth(slope, trials):
    rules = [
        fit_scaling_rule(
            frame_of({r: 20 * r**slope for r in RATES}, "learning_rate", draw=k),
            "learning_rate",
            n_resamples=150,
        )
        for k in range(trials)
    ]
    covered = np.mean([slope in rule.slope for rule in rules])
    assert covered > 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)
    half_widths = [(rule.slope.high - rule.slope.low) / 2 for rule in rules]
    assert np.median(half_widths) < 0.2
    significant = np.mean([rule.p_slope_one < 0.05 for rule in rules])
    assert significant < 0.15 if slope == 1 else significant > 0.9


@TRIALS
def test_predictions_cover_what_is_held_out(trials):
    held_out, covered = 3.0, 0
    for k in range(trials):
        frame = frame_of({rate: 20 * rate for rate in RATES}, "learning_rate", draw=100 + k)
        known = frame[frame["learning_rate"] != held_out]
        rule = fit_scaling_rule(known, "learning_rate", n_resamples=150)
        covered += 60 in rule.predict(held_out)
    assert covered >= 0.8 * trials


def test_peaks_at_the_edge_are_left_out_and_counted():
    frame = frame_of({rate: 20 * rate for rate in RATES}, "learning_rate")
    cut = frame[(frame["learning_rate"] != 10.0) | (frame["batch_size"] < 160)]
    rule = fit_scaling_rule(cut, "learning_rate")
    assert [value for value, _ in rule.excluded] == [10.0]
    assert "largest that was tried" in rule.excluded[0][1]
    assert len(rule.points) == 6
    assert "5 of 6 settings resolved" in repr(rule)


def test_settings_whose_runs_all_failed_are_counted():
    frame = frame_of({rate: 20 * rate for rate in RATES}, "learning_rate")
    frame.loc[frame["learning_rate"] == 3.0, "status"] = "failed"
    rule = fit_scaling_rule(frame, "learning_rate")
    assert rule.excluded == ((3.0, "every run failed"),)
    assert "5 of 6 settings resolved" in repr(rule)
    for call in (
        lambda: rule.predict(-1),
        lambda: rule.predict_batch_size(learning_rate=1, n_train=10, momentum=1),
    ):
        with pytest.raises(InputError):
            call()


def test_two_settings_make_no_slope():
    rule = fit_scaling_rule(frame_of({1.0: 20, 3.0: 60}, "learning_rate"), "learning_rate")
    assert rule.slope is None
    assert "no slope" in repr(rule)
    with pytest.raises(InputError, match="three are needed to predict"):
        rule.predict(2.0)


def test_the_best_learning_rate_at_a_fixed_batch_size():
    frame = frame_of({B: B for B in (10, 20, 40, 80)}, "n_train", noise=0)
    swapped = frame.assign(
        learning_rate=frame["batch_size"] / 20.0, batch_size=frame["n_train"], n_train=1000
    )
    rule = fit_scaling_rule(swapped, "batch_size", optimum="learning_rate")
    assert rule.slope.value == pytest.approx(1, abs=1e-6)
    assert rule.constant.value == pytest.approx(1 / 20, rel=1e-6)
    assert rule.exact_slope is None


def test_one_seed_fits_by_scatter():
    frame = frame_of({rate: 20 * rate for rate in RATES}, "learning_rate", n_seeds=1)
    rule = fit_scaling_rule(frame, "learning_rate")
    assert 1 in rule.slope
    assert rule.to_dict()["slope"]["value"] == rule.slope.value


def test_bad_requests():
    frame = frame_of({1.0: 20, 3.0: 60}, "learning_rate")
    with pytest.raises(InputError, match="over must be one of"):
        fit_scaling_rule(frame, "seed")
    with pytest.raises(InputError, match="has no column 'momentum'"):
        fit_scaling_rule(frame.drop(columns="momentum"), "momentum")
    with pytest.raises(InputError, match="cannot be both varied and optimised"):
        fit_scaling_rule(frame, "learning_rate", optimum="learning_rate")
