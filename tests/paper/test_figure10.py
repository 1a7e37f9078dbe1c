"""Figure 10's verdicts on minima whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from noisescale.paper import figure10
from noisescale.paper.claims import Verdict
from noisescale.paper.minima import PRIORS, Minimum
from paper.circumstances import DECIDING

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
    assert figure10._judge_analogy(DECIDING, rows(sign, noise)).verdict == verdict


def test_too_few_batch_sizes_decide_nothing():
    few = [row[:4] for row in rows(-1)]
    assert figure10._judge_analogy(DECIDING, few).verdict == U


def test_runs_that_did_not_train_are_left_out():
    row = [minimum(), None, minimum(batch_size=5, accuracy=0.1)]
    assert [m.batch_size for m in figure10._trainable(row)] == [30]


@pytest.mark.parametrize(("random", "large", "verdict"), [(50, 20, R), (5, 20, N), (50, 2, N)])
def test_curvatures(random, large, verdict):
    def seeds(top):
        return [minimum(seed, top=top + 0.1 * seed) for seed in range(3)]

    true = {30: seeds(10.0), 1_000: seeds(float(large))}
    jitter = [replace(m, top_curvature=m.top_curvature + 0.05 * m.seed) for m in seeds(random)]
    data = figure10.Data(DECIDING, true, {30: jitter, 1_000: jitter}, {}, None)
    found = figure10._judge_curvature(data)
    assert found.verdict == verdict


def test_what_ranks_the_minima_as_the_evidence_does_is_told():
    """C32 cannot tell E from the batch size, where they rank the minima alike."""
    alike = [
        [replace(m, train_cross_entropy=m.batch_size, top_curvature=m.batch_size) for m in row]
        for row in rows(-1)
    ]
    assert "the batch size itself 1.00, for the training loss 1.00" in figure10._rivals(alike)
    losses = [3.0, 1.0, 2.0, 6.0, 4.0, 5.0]
    other = [
        [replace(m, train_cross_entropy=loss) for m, loss in zip(row, losses, strict=True)]
        for row in alike
    ]
    assert "the batch size itself 1.00, for the training loss 0.66" in figure10._rivals(other)
