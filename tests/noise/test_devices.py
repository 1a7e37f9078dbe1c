import math
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.devices import Devices, layout, whole_batch


@given(st.integers(1, 5000), st.integers(1, 16), st.integers(1, 600))
def test_the_layout_accumulates_least_of_all_that_fit(share, world_size, most):
    batch = share * world_size
    found = layout(batch, world_size=world_size, max_per_device_batch_size=most)
    naive = [k for k in range(1, share + 1) if share % k == 0 and share // k <= most]
    assert found.gradient_accumulation_steps == naive[0]
    assert (found.batch_size, found.world_size) == (batch, world_size)


@given(st.integers(1, 10**6), st.integers(2, 64))
def test_a_batch_that_does_not_divide_names_those_that_do(batch, world_size):
    if batch % world_size == 0:
        assert layout(batch, world_size=world_size).gradient_accumulation_steps == 1
        return
    with pytest.raises(InputError) as error:
        layout(batch, world_size=world_size)
    low = batch // world_size * world_size
    named = [str(low), str(low + world_size)] if low else [str(world_size)]
    assert all(size in str(error.value) for size in named)


def test_what_is_fixed_stays():
    assert layout(64, world_size=2) == Devices(per_device_batch_size=32, world_size=2)
    four = Devices(per_device_batch_size=8, gradient_accumulation_steps=4, world_size=2)
    assert layout(64, world_size=2, per_device_batch_size=8) == four
    assert layout(64, world_size=2, gradient_accumulation_steps=4) == four
    assert layout(64, world_size=2, max_per_device_batch_size=10) == four
    assert layout(64, world_size=2, per_device_batch_size=8, gradient_accumulation_steps=4) == four
    assert math.prod(four.to_dict().values()) == 64
    with pytest.raises(
        InputError, match="60 cannot .* 8 a device on 2 devices: 48 = 3 x 16 and 64"
    ):
        layout(60, world_size=2, per_device_batch_size=8)
    with pytest.raises(
        InputError, match="5 cannot .*: the smallest that can is 16; if 5 is what one device"
    ):
        layout(5, world_size=2, per_device_batch_size=8)


def test_what_a_device_holds_is_never_exceeded():
    with pytest.raises(
        InputError, match="^64 a device x 1 accumulated x 2 devices is more .* of 32[.]$"
    ):
        layout(128, world_size=2, per_device_batch_size=64, max_per_device_batch_size=32)
    with pytest.raises(InputError, match="32 a device x 2 accumulated .* is more .* of 31"):
        layout(128, world_size=2, gradient_accumulation_steps=2, max_per_device_batch_size=31)
    both = {"per_device_batch_size": 32, "gradient_accumulation_steps": 2}
    with pytest.raises(InputError, match="is more on a device than"):
        layout(128, world_size=2, **both, max_per_device_batch_size=31)
    tuned = ns.Recipe(learning_rate=0.1, batch_size=128)
    with pytest.raises(InputError, match="is more on a device than"):
        tuned.to("pytorch", per_device_batch_size=64, max_per_device_batch_size=32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: whole_batch(32, per_device_batch_size=8, world_size=2),
            "batch_size 32 is not 8 a device x 1 accumulated x 2 devices = 16: batch_size is that "
            "of one update, over all devices",
        ),
        (lambda: whole_batch(None), "say how large the batch is"),
        (lambda: whole_batch(8, world_size=2), "world_size goes with per_device_batch_size"),
        (
            lambda: whole_batch(8, gradient_accumulation_steps=2),
            "gradient_accumulation_steps goes with per_device_batch_size",
        ),
        (lambda: whole_batch(None, per_device_batch_size=0), "per_device_batch_size must be at l"),
    ],
)
def test_per_device_for_global_is_caught(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_product_is_the_batch():
    size = whole_batch(64, per_device_batch_size=8, gradient_accumulation_steps=4, world_size=2)
    assert size == 64


def test_a_launcher_says_how_many_train_together():
    code = (
        "from noisescale.noise.devices import whole_batch; "
        "print(whole_batch(None, per_device_batch_size=8))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"WORLD_SIZE": "4"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "32\n"


def recipe(**changes):
    tokens = {"batch_size": 65_536, "n_train": 10**9, "unit": "tokens", "sequence_length": 1024}
    return ns.Recipe(learning_rate=0.1, **tokens | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 64}, "64 tokens is less than one sequence of 1024: if 64 counts sequences"),
        ({"batch_size": 65_000}, "no whole number of sequences of 1024: 64512 and 65536 are"),
        ({"sequence_length": None}, "needs sequence_length, the tokens of one example"),
        ({"n_train": 60_000}, "at most 60000, the number of training tokens, got 65536: are both"),
        ({"unit": "words"}, "unit must be one of examples, tokens, got 'words'"),
        ({"unit": "examples", "n_train": 500}, "is n_train not a number of batches"),
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
    ],
)
def test_mistaken_units_are_caught(changes, message):
    with pytest.raises(InputError, match=message) as error:
        recipe(**changes)
    assert "\n" not in str(error.value)


def test_a_batch_that_moves_becomes_a_multiple():
    tuned = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, momentum=0.9, epochs=90)
    assert tuned.scaled_to(n_train=400_000, epochs=90).batch_size == 410
    assert tuned.scaled_to(n_train=400_000, epochs=90, multiple_of=24).batch_size == 408
    linear = tuned.scaled_to(learning_rate=0.15, multiple_of=100)
    assert linear.batch_size == 400
    assert "rounding the batch size from 384 to 400" in linear.notes[0]
    tokens = ns.Recipe(
        learning_rate=0.1, batch_size=4096, n_train=10**9, unit="tokens", sequence_length=1024
    )
    assert tokens.scaled_to(learning_rate=0.23, multiple_of=8192).batch_size == 8192
    with pytest.raises(InputError, match="1000 is no whole number of sequences of 1024"):
        tokens.scaled_to(learning_rate=0.2, multiple_of=1000)
    with pytest.raises(InputError, match="a multiple of 600 is asked for, and there are 500"):
        tuned.scaled_to(n_train=500, epochs=90, multiple_of=600)


def test_a_training_set_that_may_count_sequences_is_asked_about():
    notes = recipe(batch_size=524_288, n_train=600_000).notes
    assert notes[0] == (
        "an epoch of 600000 tokens is 1.14 updates: is n_train in tokens? If it counts sequences, "
        "it is 614400000"
    )
    assert recipe(batch_size=524_288, n_train=600_000 * 1024).notes == ()


def test_tokens_given_as_examples_are_noted():
    (note,) = ns.Recipe(
        learning_rate=0.1, batch_size=524_288, n_train=10**10, sequence_length=2048
    ).notes
    assert "1.1e+09 tokens an update: if 524288 counts tokens, say unit='tokens'" in note
    (note,) = ns.Recipe(
        learning_rate=0.1, batch_size=512, n_train=3 * 10**11, sequence_length=2048
    ).notes
    assert "is 6.1e+14 tokens: if 300000000000 counts tokens, say unit='tokens'" in note
    assert (
        ns.Recipe(learning_rate=0.1, batch_size=256, n_train=10**6, sequence_length=8).notes == ()
    )
