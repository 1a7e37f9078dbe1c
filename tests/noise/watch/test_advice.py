"""Advice is what the trade-off says over the whole interval, and no more certain than it."""

import json
import math

import numpy as np
import pytest

from noisescale.errors import InputError
from noisescale.noise.watch.advice import advise
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord
from noisescale.uncertainty import Estimate
from oracles.trade_off import trade_off


def between(low, high, value=None):
    value = math.sqrt(low * high) if value is None else value
    return Estimate(value, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "position"),
    [
        (300, 600, "below"),
        (100, 600, "below or near"),
        (60, 120, "near"),
        (20, 100, "near or above"),
        (5, 20, "above"),
        (5, 600, "unknown"),
        (0, math.inf, "unknown"),
        (100, math.inf, "below or near"),
        (129, math.inf, "below"),
    ],
)
def test_the_position_is_every_one_that_the_interval_allows(low, high, position):
    value = math.nan if high == math.inf else None
    made = advise(between(low, high, value), batch_size=64)
    assert made.position == position
    # By trying: what a critical batch size of the interval itself would be told.
    tried = np.geomspace(max(low, 1e-3), min(high, 1e9), 2001)
    alone = {advise(between(b, b), batch_size=64).position for b in tried}
    named = {"unknown": {"below", "near", "above"}}.get(position, set(position.split(" or ")))
    assert alone == named


def test_costs_are_the_trade_off_over_the_interval():
    b = between(40.0, 400.0, 130.0)
    made = advise(b, batch_size=64)
    assert [cost.batch_size for cost in made.costs] == [32, 64, 128, 256]
    for cost in made.costs:
        inside = [trade_off(cost.batch_size, x, reference=64) for x in np.geomspace(40, 400, 101)]
        at = trade_off(cost.batch_size, 130.0, reference=64)
        for name in ("updates", "examples"):
            ratio, values = getattr(cost, name), [getattr(one, name) for one in inside]
            assert ratio.value == pytest.approx(getattr(at, name), rel=1e-12)
            assert (ratio.low, ratio.high) == pytest.approx((min(values), max(values)), rel=1e-9)


def test_a_lower_bound_alone_leaves_the_costs_open():
    made = advise(Estimate(math.nan, low=100.0, high=math.inf), batch_size=64)
    twice = made.costs[2]
    assert math.isnan(twice.updates.value)
    assert twice.updates.low == 0.5  # at best
    assert twice.updates.high == pytest.approx(trade_off(128, 100.0, reference=64).updates)
    assert twice.examples.low == 1.0
    assert "not resolved yet: at least 100" in repr(made)
    json.dumps(made.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (300, 600, "may grow together"),
        (100, 600, "if updates matter more"),
        (60, 120, "Both have their price"),
        (20, 100, "need not grow"),
        (5, 20, "should not grow"),
        (5, 600, "until more updates are measured"),
    ],
)
def test_words_for_every_position(low, high, words):
    made = advise(
        between(low, high), batch_size=64, learning_rate=0.1, momentum=0.9, n_train=64 * 11
    )
    assert words in made.sentences[1]
    assert made.noise_scale == pytest.approx(0.1 * 10 / 0.1)
    assert ("g = 10" in made.sentences[1] or "10 now" in made.sentences[1]) == (
        made.position != "unknown"
    )


def test_the_learning_rate_grows_as_its_optimiser_wants():
    b = between(300, 600)
    sgd = advise(b, batch_size=64, learning_rate=0.1, momentum=0.0)
    assert "in proportion: peak learning rate x 2 for twice" in repr(sgd)
    adam = advise(b, batch_size=64, learning_rate=0.001, adam=True)
    assert "square root: peak learning rate x 1.41 for twice" in repr(adam)
    assert adam.noise_scale is None
    for rate in (math.nan, 0.001):  # of RMSprop, say, or of nothing that is known
        other = advise(b, batch_size=64, learning_rate=rate)
        assert "in proportion for SGD, by the square root for Adam; no rule" in repr(other)


def test_nothing_is_said_against_growing_while_the_critical_size_rises():
    """Out of the first descent: the latest updates lie above the average."""
    b, at = between(1, 5), {"batch_size": 32, "learning_rate": 0.1, "momentum": 0.9}
    assert "should not grow" in advise(b, **at).sentences[1]
    assert "should not grow" in advise(b, latest=between(1, 6), **at).sentences[1]
    for latest in (between(6, 20), Estimate(math.nan, low=6.0, high=math.inf)):
        told = advise(b, latest=latest, **at).sentences[1]
        assert "still rises" in told
        assert "should not grow" not in told


def test_no_advice_without_a_value():
    bound = Estimate(math.nan, low=1e4, high=math.inf)  # far above the batch
    told = advise(bound, batch_size=32, learning_rate=0.1, momentum=0.9).sentences[1]
    assert told.startswith("Leave batch and learning rate")


def test_tokens_are_counted_apart_from_examples():
    at = {"learning_rate": 0.1, "momentum": 0.0, "n_train": 100, "unit": "token"}
    made = advise(between(3e4, 6e4), batch_size=5_000, n_examples=10, **at)
    assert made.noise_scale == pytest.approx(0.1 * 9)
    assert "5000 tokens" in made.sentences[0]


def watched(n=8, n_train=1_000, unit="example"):
    rng = np.random.default_rng(0)
    record = NoiseRecord(n_train=n_train, unit=unit)
    for update in range(n):
        batch = Batch(1.2 + 0.1 * rng.random(), 0.6, 1 / 32, n_examples=32, n_units=32.0)
        record.take(batch, update=update, learning_rate=0.1, momentum=0.5)
    return record


def test_a_record_gives_the_advice_of_its_last_update():
    record = watched()
    made = record.advice()
    assert made.critical_batch_size.value == record.critical_batch_size
    assert made.batch_size == 32
    assert made.noise_scale == record.noise_scale == pytest.approx(0.1 * (1000 / 32 - 1) / 0.5)
    last = Batch(1.25, 0.6, 1 / 5, n_examples=5, n_units=5.0)  # an epoch's shorter end
    record.take(last, update=8, learning_rate=0.1, momentum=0.5)
    assert record.advice().batch_size == 32
    with pytest.raises(InputError, match="nothing has been measured"):
        NoiseRecord().advice()


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_what_is_saved_is_read_again(tmp_path, suffix):
    from noisescale.noise.watch.saved import load

    record = watched()
    record.note("a note")
    path = tmp_path / f"history.{suffix}"
    record.save(path)
    again = load(path)
    assert again.rows[0].high == math.inf  # one update bounds nothing
    for one, other in zip(record.rows, again.rows, strict=True):
        assert vars(one) == pytest.approx(vars(other), rel=1e-15, nan_ok=True)
    assert again.advice().position == record.advice().position
    for end in ("value", "low", "high"):
        assert getattr(again.interval(), end) == getattr(record.interval(), end)
    assert again.critical_batch_size == record.critical_batch_size
    assert f"critical batch size {record.interval()}" in repr(again)
    assert again.noise_scale == record.noise_scale
    json.dumps(again.to_dict()["critical_batch_size"], allow_nan=False)
    if suffix == "json":
        assert again.to_dict() == record.to_dict()
        json.loads(path.read_text(), parse_constant=pytest.fail)  # strict JSON
    assert again.take(Batch(1.25, 0.6, 1 / 5, 5, 5.0), update=9)  # and both can go on


def test_a_history_of_tokens_is_known_by_their_number(tmp_path):
    from noisescale.noise.watch.saved import load

    record = NoiseRecord(unit="token")
    for total in (2.0, 2.5, 2.2):
        record.take(Batch(total, 0.2, 1 / 30, n_examples=32, n_units=500.0), update=0)
    record.save(tmp_path / "history.csv")
    assert "A batch of 500 tokens" in repr(load(tmp_path / "history.csv").advice())


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.txt", "", "ends in .csv or .json"),
        ("a.csv", "update,low\n1,2\n", "no column n_examples"),
        ("a.csv", "", "no history of a watched run"),
        ("a.json", "{", "is no noisescale watch that save wrote"),
        ("a.json", "[]", "is no noisescale watch that save wrote"),
        ("a.json", '{"kind": "noisescale watch"}', "is no noisescale watch that save wrote"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, name, text, words):
    from noisescale.noise.watch.saved import load

    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        load(path)
    with pytest.raises(InputError, match="cannot be read"):
        load(tmp_path / "nothing.csv")


def test_pictures_show_the_numbers(tmp_path):
    record = watched()
    axes = record.plot()
    line = next(line for line in axes.lines if line.get_label() == "critical batch size")
    values = [row.critical_batch_size for row in record.rows]
    np.testing.assert_allclose(line.get_ydata(), values)
    record.plot(tmp_path / "watch.png")
    assert (tmp_path / "watch.png").stat().st_size > 1000
    curve = record.advice().plot()
    line = next(line for line in curve.lines if line.get_label() == "updates")
    np.testing.assert_allclose(np.interp(32.0, *line.get_data()), 1.0, rtol=5e-3)  # a grid of 61
    NoiseRecord().plot()  # empty axes, no error
