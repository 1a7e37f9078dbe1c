import pytest
from hypothesis import given
from hypothesis import strategies as st

import noisescale as ns
from noisescale.errors import InputError


def test_the_square_root_rule():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    four = adam.scaled_to(batch_size=1024)
    assert four.learning_rate == pytest.approx(2e-3)
    assert four.betas == pytest.approx((0.6, 0.996))
    assert four.eps == pytest.approx(0.5e-8)
    back = four.scaled_to(batch_size=256)
    assert back.learning_rate == pytest.approx(1e-3, rel=1e-12)
    assert back.betas == pytest.approx(adam.betas, rel=1e-12)
    assert adam.scaled_to(learning_rate=2e-3).batch_size == 1024
    assert adam.scaled_to(learning_rate=1.5e-3).notes == ()
    assert "rounded" in adam.scaled_to(learning_rate=1.501e-3).notes[0]
    assert four.to_dict()["betas"] == pytest.approx([0.6, 0.996])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"batch_size": 8192},
            "would need betas of -2.2 and 0.968, below 0: Adam's rule ends at batch_size 2560, so "
            "grow the batch less",
        ),
        ({}, "give one"),
        ({"learning_rate": 1e-9}, "would need a batch_size of"),
    ],
)
def test_how_far_adam_goes(change, message):
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    with pytest.raises(InputError, match=message):
        adam.scaled_to(**change)
    with pytest.raises(InputError, match="betas must be two numbers, got 0.9"):
        ns.AdamRecipe(learning_rate=1, batch_size=1, n_train=2, betas=0.9)
    with pytest.raises(InputError, match=r"betas\[1\] must be"):
        ns.AdamRecipe(learning_rate=1, batch_size=1, n_train=2, betas=(0.9, 1))


def test_betas_too_small_for_the_rule_are_noted():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    assert adam.scaled_to(batch_size=4 * 256).notes == ()
    eight = adam.scaled_to(batch_size=8 * 256)
    assert eight.betas[0] == pytest.approx(0.2)
    (note,) = eight.notes
    assert note.startswith("at beta1 = 0.2 the newest gradient weighs more than all before it")
    slow = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6, betas=(0.999, 0.98))
    (note,) = slow.scaled_to(batch_size=8 * 256).notes
    assert note.startswith("beta2 = 0.84 averages over 6 updates only")
    # A recipe that had no average to begin with is none the worse for going back.
    assert slow.scaled_to(batch_size=128).notes == ()


@given(
    st.floats(0, 0.9999),
    st.floats(0, 0.9999),
    st.integers(1, 10**5),
    st.integers(10**5, 10**9),
)
def test_the_largest_batch_of_adams_rule(beta1, beta2, batch_size, n_train):
    adam = ns.AdamRecipe(
        learning_rate=1e-3, batch_size=batch_size, n_train=n_train, betas=(beta1, beta2)
    )
    largest = adam.largest_batch_size
    assert min(adam.scaled_to(batch_size=largest).betas) >= 0
    # The next one is refused, but where rounding cannot tell it from the limit.
    if largest < n_train and (largest + 1) * (1 - min(beta1, beta2)) > batch_size * (1 + 1e-9):
        with pytest.raises(InputError, match=f"ends at batch_size {largest}"):
            adam.scaled_to(batch_size=largest + 1)
