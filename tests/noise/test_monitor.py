import math

import numpy as np
import pytest

import noisescale as ns
from noisescale.errors import InputError


def gradients(n=400, p=6, seed=3):
    """Gradients of n examples, whose mean is well away from zero."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)) * np.arange(1, p + 1) + 0.7


def test_the_monitor_agrees_with_the_full_data():
    g = gradients()
    truth = g.var(axis=0).sum() / (g.mean(axis=0) @ g.mean(axis=0))
    monitor = ns.NoiseScaleMonitor(decay=0.0)
    rng = np.random.default_rng(0)
    for _ in range(4000):
        batch = g[rng.integers(400, size=80)]
        small, large = batch[:10].mean(axis=0), batch.mean(axis=0)
        monitor.update(small @ small, large @ large, 10, 80)
    estimate = monitor.estimate
    assert truth in estimate
    assert estimate.high / estimate.low < 1.3
    assert monitor.critical_batch_size == estimate.value
    assert estimate.n == 4000
    # Fieller's interval is skewed; where all is resolved it is Student's with eight groups.
    assert estimate.high - estimate.low == pytest.approx(2 * 2.365 * estimate.std, rel=0.02)


def test_the_monitor_goes_on_from_its_state():
    rng = np.random.default_rng(0)
    pairs = 1 + rng.random((50, 2))
    for decay in (0.0, 0.9):
        one, first, second = (ns.NoiseScaleMonitor(decay=decay) for _ in range(3))
        for k, (small, large) in enumerate(pairs):
            one.update(small, large, 8, 64)
            (first if k < 25 else second).update(small, large, 8, 64)
            if k == 24:
                second.load_state_dict(first.state_dict())
        assert second.state_dict() == one.state_dict()
    with pytest.raises(InputError, match="the state must have"):
        one.load_state_dict({"decay": 0.1})


def test_a_monitor_that_forgets():
    monitor = ns.NoiseScaleMonitor(decay=0.9)
    for k in range(400):
        level = 1.0 if k < 200 else 3.0
        monitor.update(level * 2, level, 1, 2)  # |G|^2 = 0, tr S = 2 level
    assert monitor.noise == pytest.approx(6.0, rel=1e-6)
    assert monitor.critical_batch_size is None
    fresh = ns.NoiseScaleMonitor().estimate
    assert (math.isnan(fresh.value), fresh.low, fresh.high) == (True, 0.0, math.inf)


def test_overflows_are_skipped_and_counted():
    clean, rough = ns.NoiseScaleMonitor(decay=0.9), ns.NoiseScaleMonitor(decay=0.9)
    rng = np.random.default_rng(0)
    for small, large in 1 + rng.random((20, 2)):
        clean.update(small + 1, large, 8, 64)
        rough.update(small + 1, large, 8, 64)
        for bad in (math.inf, math.nan, 1e300, np.float32("inf")):
            rough.update(bad, large, 8, 64)
            rough.update(small, bad, 8, 64)
    assert rough.n_skipped == 160
    assert rough.state_dict() | {"n_skipped": 0} == clean.state_dict()


def test_it_prints_its_answer():
    monitor = ns.NoiseScaleMonitor()
    assert repr(monitor) == (
        "NoiseScaleMonitor: critical batch size not resolved yet (0 of 0 updates measured)"
    )
    for small, large in ((4.1, 1.6), (3.9, 1.5), (4.2, 1.7)):
        monitor.update(small, large, 32, 256)
    assert repr(monitor) == (
        f"NoiseScaleMonitor: critical batch size {monitor.estimate}, averaged over updates 1 to 3 "
        "(3 of 3 updates measured)"
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ns.NoiseScaleMonitor().update(1, 1, 8, 8), "n_large must be above n_small = 8"),
        (lambda: ns.NoiseScaleMonitor().update(-1, 1, 4, 8), "small_sq_norm must be .* got -1"),
        (lambda: ns.NoiseScaleMonitor().update(1, "x", 4, 8), "large_sq_norm must be .* got 'x'"),
        (lambda: ns.NoiseScaleMonitor().update(None, 1, 4, 8), "small_sq_norm must be .* got None"),
        (lambda: ns.NoiseScaleMonitor(decay=1), r"decay must be .* in \[0, 1\)"),
    ],
)
def test_bad_input_gets_one_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()
