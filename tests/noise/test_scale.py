import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import noisescale as ns
from noisescale.errors import InputError

rates = st.floats(1e-6, 1e3)
momenta = st.floats(0, 0.999)


def test_the_formula():
    assert ns.noise_scale(0.1, 256, 50_000, 0.9) == pytest.approx(0.1 * (50_000 / 256 - 1) / 0.1)
    assert ns.noise_scale(0.1, 256, 50_000, 0.9, approximate=True) == pytest.approx(50_000 / 256)
    assert ns.noise_scale(2.0, 10, 1000) == 198.0


@given(rates, st.integers(1, 10**7), momenta)
def test_the_full_batch_has_no_noise(learning_rate, n_train, momentum):
    assert ns.noise_scale(learning_rate, n_train, n_train, momentum) == 0.0


@given(rates, st.integers(1, 1000), momenta)
def test_exact_and_approximate_agree_for_small_batches(learning_rate, batch_size, momentum):
    for n_train in (10**6, 10**9, 10**12):
        exact = ns.noise_scale(learning_rate, batch_size, n_train, momentum)
        rough = ns.noise_scale(learning_rate, batch_size, n_train, momentum, approximate=True)
        assert rough / exact - 1 == pytest.approx(batch_size / (n_train - batch_size), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ns.noise_scale(0, 1, 10), "learning_rate must be .* above 0 .*, got 0"),
        (lambda: ns.noise_scale(-1, 1, 10), "learning_rate must be .* above 0 .*, got -1"),
        (lambda: ns.noise_scale(math.nan, 1, 10), "learning_rate must be .* got nan"),
        (lambda: ns.noise_scale(1e300, 1, 10), "learning_rate must be .* got 1e\\+300"),
        (lambda: ns.noise_scale(1, 0, 10), "batch_size must be at least 1, got 0"),
        (lambda: ns.noise_scale(1, 11, 10), "batch_size must be at most 10, .* got 11"),
        (lambda: ns.noise_scale(1, 2.5, 10), "batch_size must be a whole number, got 2.5"),
        (lambda: ns.noise_scale(1, 1, 0), "n_train must be at least 1, got 0"),
        (lambda: ns.noise_scale(1, 1, 10, 1.0), r"momentum must be .* in \[0, 1\), got 1"),
        (lambda: ns.noise_scale(1, 1, 10, -0.1), r"momentum must be .* got -0.1"),
    ],
)
def test_bad_requests_get_one_sentence(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
