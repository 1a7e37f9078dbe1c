import math
from dataclasses import replace

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
        ({"batch_size": 2 * 10**6}, "batch_size must be at most 1000000"),
        ({"n_train": 10**7}, "no rule says how Adam's batch size goes with n_train"),
        ({"learning_rate": 2e-3, "rule": "half_life"}, "the half-life rule keeps the learning rat"),
        ({"batch_size": 512, "rule": "linear"}, "rule must be one of square_root, half_life"),
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


def test_more_data_and_a_batch_go_by_the_batch_and_say_so():
    adam = ns.AdamRecipe(
        learning_rate=1e-3, batch_size=256, n_train=10**6, weight_decay=0.1, decoupled=True
    )
    both = adam.scaled_to(batch_size=1024, n_train=4 * 10**6)
    assert both.n_train == 4 * 10**6
    assert both.learning_rate == adam.scaled_to(batch_size=1024).learning_rate
    assert any(note.startswith("what else moves with the data is not known") for note in both.notes)
    for one in adam.side_by_side(batch_size=512, n_train=2 * 10**6).values():
        assert one.n_train == 2 * 10**6
    # A batch beyond the new data is refused as ever.
    with pytest.raises(InputError, match="batch_size must be at most 300"):
        adam.scaled_to(batch_size=512, n_train=300)


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
    short = slow.scaled_to(batch_size=250 * 256, rule="half_life").notes
    assert short[0].startswith("beta2 = 0.0064 averages over 1 update only")
    # A recipe that had no average to begin with is none the worse for going back.
    assert slow.scaled_to(batch_size=128).notes == ()


def test_a_beta_at_the_end_of_the_rule_is_zero():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    end = adam.scaled_to(batch_size=adam.largest_batch_size)
    assert (end.batch_size, end.betas[0]) == (2560, 0.0)
    assert any(note.startswith("at beta1 = 0 the newest") for note in end.notes)
    short = replace(adam, betas=(0.9, 0.95)).scaled_to(batch_size=2560)
    assert "beta2 = 0.5 averages over 2 updates only: the rule assumes many" in short.notes
    none = replace(adam, betas=(0.9, 0.9)).scaled_to(batch_size=2560)
    assert "beta2 = 0 averages over 1 update only: the rule assumes many" in none.notes


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
    # The next one is given with the power instead, but where rounding cannot tell it.
    if largest < n_train and (largest + 1) * (1 - min(beta1, beta2)) > batch_size * (1 + 1e-9):
        beyond = adam.scaled_to(batch_size=largest + 1)
        assert any(f"ends at batch_size {largest}" in note for note in beyond.notes)
        kappa = (largest + 1) / batch_size
        assert beyond.betas == pytest.approx((beta1**kappa, beta2**kappa))


def test_the_power_has_the_rule_as_its_first_order():
    adam = ns.AdamRecipe(
        learning_rate=1e-3, batch_size=1000, n_train=10**9, betas=(1 - 1e-5, 1 - 1e-6)
    )
    kappa = 1.5
    rule = adam.scaled_to(batch_size=1500).betas
    for old, new in zip(adam.betas, rule, strict=True):
        # beta^kappa = 1 - kappa (1 - beta) + kappa (kappa - 1)/2 (1 - beta)^2 - ...
        second = kappa * (kappa - 1) / 2 * (1 - old) ** 2
        assert old**kappa - new == pytest.approx(second, rel=1e-2, abs=1e-15)


def test_the_half_life_stays_in_tokens_and_nothing_else_moves():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=512, n_train=10**9, betas=(0.9, 0.95))
    for size in (1, 64, 4096):
        there = adam.scaled_to(batch_size=size, rule="half_life")
        assert size / math.log(there.betas[1]) == pytest.approx(512 / math.log(0.95), rel=1e-12)
        assert (there.learning_rate, there.betas[0], there.eps) == (1e-3, 0.9, 1e-8)


@pytest.mark.parametrize("rule", ["square_root", "half_life"])
@pytest.mark.parametrize("size", [16, 8192])
def test_decoupled_weight_decay_keeps_tau(rule, size):
    adamw = ns.AdamRecipe(
        learning_rate=3e-4, batch_size=512, n_train=10**9, weight_decay=0.1, decoupled=True
    )
    there = adamw.scaled_to(batch_size=size, rule=rule)
    tau = [r.batch_size / (r.learning_rate * r.weight_decay) for r in (adamw, there)]
    assert tau[1] == pytest.approx(tau[0], rel=1e-12)
    assert any("with others the best one moves by itself" in note for note in there.notes)
    l2 = replace(adamw, decoupled=False).scaled_to(batch_size=size, rule=rule)
    assert l2.weight_decay == 0.1


def test_rules_side_by_side_say_where_they_disagree():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    made = adam.side_by_side(batch_size=1024)
    assert [r.learning_rate for r in made.values()] == pytest.approx([2e-3, 1e-3])
    note = made["square_root"].notes[0]
    assert note.startswith("the rules disagree: by the square root the learning rate is 2 times")
    assert not any(
        "disagree" in note for note in adam.side_by_side(batch_size=256)["square_root"].notes
    )


def test_far_beyond_the_rule_there_is_an_answer_and_its_reason():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    sixteen = adam.scaled_to(batch_size=16 * 256)
    assert sixteen.learning_rate == pytest.approx(4e-3)
    assert sixteen.betas == pytest.approx((0.9**16, 0.999**16))
    assert "would need betas of -0.6 and 0.984" in sixteen.notes[0]
    assert "rule='half_life' keeps beta1" in sixteen.notes[0]
    assert any("beta1 = 0.185" in note for note in sixteen.notes)
