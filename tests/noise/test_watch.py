"""What watching a run computes, whatever the framework: readings, averages, intervals, pace."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from noisescale.errors import InputError
from noisescale.noise.watch.pace import Pace, Pilot, choose, line
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


def test_averages_that_forget():
    """The recursion against weights that are written out."""
    rng = np.random.default_rng(1)
    s, n = rng.normal(3, 1, 40), rng.normal(5, 1, 40)
    for decay in (0.0, 0.9):
        ratio = RunningRatio(decay=decay)
        for pair in zip(s, n, strict=True):
            assert ratio.take(*pair)
        w = (decay or 1.0) ** np.arange(39, -1, -1.0)
        mean = [np.average(x, weights=w) for x in (s, n)]
        cov = np.cov(s, n, aweights=w) * (w**2).sum() / w.sum() ** 2
        assert (ratio.signal, ratio.noise) == pytest.approx(mean)
        assert ratio.signal_estimate.std == pytest.approx(math.sqrt(cov[0, 0]))
        assert ratio.noise_estimate.std == pytest.approx(math.sqrt(cov[1, 1]))
        # Fieller: at both ends the difference is t standard errors from zero.
        estimate = ratio.interval(0.9)
        t = stats.t.ppf(0.95, w.sum() ** 2 / (w**2).sum() - 1)
        for r in (estimate.low, estimate.high):
            variance = cov[1, 1] - 2 * r * cov[0, 1] + r**2 * cov[0, 0]
            assert abs(mean[1] - r * mean[0]) == pytest.approx(t * math.sqrt(variance))
        assert estimate.low < ratio.critical_batch_size < estimate.high


@pytest.mark.parametrize(("strength", "n"), [(1.5, 12), (0.35, 30), (0.1, 30)])
def test_intervals_cover_at_their_rate(strength, n):
    """2,000 runs of normal readings, the last of which hardly resolve |G|^2."""
    rng, hits, true = np.random.default_rng(7), 0, 4.0 / strength
    for _ in range(2000):
        ratio = RunningRatio()
        for s, noise in zip(rng.normal(strength, 1, n), rng.normal(4, 1, n), strict=True):
            ratio.take(s, noise)
        hits += true in ratio.interval()
    # 95 % of both sides; where only a lower bound can be given, nothing lies above it.
    assert hits / 2000 > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 2000)
    if strength > 1:
        assert hits / 2000 < 0.95 + 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_what_is_not_resolved_has_a_lower_bound():
    ratio = RunningRatio()
    rng = np.random.default_rng(0)
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
    pace = choose(overhead, update=update, fixed=fixed, each=each, batch_size=batch_size)
    examples = batch_size if pace.examples is None else pace.examples
    assert 1 <= examples <= batch_size
    cost = fixed + each * examples
    assert cost / pace.every <= overhead * update * (1 + 1e-9)
    if pace.every > 1:  # and no slower than it must
        assert cost / (pace.every - 1) > overhead * update * (1 - 1e-9)


def test_the_pace_of_some_cases():
    at = {"update": 1.0, "batch_size": 64}
    assert choose(0.1, fixed=0.0, each=0.001, **at) == Pace(1, None)
    assert choose(0.1, fixed=0.0, each=0.01, **at) == Pace(1, 10)
    assert choose(0.1, fixed=0.0, each=0.1, **at) == Pace(8, 8)
    assert choose(0.1, fixed=1.0, each=0.001, **at) == Pace(11, None)


def test_a_line_through_timings():
    assert line([(8, 3.0), (32, 9.0), (8, 3.0), (32, 9.0)]) == pytest.approx((1.0, 0.25))
    assert line([(8, 3.0), (8, 5.0)]) == pytest.approx((4.0, 0.0))
    assert line([(8, 3.0), (32, 2.0)]) == pytest.approx((2.5, 0.0))  # a slope below zero is noise
    assert line([(8, 0.1), (32, 9.0)])[0] == pytest.approx(0.0, abs=1e-12)


def test_timings_are_what_measuring_takes_or_what_an_update_takes_longer():
    pilot = Pilot(bare=[2.0, 2.0, 30.0], extra=5.0)
    for whole in (2.5, 2.5, 40.0):  # half a second longer, of which it knows a tenth
        pilot.add(8, 0.1, whole)
    for whole in (2.0, 2.0, 2.1):  # no longer, but for its own clock
        pilot.add(32, 1.1, whole)
    timings = pilot.settled()
    assert timings.update == 2.0
    assert timings.fixed + 8 * timings.each == pytest.approx(0.5)
    assert timings.fixed + 32 * timings.each == pytest.approx(1.1)
    assert timings.spent == pytest.approx(3 * 0.5 + 3 * 1.1 + 5.0)
    assert len(pilot) == 6
    assert Pilot(extra=1.0).settled().update == math.inf
    alone = Pilot()
    alone.add(8, 0.5, 2.0)
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


def test_notes_are_said_once():
    record = filled(n_train=16)
    assert record.noise_scale is None
    assert record.notes == (
        "a batch has 32 examples, more than n_train = 16: the noise scale is left out",
    )
    with pytest.warns(WatchWarning, match="look"):
        record.note("look", warn=True)
    record.note("look", warn=True)  # or it would be an error here


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
