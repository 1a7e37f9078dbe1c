"""Figure 11's verdicts on measurements whose truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from noisescale.paper import figure11
from noisescale.paper.bets import SIZES, AtMap, Bet, Sampled, labelled
from noisescale.paper.claims import Verdict
from noisescale.paper.section import Circumstances
from paper.circumstances import DECIDING, SMALL

R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED
FULL = SIZES["full"]
SEEDS = range(5)


def at_map(seed=0, labels="true", prior=0.1, E=-150.0, batch_size=30):
    return AtMap(seed, batch_size, labels, prior, E, "map", 0.01)


def bet(seed=0, batch_size=30, labels="true", E=-1_500.0, loss=0.4, accuracy=0.9):
    return Bet(seed, batch_size, labels, E, E + 10, loss, loss + 0.1, accuracy, 0.5, 2.0)


def sampled(seed, labels, prior):
    return Sampled(seed, labels, prior, -200.0 if labels == "true" else 70.0, 0.7, 2.0, 0.8)


def loss_at(rung):
    """Least at the third rung of the ladder."""
    return 0.4 + 0.02 * abs(rung - 3)


@pytest.fixture
def data():
    """Everything as the claims have it."""
    rng = np.random.default_rng(0)
    cases = [
        (seed, labels, prior)
        for seed in SEEDS
        for labels in figure11.LABELS
        for prior in FULL.precisions
    ]
    return figure11.Data(
        at=DECIDING,
        maps=[at_map(s, k, p, (-150.0 if k == "true" else 250.0) + s) for s, k, p in cases],
        large=[at_map(s, E=-120.0 + 0.5 * s, batch_size=1_000) for s in SEEDS],
        bets=[
            bet(s, B, loss=loss_at(k) + 0.001 * rng.normal(), accuracy=0.93 - 0.1 * loss_at(k))
            for s in SEEDS
            for k, B in enumerate(FULL.ladder)
        ],
        random_bets=[bet(s, labels="random", E=2.3) for s in SEEDS],
        narrow=[at_map(s, k, p, -150.0 if k == "true" else 120.0) for s, k, p in cases],
        sampled=[sampled(*case) for case in cases],
    )


def verdicts(data):
    return {(j.id, j.primary): j.verdict for j in figure11.judge(data).judgements}


def test_all_hold(data):
    assert verdicts(data) == {
        ("C41", True): R,
        ("C41", False): R,
        ("C42", True): R,
        ("C43", True): R,
        ("C44", True): R,
    }


def test_five_seeds_are_needed(data):
    three = Circumstances("full", 3, "mnist", True, "abc")
    assert set(verdicts(replace(data, at=three)).values()) == {U}


@pytest.mark.parametrize(("E", "verdict"), [(-0.1, N), (0.1, R), (math.nan, U)])
def test_one_belief_in_random_labels_is_one_too_many(data, E, verdict):
    maps = [*data.maps]
    k = next(k for k, m in enumerate(maps) if m.labels == "random")
    maps[k] = replace(maps[k], E=E)
    assert verdicts(replace(data, maps=maps))["C41", True] is verdict


@pytest.mark.parametrize(("E", "verdict"), [(-6.9, R), (-7.1, N)])
def test_the_identity_is_counted_apart(data, E, verdict):
    bets = [*data.random_bets[1:], replace(data.random_bets[0], E=E)]
    found = verdicts(replace(data, random_bets=bets))
    assert found["C41", False] is verdict
    assert found["C41", True] is R


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, R), (-60.0, N), (-29.0, U)])
def test_noise_and_evidence(data, shift, verdict):
    """The difference is -30 + s/2 on average; shifted, it is +30 or about 0."""
    large = [replace(m, E=m.E + shift) for m in data.large]
    assert verdicts(replace(data, large=large))["C42", True] is verdict


def test_an_end_that_is_best_is_not_interior(data):
    bets = [
        replace(b, last_loss=0.1, test_accuracy=0.99) if b.batch_size == 10 else b
        for b in data.bets
    ]
    assert verdicts(replace(data, bets=bets))["C43", True] is N


def test_accuracy_must_peak_within_a_rung(data):
    for B, verdict in ((20, R), (68, N)):
        bets = [replace(b, test_accuracy=0.99) if b.batch_size == B else b for b in data.bets]
        assert verdicts(replace(data, bets=bets))["C43", True] is verdict


def test_an_end_within_its_error_decides_nothing(data):
    bets = [
        replace(b, last_loss=loss_at(3) + 0.05 * (-1) ** b.seed) if b.batch_size == 10 else b
        for b in data.bets
    ]
    assert verdicts(replace(data, bets=bets))["C43", True] is U


@pytest.mark.parametrize(
    ("labels", "E", "E_map", "verdict"),
    [
        ("true", -3.1, -1.0, R),
        ("true", -2.9, -1.0, N),  # + ln 20 is above 0
        ("true", -3.1, 1.0, N),
        ("random", 70.0, -2.9, R),
        ("random", 70.0, -3.1, N),
        ("random", 70.0, math.nan, U),
    ],
)
def test_sampling(data, labels, E, E_map, verdict):
    maps, drawn = [*data.narrow], [*data.sampled]
    k = next(k for k, s in enumerate(drawn) if s.labels == labels)
    maps[k], drawn[k] = replace(maps[k], E=E_map), replace(drawn[k], E=E)
    assert verdicts(replace(data, narrow=maps, sampled=drawn))["C44", True] is verdict


def test_nothing_is_decided_by_a_small_run(data):
    small = SIZES["smoke"]
    chosen = replace(
        data,
        at=SMALL,
        maps=[m for m in data.maps if m.seed == 0 and m.prior_precision in small.precisions],
        large=data.large[:1],
        bets=[b for b in data.bets if b.seed == 0 and b.batch_size in small.ladder],
        random_bets=data.random_bets[:1],
        sampled=[s for s in data.sampled if s.seed == 0 and s.prior_precision in small.precisions],
    )
    assert set(verdicts(chosen).values()) == {U}


def test_a_saddle_is_no_minimum_and_points_short_of_one_are_told(data):
    assert not any("descents ended" in remark for remark in figure11.judge(data).remarks)
    maps = [*data.maps]
    maps[0] = replace(maps[0], status="stalled", left=0.13)
    short = replace(data, maps=maps)
    assert verdicts(short)["C41", True] is R
    (told,) = (r for r in figure11.judge(short).remarks if "descents ended" in r)
    assert told.startswith("1 of 65 descents")
    assert "by 0.13 at the most" in told
    maps[0] = replace(maps[0], status="saddle")
    assert verdicts(replace(data, maps=maps))["C41", True] is U


def test_pictures_tell_their_numbers(data):
    labels, ladder = figure11.draw(data)
    assert "random, prequential: E = 2" in labels.alt
    assert "B = full" in ladder.alt
    assert "B = 30: 0.40" in ladder.alt


def test_random_labels_are_drawn_one_by_one(mnist):
    """Not a permutation: class counts vary from seed to seed as a multinomial's do."""

    class At:
        data = mnist

    counts = [np.bincount(labelled(At, seed, 100, "random")[1], minlength=10) for seed in SEEDS]
    permuted = [np.bincount(labelled(At, seed, 100, "true")[1], minlength=10) for seed in SEEDS]
    assert any((a != b).any() for a, b in zip(counts, permuted, strict=True))
    # sum (n - 10)^2/10 is chi-squared with 9 degrees of freedom for each seed: 45 in all
    total = sum(((c - 10.0) ** 2 / 10).sum() for c in counts)
    assert abs(total - 45) < 4 * math.sqrt(90)


def test_the_blocks_add_up():
    assert all(sum(size.blocks) == size.n_train for size in SIZES.values())
    assert FULL.blocks[-1] == 500
