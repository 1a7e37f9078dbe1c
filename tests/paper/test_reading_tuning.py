"""Reading R31: appendix E in the paper's unit, with a margin."""

from dataclasses import replace

import numpy as np
import pytest

import noisescale as ns
import tune_functions as functions
from noisescale.paper.appendix_e import Tuned
from noisescale.paper.claims import Verdict
from noisescale.paper.reading_tuning import judge_tuning, tuning_measurements
from oracles.here import Here
from paper.circumstances import DECIDING, SMALL


@pytest.fixture(scope="module")
def result():
    return ns.tune_large_batch(functions.peaked, functions.N_TRAIN, epochs=10, executor=Here())


def tuned(result, loss, spread=1e-3, n=12):
    """A result whose last recipe loses so much on test images."""
    before = np.full(n, 0.9)
    wave = spread * np.array([(-1) ** k for k in range(n)])
    return Tuned("mnist", result, before, before - loss + wave)


@pytest.mark.parametrize(
    ("loss", "spread", "verdict"),
    [
        (0.0, 1e-3, Verdict.REPRODUCED),
        (0.0015, 1e-4, Verdict.REPRODUCED),
        (0.0015, 2e-3, Verdict.UNDECIDED),
        (0.004, 1e-3, Verdict.NOT_REPRODUCED),
    ],
)
def test_the_margin_is_held_by_the_whole_interval(result, loss, spread, verdict):
    assert result.recipe.batch_size >= 9 * result.start.batch_size
    judged = judge_tuning(DECIDING, tuned(result, loss, spread))
    assert (judged.id, judged.verdict) == ("R31", verdict)
    low, high = judged.uncertainty["95 % interval"]
    assert low < -loss < high


def test_twelve_seeds_and_full_scale_decide(result):
    assert judge_tuning(DECIDING, tuned(result, 0.0, n=10)).verdict is Verdict.UNDECIDED
    assert judge_tuning(SMALL, tuned(result, 0.0)).verdict is Verdict.UNDECIDED
    told = tuning_measurements(tuned(result, 0.0))
    assert "12 fresh seeds" in told[1].how


def test_a_batch_that_hardly_grows_settles_it(result):
    same = replace(result, recipe=result.start)
    assert judge_tuning(DECIDING, tuned(same, 0.0)).verdict is Verdict.NOT_REPRODUCED


def test_a_larger_batch_that_was_not_taken_is_told_with_the_reason(result):
    """Whether it lost, or was only not shown to be free: the verdict alone does not say."""
    wanted = 9 * result.start.batch_size
    larger = [one for one in result.trail if one.stage == 2 and one.recipe.batch_size >= wanted]
    first = min(larger, key=lambda one: one.recipe.batch_size).recipe.batch_size
    assert judge_tuning(DECIDING, tuned(result, 0.0)).measured.keys() == {
        "batch size, before",
        "after",
        "test accuracy, after minus before",
    }
    refused = [
        replace(one, accepted=False, why="not told") if one in larger else one
        for one in result.trail
    ]
    ended = replace(result, recipe=result.start, trail=tuple(refused))
    told = judge_tuning(DECIDING, tuned(ended, 0.0)).measured
    assert told[f"B = {first} on validation images"] == "not told"
