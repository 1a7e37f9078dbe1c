"""What watching a run computes, whatever the framework: readings, averages, intervals, pace."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from noisescale.errors import InputError
from noisescale.noise.watch.pace import Pace, Pacer, choose, gaps_in_words, line, longest_gap
from noisescale.noise.watch.ratio import RunningRatio
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord, WatchWarning


def batch_of(c, weights, n_units=None):
    """From contributions (n, p) with weights that add up to 1."""
    q = float((weights**2).sum())
    total = c.sum(axis=0)
    units = 1 / q if n_units is None else n_units
    return Batch(float(total @ total), float((c**2).sum()), q, len(c), units)


def test_readings_are_unbiased_over_all_batches_of_a_training_set():
    """The mean over every batch of 3 of 8 examples is what all 8 give, without an error."""
    g = np.random.default_rng(0).normal(size=(8, 4)) + 0.5
    mean = g.mean(axis=0)
    trace = ((g - mean) ** 2).sum() / 7
    readings = [
        batch_of(g[list(chosen)] / 3, np.full(3, 1 / 3)).readings
        for chosen in itertools.combinations(range(8), 3)
    ]
    assert np.mean(readings, axis=0) == pytest.approx((mean @ mean - trace / 8, trace))


def test_readings_are_unbiased_whatever_the_weights():
    """Every g_i is one of two vectors with a probability of its own: all outcomes, added up."""
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    low, high, p = np.array([1.0, -2.0]), np.array([0.0, 3.0]), 0.3
    G = p * high + (1 - p) * low
    S = p * (1 - p) * ((high - low) ** 2).sum()
    expected = np.zeros(2)
    for outcome in itertools.product((0, 1), repeat=4):
        probability = math.prod(p if up else 1 - p for up in outcome)
        g = np.array([high if up else low for up in outcome])
        expected += probability * np.array(batch_of(weights[:, None] * g, weights).readings)
    assert expected == pytest.approx((G @ G, S))


def test_tokens_that_are_independent():
    """Sequences of n_i tokens, whose mean has 1/n_i of a token's variance: tr S is a token's."""
    lengths = np.array([1, 2, 3])
    weights, M = lengths / 6, 6
    values, p = np.array([2.0, -1.0]), 0.5
    expected = np.zeros(2)
    for tokens in itertools.product((0, 1), repeat=6):
        parts = np.split(values[list(tokens)], np.cumsum(lengths)[:-1])
        c = np.array([part.sum() / M for part in parts])[:, None]
        expected += p**6 * np.array(batch_of(c, weights, n_units=float(M)).readings)
    assert expected == pytest.approx((0.25, 2.25))


def test_one_example_shows_no_noise():
    assert all(map(math.isnan, Batch(1.0, 1.0, 1.0, 1, 1.0).readings))
    assert all(map(math.isnan, Batch(1.0, 1.0, 1.0, 3, 1.0).readings))  # one has all the weight


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("noise", [1.0, 1e-3, 0.0])
def test_a_noise_within_rounding_is_none(kind, noise):
    """Norms that are rounded differ for examples that are alike, in either direction."""
    rng, eps = np.random.default_rng(0), float(np.finfo(kind).eps)
    record = NoiseRecord()
    for k in range(8):
        c = (1 + noise * rng.normal(size=(32, 5))) / 32
        exact = batch_of(c, np.full(32, 1 / 32))
        total, squares = (
            value * (1 + 10 * eps * rng.normal()) for value in (exact.total_sq, exact.sum_sq)
        )
        record.take(Batch(total, squares, 1 / 32, 32, 32.0, eps), update=k)
    if noise == 0 or (noise == 1e-3 and kind is np.float32):
        assert record.critical_batch_size is None
        assert (record.trace.value, record.interval().low) == (0.0, 0.0)
        assert "alike within rounding" in record.notes[0]
    else:
        assert noise**2 == pytest.approx(record.critical_batch_size, rel=0.5)
        assert record.notes == ()


WEIGHTS = {
    None: lambda u, U: ((u + 0.5) / U) ** 3,
    0.0: lambda u, U: np.ones(len(u)),
    0.9: lambda u, U: 0.9 ** (U - u - 0.5),
}


@pytest.mark.parametrize("decay", list(WEIGHTS))
def test_the_running_answer_by_definition(decay):
    """Weights that are written out, eight groups of equal weight, Student's t, Fieller."""
    rng, U = np.random.default_rng(1), 40
    s, n = rng.normal(3, 1, U), rng.normal(5, 1, U)
    ratio = RunningRatio(decay=decay)
    for pair in zip(s, n, strict=True):
        assert ratio.take(*pair)
    w = WEIGHTS[decay](np.arange(U), U)
    w = w / w.sum()
    mean = [np.average(x, weights=w) for x in (s, n)]
    assert (ratio.signal, ratio.noise) == pytest.approx(mean, rel=1e-5)
    groups = [
        np.flatnonzero(np.floor((np.cumsum(w) - w / 2) * 8).astype(int) == k) for k in range(8)
    ]
    groups = [g for g in groups if len(g)]
    away = np.array([[np.average(x[g], weights=w[g]) for x in (s, n)] for g in groups]) - mean
    cov = sum(w[g].sum() * np.outer(a, a) for g, a in zip(groups, away, strict=True))
    cov = cov / (len(groups) - 1)
    assert ratio.signal_estimate.std == pytest.approx(math.sqrt(cov[0, 0]), rel=1e-4)
    assert ratio.noise_estimate.std == pytest.approx(math.sqrt(cov[1, 1]), rel=1e-4)
    # Fieller: at both ends the difference is t standard errors from zero.
    estimate, t = ratio.interval(0.9), stats.t.ppf(0.95, len(groups) - 1)
    for r in (estimate.low, estimate.high):
        variance = cov[1, 1] - 2 * r * cov[0, 1] + r**2 * cov[0, 0]
        assert abs(mean[1] - r * mean[0]) == pytest.approx(t * math.sqrt(variance), rel=1e-3)
    assert estimate.low < ratio.critical_batch_size < estimate.high


def test_updates_are_weighed_not_readings():
    """Dense readings of the first half, and every tenth later: the mean over updates alike."""
    ratio = RunningRatio(decay=0.0)
    for u in (*range(500), *range(509, 1000, 10)):
        ratio.take(1.0 if u < 500 else 3.0, 1.0, u)
    assert ratio.signal == pytest.approx(2.0, rel=0.02)
    assert ratio.n_updates == 550
    assert ratio.described().endswith("(550 of 1,000 updates measured)")


@pytest.mark.parametrize("n", [300, 3_000, 30_000])
def test_the_answer_is_of_the_recent_half(n):
    """|G|^2 falls from 100 to 1 at a quarter of the run: the answer at the end is of the rest."""
    ratio, every = RunningRatio(), max(1, n // 1000)
    for u in range(0, n, every):
        ratio.take(100.0 if u < n / 4 else 1.0, 10.0, u)
    share = 0.25**4  # of the weight that the first quarter has
    assert ratio.signal == pytest.approx(1 + 99 * share, rel=0.1)
    assert ratio.window[0] == pytest.approx(0.47 * n, rel=0.01)
    assert ratio.latest().value == pytest.approx(10.0)


def test_a_fixed_memory_is_counted_in_updates():
    """Every tenth update measured: 0.99 forgets after a hundred updates, not readings."""
    ratio = RunningRatio(decay=0.99)
    for u in range(0, 4000, 10):
        ratio.take(9.0 if u < 3000 else 1.0, 2.0, u)
    assert ratio.signal == pytest.approx(1 + 8 * 0.99**1000, abs=1e-3)


HEAVY_TAILS = {
    "normal": lambda rng, n: 1 + rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n),
    "lognormal": lambda rng, n: rng.lognormal(0, 1, n),
    "wide lognormal": lambda rng, n: rng.lognormal(0, 2, n),
    "Student's t with 3 degrees of freedom": lambda rng, n: np.abs(rng.standard_t(3, n)),
    "gamma 0.2": lambda rng, n: rng.gamma(0.2, 1.0, n),
}


@pytest.mark.parametrize("tail", list(HEAVY_TAILS))
def test_heavy_tails_are_left_as_they_are(tail):
    """At most one reading in 2,000 is called a spike, and the mean keeps to a percent."""
    x = HEAVY_TAILS[tail](np.random.default_rng(4), 8_000)
    ratio = RunningRatio(decay=0.0)
    for value in x:
        ratio.take(value, 1.0)
    assert ratio.n_spikes <= 4
    assert ratio.signal == pytest.approx(x.mean(), rel=0.01)


@pytest.mark.parametrize("which", [0, 1])
def test_a_spike_is_left_out_and_counted(which):
    clean, spiky, rng = RunningRatio(), RunningRatio(), np.random.default_rng(5)
    for u, pair in enumerate(rng.lognormal(0, 1, (200, 2))):
        clean.take(*pair, u)
        high = pair.copy()
        if u in (40, 90, 91):
            high[which] *= 1e5
        assert spiky.take(*high, u) == (u not in (40, 90, 91))
    assert (spiky.n_spikes, spiky.n_updates) == (3, 197)
    assert spiky.interval().value == pytest.approx(clean.interval().value, rel=0.1)
    assert "3 spikes left out" in spiky.described()


def test_a_level_that_stays_is_no_spike():
    """After a jump by a factor of 1,000 the readings count again within 16 of them."""
    ratio, rng = RunningRatio(), np.random.default_rng(6)
    for u, pair in enumerate(rng.lognormal(0, 0.5, (400, 2))):
        ratio.take(*(pair * (1e3 if u >= 200 else 1)), u)
    assert ratio.n_spikes <= 16
    assert ratio.signal > 500


def drifting(rng, n, correlation, drift):
    """Readings whose logarithms are an autoregression around a level that moves."""
    steps = rng.normal(size=(n, 2)) * math.sqrt(1 - correlation**2)
    noise = np.empty((n, 2))
    noise[0] = steps[0] / math.sqrt(1 - correlation**2)
    for k in range(1, n):
        noise[k] = correlation * noise[k - 1] + steps[k]
    level = np.exp(-drift * np.arange(n) / n)
    return level * np.exp(0.4 * noise[:, 0]), np.exp(0.4 * noise[:, 1]), level * math.exp(0.08)


@pytest.mark.parametrize("runs", [30, pytest.param(120, marks=pytest.mark.long)])
@pytest.mark.parametrize(("correlation", "drift"), [(0.0, 0.0), (0.9, 0.0), (0.5, 1.5)])
def test_the_interval_counts_dependence_and_drift(correlation, drift, runs):
    """Runs of 400 readings each: the window's own ratio lies inside in 95 % of them."""
    rng, hits = np.random.default_rng(8), 0
    w = WEIGHTS[None](np.arange(400), 400)
    for _ in range(runs):
        s, n, level = drifting(rng, 400, correlation, drift)
        ratio = RunningRatio()
        for pair in zip(s, n, strict=True):
            ratio.take(*pair)
        hits += math.exp(0.08) / np.average(level, weights=w) in ratio.interval()
    floor = 0.95 if correlation < 0.9 else 0.9  # a memory as long as the groups' length
    assert hits / runs > floor - 3 * math.sqrt(0.95 * 0.05 / runs)


@pytest.mark.parametrize("runs", [200, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize(("strength", "n"), [(1.5, 12), (0.35, 30), (0.1, 30)])
def test_intervals_cover_at_their_rate(strength, n, runs):
    """Runs of normal readings, the last of which hardly resolve |G|^2."""
    rng, hits, true = np.random.default_rng(7), 0, 4.0 / strength
    for _ in range(runs):
        ratio = RunningRatio(decay=0.0)
        for s, noise in zip(rng.normal(strength, 1, n), rng.normal(4, 1, n), strict=True):
            ratio.take(s, noise)
        hits += true in ratio.interval()
    # 95 % of both sides; where only a lower bound can be given, nothing lies above it.
    error = math.sqrt(0.95 * 0.05 / runs)
    assert hits / runs > 0.95 - 4 * error
    if strength > 1:
        assert hits / runs < 0.95 + 4 * error


def test_what_is_not_resolved_has_a_lower_bound():
    ratio = RunningRatio(decay=0.0)
    rng = np.random.default_rng(2)
    for s, n in zip(rng.normal(0, 1, 50), rng.normal(5, 1, 50), strict=True):
        ratio.take(s, n)
    assert ratio.critical_batch_size is None
    estimate = ratio.estimate
    assert estimate.high == math.inf
    assert 5 < estimate.low < 5 / (2.0 * ratio.signal_estimate.std - abs(ratio.signal))
    assert "not resolved yet, at least" in ratio.described()


def test_numbers_that_are_not_finite_are_counted():
    ratio = RunningRatio()
    for pair in ((1.0, math.nan), (math.inf, 1.0), (1e200, 1.0), (1.0, 2.0)):
        ratio.take(*pair)
    assert (ratio.n_updates, ratio.n_skipped) == (1, 3)
    with pytest.raises(InputError, match="level must be .* between 0 and 1, got 1"):
        ratio.interval(1.0)


seconds = st.floats(1e-6, 10)


@given(st.floats(0.01, 1), seconds, seconds, st.floats(0, 1), st.integers(1, 10_000))
def test_the_pace_keeps_within_the_overhead(overhead, update, fixed, each, batch_size):
    at = {"update": update, "fixed": fixed, "each": each, "batch_size": batch_size}
    pace = choose(overhead, **at, longest=10**12)
    examples = batch_size if pace.examples is None else pace.examples
    assert 1 <= examples <= batch_size
    cost = fixed + each * examples
    assert cost / pace.every <= overhead * update * (1 + 1e-9)
    if pace.every > 1:  # and no slower than it must
        assert cost / (pace.every - 1) > overhead * update * (1 - 1e-9)
    bounded = choose(overhead, **at)
    assert 1 <= bounded.every <= 20
    if pace.every <= 20:
        assert bounded == pace


def test_the_pace_of_some_cases():
    at = {"update": 1.0, "batch_size": 64}
    assert choose(0.1, fixed=0.0, each=0.001, **at) == Pace(1, None)
    assert choose(0.1, fixed=0.0, each=0.01, **at) == Pace(1, 10)
    assert choose(0.1, fixed=0.0, each=0.1, **at) == Pace(8, 8)
    assert choose(0.1, fixed=1.0, each=0.001, **at) == Pace(11, None)
    assert choose(0.1, fixed=1.0, each=0.1, **at) == Pace(20, 10)
    assert choose(0.1, fixed=9.0, each=0.1, **at) == Pace(20, 8)
    assert choose(0.1, fixed=9.0, each=0.1, longest=200, **at) == Pace(154, None)


def paced(pacer, n_updates, seconds_of, first=0, n=64):
    """The updates that are measured, and how many examples of each; ``seconds_of`` both."""
    made, notes = {}, []
    for k in range(first, first + n_updates):
        m = 0
        if pacer.begins(k):
            asked = pacer.examples(n)
            made[k] = m = n if asked is None else min(asked, n)
        timed = m if k else 0  # the first one is checked
        pacer.add(k, seconds_of(k, m), measured=m > 0, examples=timed)
        if m and pacer.due:
            notes.append(pacer.choose(pacer.settled(), n, 1, k))
    return made, [note for note in notes if note]


def linear(fixed, each, update=1.0):
    return lambda k, m: update + (fixed + each * m if m else 0)


@given(
    st.lists(st.floats(1e-6, 1e6) | st.just(math.nan), min_size=1, max_size=50),
    st.floats(1e-6, 2),
    st.integers(0, 3000),
    st.integers(1, 100),
)
def test_no_gap_between_readings_is_long_whatever_they_cost(timings, overhead, first, n):
    pacer = Pacer(overhead)
    pacer.resumes(first, before=0, last=first)
    made, _ = paced(pacer, 400, lambda k, m: timings[k % len(timings)], first, n)
    at = [first, *made, first + 400]
    assert all(b - a <= longest_gap(a) for a, b in itertools.pairwise(at))
    assert min(made) == first


@pytest.mark.parametrize("slow", [(0, 1, 3), (0, 1, 2, 3, 6), (0, 2, 3, 4)])
def test_what_is_slow_once_does_not_count(slow):
    """Compilation and checks take 500 times an update; measuring takes nothing."""
    made, notes = paced(Pacer(0.1), 60, lambda k, m: 500.0 if k in slow else 1.0)
    assert list(made)[:10] == [0, 3, 6, 9, 12, 15, 18, 21, 22, 23]
    assert max(np.diff(list(made))) == 3
    assert notes == []


def test_the_first_timings_are_further_apart_if_they_are_dear():
    made, _ = paced(Pacer(0.1), 60, linear(0.29, 0.0))
    assert set(np.diff(list(made))) == {3, 4}  # four where the first ones are to be saved
    made, _ = paced(Pacer(0.1), 60, linear(0.59, 0.0))
    assert list(made)[:4] == [0, 3, 6, 9]
    assert min(np.diff(list(made)[3:])) >= 6


@pytest.mark.parametrize("n_updates", [100, 240, 1000])
@pytest.mark.parametrize(
    ("fixed", "each"), [(0.02, 0.002), (0.05, 0.004), (0.1, 0.006), (0.02, 0.008)]
)
def test_the_whole_run_keeps_to_the_overhead(n_updates, fixed, each):
    """What the first timings took too much is saved afterwards."""
    made, notes = paced(Pacer(0.1), n_updates, linear(fixed, each))
    spent = sum(fixed + each * m for m in made.values())
    assert 0.05 * n_updates < spent < (0.115 if n_updates == 100 else 0.103) * n_updates
    assert notes == []


def test_small_networks_are_measured_at_every_update_for_a_second():
    """A reading takes a millisecond, as an update does: a thousand of them, then a tenth."""
    made, notes = paced(Pacer(0.1), 600, linear(9e-4, 1e-6, 1e-3))
    assert len(made) > 380  # all but those right before bare updates, whose times are compared
    made, notes = paced(Pacer(0.1), 60_000, linear(1e-3 - 64e-6, 1e-6, 1e-3))
    spent = sum(1e-3 - 64e-6 + 1e-6 * m for m in made.values())
    assert 6.0 < spent < 7.05
    assert notes == []
    dearer, _ = paced(Pacer(0.1), 600, linear(3.1e-3, 0.0, 1e-3))
    assert len(dearer) < 60


def test_processes_with_other_numbers_of_passes_measure_the_same_updates():
    """They share timings, the batch and the passes, and nothing else that the pace goes by."""
    pacers = Pacer(0.1), Pacer(0.1)
    seconds_of = linear(0.1, 0.006)
    for k in range(400):
        looks = [pacer.begins(k) for pacer in pacers]
        assert len(set(looks)) == 1
        asked = [pacer.examples(64 // passes) for pacer, passes in zip(pacers, (3, 4), strict=True)]
        for pacer, m in zip(pacers, asked, strict=True):
            m = (64 if m is None else 4 * m) if looks[0] else 0
            pacer.add(k, seconds_of(k, m), measured=looks[0], examples=m if k else 0)
        if looks[0] and pacers[0].due:
            for pacer in pacers:
                pacer.choose(pacers[0].settled(), 64, 4, k)
            assert pacers[0].pace == pacers[1].pace


def test_what_is_dear_is_measured_all_the_same_and_said():
    pacer = Pacer(0.1)
    made, notes = paced(pacer, 2000, linear(2.8, 0.0))
    assert max(np.diff(list(made))) <= 2 * 28
    assert notes[0] == (
        "every update takes 1e+03 ms: measuring one in 20 takes 14 % of the run's time, more "
        "than the 10 % asked for"
    )
    assert pacer.pace.every == 28  # a twentieth of the updates so far is enough by now


@pytest.mark.parametrize("extra", [0.0, 0.2])
def test_the_pace_follows_a_change(extra):
    """From update 300 on measuring takes ten times as long, also by what it does to the next."""
    pacer, last = Pacer(0.1), [0]

    def seconds_of(k, m):
        late = extra if last[0] else 0.0
        last[0] = m
        return 1.0 + late + ((0.2 if k < 300 else 2.0 - extra) if m else 0.0)

    before, _ = paced(pacer, 300, seconds_of)
    first = pacer.pace.every
    after, _ = paced(pacer, 700, seconds_of, first=300)
    assert first == (2 if extra == 0 else 4)
    assert pacer.pace.every == 20
    assert len(before) > 60
    assert len([k for k in after if k >= 600]) == pytest.approx(20, abs=1)


def test_gaps_in_words():
    assert gaps_in_words([0, 30, 40]) == "no reading between updates 0 and 30"
    assert gaps_in_words([0, 30, 1000, 1050, 1110]) == (
        "no reading between updates 30 and 1,000, the longest of 3 such gaps"
    )
    assert gaps_in_words([0, 30, 90], longest=lambda k: 40) == (
        "no reading between updates 30 and 90"
    )


def test_a_line_through_timings():
    assert line([(8, 3.0), (32, 9.0), (8, 3.0), (32, 9.0)]) == pytest.approx((1.0, 0.25))
    assert line([(8, 3.0), (8, 5.0)]) == pytest.approx((4.0, 0.0))
    assert line([(8, 3.0), (32, 2.0)]) == pytest.approx((2.5, 0.0))  # a slope below zero is noise
    assert line([(8, 0.1), (32, 9.0)])[0] == pytest.approx(0.0, abs=1e-12)


def test_timings_are_what_measuring_takes_or_what_updates_take_longer():
    pacer = Pacer(0.1)
    pacer.bare.extend([2.0, 2.0, 30.0])
    for whole in (2.5, 2.5, 40.0):  # half a second longer, of which it knows a tenth
        pacer.measured.append((8, 0.1, whole))
    for whole in (2.0, 2.0, 2.1):  # no longer, but for its own clock
        pacer.measured.append((32, 1.1, whole))
    timings = pacer.settled()
    assert timings.update == 2.0
    assert timings.fixed + 8 * timings.each == pytest.approx(0.5)
    assert timings.fixed + 32 * timings.each == pytest.approx(1.1)
    pacer.after.extend([2.25, 2.25, 9.0])  # and the next one a quarter of a second longer
    timings = pacer.settled()
    assert timings.fixed + 8 * timings.each == pytest.approx(0.75)
    assert Pacer(0.1).settled().update == math.inf
    alone = Pacer(0.1)
    alone.measured.append((8, 0.5, 2.0))
    assert alone.settled().update == 1.5


def filled(**options):
    record = NoiseRecord(**options)
    rng = np.random.default_rng(0)
    for k in range(6):
        total = 2 + rng.random()
        layers = {name: Batch(total / 2, 0.1, 1 / 32, 32, 32.0) for name in ("a", "b")}
        batch = Batch(total, 0.2, 1 / 32, 32, 32.0)
        record.take(batch, update=2 * k, learning_rate=0.1, momentum=0.5, layers=layers)
    return record


def test_a_record_answers_and_keeps_its_history():
    record = filled(n_train=3200)
    frame = record.history
    assert list(frame["update"]) == [0, 2, 4, 6, 8, 10]
    assert frame.critical_batch_size.iloc[-1] == record.critical_batch_size
    assert record.noise_scale == pytest.approx(0.1 * 99 / 0.5)
    assert list(record.layers.index) == ["a", "b"]
    assert record.layers.critical_batch_size.to_list() == pytest.approx(
        [record.critical_batch_size] * 2
    )
    assert record.to_dict()["critical_batch_size"]["value"] == record.critical_batch_size
    assert f"noise scale {record.noise_scale:.4g}" in repr(record)
    assert NoiseRecord().history.empty
    assert NoiseRecord().to_dict()["critical_batch_size"]["high"] is None


def test_a_record_goes_on_from_its_state():
    record, other = filled(n_train=3200), NoiseRecord(n_train=3200)
    record.note("something")
    other.load_state_dict(record.state_dict())
    assert other.state_dict() == record.state_dict()
    with pytest.raises(InputError, match="counts in examples, this watch in tokens"):
        NoiseRecord(unit="token").load_state_dict(record.state_dict())
    with pytest.raises(InputError, match="the state must have"):
        other.load_state_dict([])


def test_an_answer_that_is_open_above_goes_on_from_its_state():
    record, other = NoiseRecord(), NoiseRecord()
    for k in range(5):
        record.take(Batch(0.15 + 0.2 * (k % 2), 0.2, 1 / 32, 32, 32.0), update=k)
    assert any(row.latest_high == math.inf for row in record.rows)
    other.load_state_dict(record.state_dict())
    assert other.rows[-1].latest_high == math.inf


def test_notes_are_said_once():
    record = filled(n_train=16)
    assert record.noise_scale is None
    assert record.notes == (
        "a batch has 32 examples, more than n_train = 16: the noise scale is left out",
    )
    with pytest.warns(WatchWarning, match="look"):
        record.note("look", warn=True)
    record.note("look", warn=True)  # or it would be an error here
    record.note("look again", instead="look")
    assert record.notes[1:] == ("look again",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_train": 0}, "n_train must be at least 1, got 0"),
        ({"decay": 1.0}, r"decay must be .* in \[0, 1\)"),
        ({"unit": "word"}, "unit must be one of example, token, got 'word'"),
    ],
)
def test_bad_input_gets_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        NoiseRecord(**options)


def test_a_fixed_memory_has_an_interval_from_its_first_readings_on():
    ratio, rng = RunningRatio(decay=0.999), np.random.default_rng(3)
    for k, pair in enumerate(rng.lognormal(0, 0.2, (10_000, 2))):
        ratio.take(*pair)
        if k == 7:
            assert ratio.interval().value > 0
    assert ratio.interval().value == pytest.approx(1, abs=0.05)
    assert ratio.window == (10_000 - 2995, 10_000)
