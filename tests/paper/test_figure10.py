"""Figure 10's verdicts on minima whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from noisescale.paper import figure10
from noisescale.paper.claims import Verdict
from noisescale.paper.minima import PRIORS, Minimum
from noisescale.paper.section import Context

CONTEXT = SimpleNamespace(decidable=True, seeds=3, scale="full")
R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED
SIZES = (20, 30, 60, 150, 400, 1_000)


def minimum(seed=0, batch_size=30, E=-2_000.0, accuracy=0.9, top=10.0):
    return Minimum(
        seed=seed,
        batch_size=batch_size,
        labels="true",
        l2=0.0,
        train_accuracy=1.0,
        train_cross_entropy=0.0,
        test_accuracy=accuracy,
        test_cross_entropy=0.4,
        E=dict.fromkeys(PRIORS, E),
        prior_precision=0.1,
        gap=1.0,
        top_curvature=top,
    )


def rows(sign, noise=0.0):
    """E falls (sign -1) or rises with the accuracy, which falls with the batch size."""
    rng = np.random.default_rng(0)
    return [
        [
            minimum(seed, B, sign * 100 * (accuracy + noise * rng.normal()), accuracy)
            for B, accuracy in zip(SIZES, np.linspace(0.92, 0.89, 6), strict=True)
        ]
        for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("sign", "noise", "verdict"), [(-1, 0.001, R), (1, 0.001, N), (-1, 5.0, U)]
)
def test_the_analogy(sign, noise, verdict):
    assert figure10._judge_analogy(CONTEXT, rows(sign, noise)).verdict == verdict


def test_too_few_batch_sizes_decide_nothing():
    few = [row[:4] for row in rows(-1)]
    assert figure10._judge_analogy(CONTEXT, few).verdict == U


def test_runs_that_did_not_train_are_left_out():
    row = [minimum(), None, minimum(batch_size=5, accuracy=0.1)]
    assert [m.batch_size for m in figure10._trainable(row)] == [30]


@pytest.mark.parametrize(("random", "large", "verdict"), [(50, 20, R), (5, 20, N), (50, 2, N)])
def test_curvatures(random, large, verdict):
    def seeds(top):
        return [minimum(seed, top=top + 0.1 * seed) for seed in range(3)]

    true = {30: seeds(10.0), 1_000: seeds(float(large))}
    jitter = [replace(m, top_curvature=m.top_curvature + 0.05 * m.seed) for m in seeds(random)]
    found = figure10._judge_curvature(CONTEXT, true, {1_000: jitter}, 30, 1_000)
    assert found.verdict == verdict


def test_what_was_measured_is_kept(tmp_path):
    context = Context(SimpleNamespace(fingerprint="abc"), "full", 3, None, None, folder=tmp_path)
    calls = []

    def measure():
        calls.append(1)
        return {"E": 1.5}

    assert context.kept({"seed": 0}, measure) == {"E": 1.5}
    assert context.kept({"seed": 0}, measure) == {"E": 1.5}
    assert len(calls) == 1
    context.kept({"seed": 1}, measure)
    assert len(calls) == 2
    assert not list(tmp_path.rglob("*.part"))
