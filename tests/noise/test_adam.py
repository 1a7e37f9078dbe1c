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
    assert adam.scaled_to(learning_rate=1.5e-3, rule="sde").notes == ()
    assert "rounded" in adam.scaled_to(learning_rate=1.501e-3).notes[0]
    assert four.to_dict()["betas"] == pytest.approx([0.6, 0.996])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 2 * 10**6}, "batch_size must be at most 1000000"),
        ({"n_train": 10**7}, "no rule says how Adam's batch size goes with n_train"),
        ({"learning_rate": 2e-3, "rule": "half_life"}, "the half-life rule keeps the learning rat"),
        ({"batch_size": 512, "rule": "linear"}, "rule must be one of sde, practice, half_life"),
        ({}, "give one"),
        ({"learning_rate": 1e-9}, "would need a batch_size of"),
        (
            {"batch_size": 2560, "rule": "sde"},
            r"no betas for a batch_size of 2560: .* 2559 is the largest at which both betas stay "
            r"above 0; give no more than that, or rule='practice' or rule='half_life'\.",
        ),
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
    with pytest.raises(InputError, match="decoupled must be True or False, got nan"):
        ns.AdamRecipe(learning_rate=1, batch_size=1, decoupled=math.nan)
    with pytest.raises(InputError, match="nesterov must be True or False, got nan"):
        ns.Recipe(learning_rate=1, batch_size=1, momentum=0.9, nesterov=math.nan)


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


def test_betas_too_small_for_an_average_are_noted():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6)
    assert adam.scaled_to(batch_size=4 * 256, rule="sde").notes == ()
    six = adam.scaled_to(batch_size=6 * 256, rule="sde")
    assert six.betas[0] == pytest.approx(0.4)
    assert six.notes == (
        "beta1 = 0.4 averages over 1.67 updates, where the tuned 0.9 averages over 10",
    )
    slow = ns.AdamRecipe(learning_rate=1e-3, batch_size=256, n_train=10**6, betas=(0.999, 0.98))
    (note,) = slow.scaled_to(batch_size=7 * 256, rule="sde").notes
    assert note == "beta2 = 0.86 averages over 7.14 updates, where the tuned 0.98 averages over 50"
    last = slow.scaled_to(batch_size=250 * 256, rule="half_life").notes[1]
    assert last.startswith("beta2 = 0.0064 averages over 1.01 updates, where")
    # A recipe that had no average to begin with is none the worse for going back.
    assert slow.scaled_to(batch_size=128, rule="sde").notes == ()


@given(
    st.floats(0, 0.9999),
    st.floats(0, 0.9999),
    st.integers(1, 10**5),
    st.integers(10**5, 10**9),
)
def test_the_sde_rule_ends_before_a_beta_reaches_0(beta1, beta2, batch_size, n_train):
    adam = ns.AdamRecipe(
        learning_rate=1e-3, batch_size=batch_size, n_train=n_train, betas=(beta1, beta2)
    )
    largest = adam.largest_batch_size
    there = adam.scaled_to(batch_size=largest, rule="sde")
    for old, new in zip(adam.betas, there.betas, strict=True):
        assert (new > 0) == (old > 0)  # without an average, as in RMSprop, there is none after
    if largest < n_train:
        with pytest.raises(InputError, match=f"{largest} is the largest at which both"):
            adam.scaled_to(batch_size=largest + 1, rule="sde")
        beyond = adam.scaled_to(batch_size=largest + 1)
        assert beyond == adam.scaled_to(batch_size=largest + 1, rule="practice")
        assert f"this is rule='practice' (sde ends at batch_size {largest})" in beyond.notes[0]
        assert "sde" not in adam.side_by_side(batch_size=largest + 1)


def test_the_end_is_told_in_whole_sequences():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=8 * 100, unit="tokens", sequence_length=100)
    assert adam.largest_batch_size == 7900  # 8,000 is where beta1 is 0
    assert ns.AdamRecipe(learning_rate=1, batch_size=8, betas=(0, 0)).largest_batch_size == 2**62


ADAMW = ns.AdamRecipe(
    learning_rate=3e-4,
    batch_size=256,
    n_train=10**7,
    betas=(0.9, 0.95),
    weight_decay=0.1,
    decoupled=True,
    warmup_steps=1000,
    epochs=2,
)


@pytest.mark.parametrize(
    ("kappa", "rule", "wanted"),
    [  # learning rate, beta1, beta2, eps, weight decay
        (1 / 4, "sde", (1.5e-4, 0.975, 0.9875, 2e-8, 0.05)),
        (1 / 4, "practice", (1.5e-4, 0.9, 0.95**0.25, 1e-8, 0.05)),
        (1 / 4, "half_life", (3e-4, 0.9, 0.95**0.25, 1e-8, 0.025)),
        (1 / 4, None, (1.5e-4, 0.975, 0.9875, 2e-8, 0.05)),
        (4, "sde", (6e-4, 0.6, 0.8, 5e-9, 0.2)),
        (4, "square_root", (6e-4, 0.6, 0.8, 5e-9, 0.2)),
        (4, "practice", (6e-4, 0.9, 0.95, 1e-8, 0.2)),
        (4, "half_life", (3e-4, 0.9, 0.95**4, 1e-8, 0.4)),
        (4, None, (6e-4, 0.6, 0.8, 5e-9, 0.2)),
        (16, "practice", (12e-4, 0.9, 0.95, 1e-8, 0.4)),
        (16, "half_life", (3e-4, 0.9, 0.95**16, 1e-8, 1.6)),
        (16, None, (12e-4, 0.9, 0.95, 1e-8, 0.4)),
        (64, None, (24e-4, 0.9, 0.95, 1e-8, 0.8)),
    ],
)
def test_what_each_rule_gives(kappa, rule, wanted):
    there = ADAMW.scaled_to(batch_size=round(256 * kappa), rule=rule)
    found = (there.learning_rate, *there.betas, there.eps, there.weight_decay)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("beta2", "kappa", "wanted"),
    [
        (0.999, 4, 0.999**4),
        (0.999, 1000, 0.95),
        (0.999, 1 / 256, 0.9999),
        (0.9, 4, 0.9),  # below the bound already
        (0.9, 1 / 4, 0.9**0.25),
        (0.99999, 1 / 4, 0.99999),  # above it already
        (0.99999, 4, 0.99999**4),
        (0.0, 4, 0.0),
    ],
)
def test_practice_keeps_beta2_within_its_bounds(beta2, kappa, wanted):
    adam = replace(ADAMW, betas=(0.9, beta2))
    there = adam.scaled_to(batch_size=round(256 * kappa), rule="practice")
    assert there.betas == (0.9, pytest.approx(wanted, rel=1e-12))


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.sampled_from([None, "sde", "practice", "half_life"])),
        min_size=1,
        max_size=4,
    ),
    st.tuples(st.floats(0, 0.99999), st.floats(0, 0.99999)),
)
def test_two_steps_are_one_and_the_way_back_leads_back(steps, betas):
    tuned = replace(ADAMW, betas=betas)
    there = tuned
    for size, rule in steps:
        rule = None if rule == "sde" and size > there.largest_batch_size else rule
        there = there.scaled_to(batch_size=size, rule=rule)
        assert there == tuned.scaled_to(batch_size=size, rule=rule)
        assert there.largest_batch_size == tuned.largest_batch_size
    for rule in (None, "sde", "practice", "half_life"):
        assert there.scaled_to(batch_size=256, rule=rule) == tuned


def test_what_replace_changes_is_tuned_anew():
    there = ADAMW.scaled_to(batch_size=4096)
    assert there.scaled_to(batch_size=256) == ADAMW
    again = replace(there, learning_rate=1e-3)
    assert again.scaled_to(batch_size=4096 * 4).learning_rate == 2e-3
    assert again.scaled_to(batch_size=4096) == again


@given(
    st.sampled_from(["sde", "practice", "half_life"]),
    st.tuples(st.floats(0, 0.99999), st.floats(0, 0.99999)),
    st.lists(st.integers(1, 10**6), min_size=2, max_size=2),
)
def test_each_rule_is_monotone_in_the_batch(rule, betas, sizes):
    tuned = replace(ADAMW, betas=betas)
    low, high = sorted(sizes)
    if rule == "sde":
        high = min(high, tuned.largest_batch_size)
        low = min(low, high)
    a, b = (tuned.scaled_to(batch_size=size, rule=rule) for size in (low, high))
    assert b.learning_rate >= a.learning_rate
    assert b.weight_decay >= a.weight_decay
    for before, after in zip(a.betas, b.betas, strict=True):
        assert after <= before


def test_more_data_lower_the_weight_decay_of_practice_alone():
    decays = {
        rule: ADAMW.scaled_to(batch_size=1024, n_train=4 * 10**7, rule=rule).weight_decay
        for rule in ("sde", "practice", "half_life")
    }
    assert decays == pytest.approx({"sde": 0.2, "practice": 0.05, "half_life": 0.4})
    more = ADAMW.scaled_to(batch_size=256, n_train=4 * 10**7, rule="practice")
    tau = [
        r.batch_size / (r.learning_rate * r.weight_decay * r.n_train * r.epochs)
        for r in (ADAMW, more)
    ]
    assert tau[1] == pytest.approx(tau[0], rel=1e-12)
    assert "but for the weight decay everything here goes with the batch size" in more.notes[0]
    assert "that grow with n_train, in as many epochs" in more.notes[1]
    assert more.scaled_to(batch_size=256, n_train=10**7) == ADAMW
    same_batch = ADAMW.scaled_to(batch_size=256, n_train=4 * 10**7)
    assert (
        "practice has learning rate 0.0003, betas (0.9, 0.95), weight decay 0.025"
        in (same_batch.notes[0])
    )
    l2 = replace(ADAMW, decoupled=False).scaled_to(
        batch_size=1024, n_train=4 * 10**7, rule="practice"
    )
    assert (l2.weight_decay, [n for n in l2.notes if "weight decay keeps" in n]) == (0.1, [])
    assert "not known for Adam: everything here" in l2.notes[0]
    far = more.scaled_to(learning_rate=3e-4 * 250)  # fits into the data that it has now
    assert far.batch_size == 256 * 250**2
    stream = replace(ADAMW, n_train=None, epochs=None)
    assert stream.scaled_to(batch_size=1024, n_train=10**7, rule="practice").weight_decay == 0.2


def test_the_half_life_stays_in_tokens_and_nothing_else_moves():
    adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=512, n_train=10**9, betas=(0.9, 0.95))
    for size in (1, 64, 4096):
        there = adam.scaled_to(batch_size=size, rule="half_life")
        assert size / math.log(there.betas[1]) == pytest.approx(512 / math.log(0.95), rel=1e-12)
        assert (there.learning_rate, there.betas[0], there.eps) == (1e-3, 0.9, 1e-8)


@pytest.mark.parametrize("rule", ["square_root", "practice", "half_life"])
@pytest.mark.parametrize("size", [16, 4096])
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


def test_rules_side_by_side_say_how_far_they_are_apart():
    made = ADAMW.side_by_side(batch_size=1024)
    assert list(made) == ["sde", "practice", "half_life"]
    assert [r.learning_rate for r in made.values()] == pytest.approx([6e-4, 6e-4, 3e-4])
    assert made["sde"].notes[0] == (
        "this is rule='sde'; practice has learning rate 0.0006, betas (0.9, 0.95), weight decay "
        "0.2; half_life has learning rate 0.0003, betas (0.9, 0.814506), weight decay 0.4; none of "
        "them was right everywhere where they were tried, so let three short runs decide: at half "
        "this learning rate, at it, and at twice it (0.0003, 0.0006, 0.0012)"
    )
    by_default = ADAMW.scaled_to(batch_size=1024)
    assert (by_default, by_default.notes) == (made["sde"], made["sde"].notes)
    far = ADAMW.scaled_to(batch_size=4096)
    assert far.notes == ADAMW.side_by_side(batch_size=4096)["practice"].notes
    for same in (ADAMW.side_by_side(batch_size=256)["sde"], far.scaled_to(batch_size=256)):
        assert same.notes == ()
    for rule in ("sde", "practice", "half_life"):
        notes = ADAMW.scaled_to(batch_size=1024, rule=rule).notes
        assert not any("three short runs" in note for note in notes)


@pytest.mark.parametrize("rule", [None, "practice", "half_life"])
def test_the_critical_batch_size_is_asked_for_before_a_long_jump(rule):
    asked = "measure the critical batch size first (noisescale.torch.watch in a run"
    eight, seven = (ADAMW.scaled_to(batch_size=256 * k, rule=rule).notes for k in (8, 7))
    assert any(asked in note for note in eight)
    assert not any(asked in note for note in seven)


@pytest.mark.parametrize("trainer", ["pytorch", "transformers", "lightning"])
def test_lines_to_paste_carry_what_the_recipe_notes_as_comments(trainer):
    for recipe in (
        ADAMW.scaled_to(batch_size=4096),
        ns.Recipe(learning_rate=1, batch_size=64, n_train=1000).scaled_to(batch_size=512),
        replace(ADAMW, notes=("two\nlines\rof one",)),
    ):
        lines = recipe.to(trainer).splitlines()
        text = " ".join(line.lstrip("# ") for line in lines if line.startswith("# "))
        assert recipe.notes
        for note in recipe.notes:
            assert " ".join(note.split()) in text
        assert max(map(len, lines[: len(recipe.notes)])) <= 100
        assert lines[len(lines) - 1] in replace(recipe, notes=()).to(trainer)
        compile("if True:\n" + "".join(f"    {line}\n" for line in lines), "pasted", "exec")


def test_pasted_lines_say_what_was_said_of_the_tuned_recipe():
    noted = replace(ADAMW, notes=("amsgrad is on",))
    assert "# amsgrad is on" in noted.scaled_to(batch_size=1024).to("pytorch")
    assert noted.to("pytorch").count("amsgrad") == 1
