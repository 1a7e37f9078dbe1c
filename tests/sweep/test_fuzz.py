"""Frames and plans out of hand: a sentence, or a result without holes; never another exception."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisescale.errors import InputError
from noisescale.sweep import RunConfig, find_peak, fit_scaling_rule, make_plan

ODD = st.sampled_from([None, "text", "3", math.nan, math.inf, -1, 0, 1e308, 10**400, True, [1], {}])
PLAIN = {
    "batch_size": st.sampled_from([4, 8, 16, 32, 64]),
    "learning_rate": st.sampled_from([0.1, 0.3, 1.0]),
    "momentum": st.sampled_from([0.0, 0.9]),
    "n_train": st.just(1000),
    "seed": st.integers(0, 2),
    "status": st.sampled_from(["done", "done", "done", "diverged", "failed"]),
    "n_classes": st.just(10),
    "test_accuracy": st.floats(0, 1),
    "score": st.floats(-1e3, 1e3),
}


@st.composite
def frames(draw):
    rows = [
        {name: draw(values) for name, values in PLAIN.items()}
        for _ in range(draw(st.integers(0, 12)))
    ]
    frame = pd.DataFrame(rows, columns=list(PLAIN), dtype=object)
    for _ in range(draw(st.integers(0, 2))):  # most mistakes come alone
        column = draw(st.sampled_from(list(PLAIN)))
        if draw(st.booleans()) and column in frame:
            frame = frame.drop(columns=column)
        elif column in frame and len(frame):
            frame.at[draw(st.integers(0, len(frame) - 1)), column] = draw(ODD)
    frame = frame.drop_duplicates(["seed", "batch_size"]) if _comparable(frame) else frame
    return frame if draw(st.booleans()) else frame.infer_objects()


def _comparable(frame):
    try:
        frame.duplicated(["seed", "batch_size"])
    except (KeyError, TypeError):
        return False
    return True


@given(
    frame=frames() | ODD,
    over=st.sampled_from(["batch_size", "learning_rate", "seed", "nothing"]) | ODD,
    metric=st.sampled_from(["test_accuracy", "score", "train_accuracy"]),
    n_resamples=st.sampled_from([20, 0, 1.5, None]) | st.just(20),
)
def test_peaks(frame, over, metric, n_resamples):
    try:
        peak = find_peak(frame, over=over, metric=metric, n_resamples=n_resamples)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert np.isfinite(peak.mean).all()
    assert math.isfinite(peak.accuracy)
    assert (peak.fitted is None) == (peak.undetermined is not None)


@given(
    frame=frames() | ODD,
    over=st.sampled_from(["learning_rate", "momentum", "n_train", "seed"]) | ODD,
    optimum=st.sampled_from(["batch_size", "learning_rate", "nothing"]),
)
def test_rules(frame, over, optimum):
    try:
        rule = fit_scaling_rule(frame, over, optimum=optimum, n_resamples=20)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert all(np.isfinite(point.peak.mean).all() for point in rule.points)


FIELDS = [
    *("learning_rate", "batch_size", "steps", "momentum", "seed", "data", "n_train", "model"),
    *("hidden_widths", "initialisation", "sampler", "evaluate_at", "n_evaluations", "nothing"),
]
VALUES = ODD | st.sampled_from(
    [0.1, 8, "10 / momentum", "10 / learning_rate", "1e400 * steps", "3 ** steps", "digits"]
)
RAISES = st.sampled_from([lambda run: 1 / 0, lambda run: run["nothing"], lambda run: None])


@given(
    run=st.dictionaries(st.sampled_from(FIELDS), VALUES | RAISES, max_size=3) | ODD,
    grid=st.dictionaries(st.sampled_from(FIELDS), st.lists(VALUES, max_size=2) | ODD, max_size=2)
    | ODD,
    zipped=st.none() | ODD,
    seeds=st.just(2) | ODD,
)
def test_plans(run, grid, zipped, seeds):
    if isinstance(run, dict):
        run = {"data": "digits", "learning_rate": 0.1, "batch_size": 8, "steps": 5} | run
        run = {name: run[name] for name in run if not isinstance(grid, dict) or name not in grid}
    try:
        plan = make_plan(run, grid=grid, zipped=zipped, seeds=seeds)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert all(isinstance(one, RunConfig) for one in plan)


FRAME = pd.DataFrame(
    [
        {name: 8 if name == "batch_size" else 0.5 for name in PLAIN}
        | {"batch_size": B, "seed": seed, "status": "done", "n_classes": 10, "n_train": 1000}
        for B in (4, 8, 16, 32)
        for seed in (0, 1)
    ]
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "finished"}, "status must be one of done, diverged, failed, got 'finished'"),
        ({"test_accuracy": "good"}, "test_accuracy must be a finite number from 0 to 1 .* 'good'"),
        ({"test_accuracy": math.nan}, "test_accuracy must be a finite number .* got 'nan'"),
        ({"batch_size": 0}, "batch_size must be a finite number from 1e-12 to 1e12 .* got '0'"),
        ({"seed": None}, "seed must be a finite number .* got 'None'"),
    ],
)
def test_a_frame_with_one_mistake_is_told_which(change, message):
    frame = FRAME.astype(object)
    for column, value in change.items():
        frame.at[3, column] = value
    for call in (find_peak, lambda frame: fit_scaling_rule(frame, "learning_rate")):
        with pytest.raises(InputError, match=message):
            call(frame)


def test_a_diverged_run_needs_its_number_of_classes_and_scores_a_run_that_did_not():
    frame = FRAME.assign(status="diverged")
    with pytest.raises(InputError, match="no column 'n_classes'"):
        find_peak(frame.drop(columns="n_classes"))
    with pytest.raises(InputError, match="every run diverged"):
        find_peak(frame, metric="score")
    assert find_peak(frame).accuracy == 0.1


def test_a_rule_by_a_function_that_fails():
    with pytest.raises(InputError, match="steps cannot be computed: .* ZeroDivisionError"):
        make_plan(
            {"data": "digits", "learning_rate": 1, "batch_size": 2, "steps": lambda run: 1 / 0}
        )
    with pytest.raises(InputError, match="steps cannot be computed from momentum = 0"):
        make_plan({"learning_rate": 1, "batch_size": 2, "momentum": 0, "steps": "10 / momentum"})
