import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.scale import RULES

sizes = st.integers(2, 10**7)
rates = st.floats(1e-6, 1e3)
momenta = st.floats(0, 0.999)


@st.composite
def recipes(draw, momentum=momenta):
    n_train = draw(st.integers(4, 10**7))
    return ns.Recipe(
        learning_rate=draw(rates),
        batch_size=draw(st.integers(1, n_train - 1)),
        n_train=n_train,
        momentum=draw(momentum),
    )


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


@given(recipes(), st.floats(1.01, 10))
def test_what_makes_it_louder(recipe, factor):
    g = recipe.noise_scale
    assert (
        ns.noise_scale(
            factor * recipe.learning_rate, recipe.batch_size, recipe.n_train, recipe.momentum
        )
        > g
    )
    assert (
        ns.noise_scale(recipe.learning_rate, recipe.batch_size, recipe.n_train + 1, recipe.momentum)
        > g
    )
    assert ns.noise_scale(
        recipe.learning_rate, recipe.batch_size + 1, recipe.n_train + 1, recipe.momentum
    ) <= max(g, 1e-300) * (1 + 1 / recipe.n_train)
    higher = 1 - (1 - recipe.momentum) / factor
    assert ns.noise_scale(recipe.learning_rate, recipe.batch_size, recipe.n_train, higher) > g


@given(recipes(), st.data(), st.sampled_from(RULES))
def test_a_new_batch_size_keeps_the_noise_and_comes_back(recipe, data, rule):
    size = data.draw(st.integers(1, recipe.n_train - 1))
    there = recipe.scaled_to(batch_size=size, rule=rule)
    assert there.kept(rule) == pytest.approx(recipe.kept(rule), rel=1e-12)
    assert (there.momentum, there.n_train) == (recipe.momentum, recipe.n_train)
    back = there.scaled_to(batch_size=recipe.batch_size, rule=rule)
    assert back.learning_rate == pytest.approx(recipe.learning_rate, rel=1e-12)
    if rule == "linear":
        ratio = there.learning_rate / recipe.learning_rate
        assert ratio == pytest.approx(size / recipe.batch_size, rel=1e-12)


@given(recipes(), st.floats(1, 50), st.sampled_from(RULES))
def test_a_new_batch_size_by_momentum(recipe, factor, rule):
    size = min(round(recipe.batch_size * factor), recipe.n_train - 1)
    there = recipe.scaled_to(batch_size=size, via="momentum", rule=rule)
    assert 1 - there.momentum > 1e-7
    # What is kept goes with 1/(1 - m), which a double near 1 resolves to 1e-16/(1 - m).
    precision = 1e-12 + 4e-16 / (1 - there.momentum)
    assert there.kept(rule) == pytest.approx(recipe.kept(rule), rel=precision)
    assert there.momentum >= recipe.momentum - 1e-15
    back = there.scaled_to(batch_size=recipe.batch_size, via="momentum", rule=rule)
    assert 1 - back.momentum == pytest.approx(1 - recipe.momentum, rel=2 * precision)


@given(recipes(), st.floats(0.1, 10), st.sampled_from(RULES))
def test_when_the_batch_moves_the_mismatch_is_rounding_alone(recipe, factor, rule):
    asked = {"learning_rate": factor * recipe.learning_rate}
    effective = factor * recipe.effective_learning_rate
    kept = recipe.kept(rule)
    wanted = recipe.n_train * effective / (kept if rule == "linear" else kept + effective)
    assume(1 <= round(wanted) <= recipe.n_train)
    there = recipe.scaled_to(**asked, rule=rule)
    assert abs(there.batch_size - wanted) <= 0.5 + 1e-9 * wanted
    assert isinstance(there.batch_size, int)
    off = there.kept(rule) / kept - 1
    told = [note for note in there.notes if "rounding" in note]
    assert bool(told) == (abs(off) >= 1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_more_data_takes_larger_batches(rule):
    recipe = ns.Recipe(learning_rate=0.1, batch_size=100, n_train=10_000, momentum=0.9)
    more = recipe.scaled_to(n_train=30_000, rule=rule)
    assert more.batch_size == 300
    assert more.learning_rate == recipe.learning_rate
    assert "only as N^0.57 [0.36, 0.78]" in more.notes[0]
    assert not any("N^" in note for note in recipe.scaled_to(batch_size=200, rule=rule).notes)
    faster = recipe.scaled_to(momentum=0.95, rule=rule)
    assert faster.batch_size == (200 if rule == "linear" else 198)


def test_the_practitioners_rule():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=1_281_167, momentum=0.9)
    scaled = recipe.scaled_to(batch_size=8192)
    assert scaled == ns.Recipe(
        learning_rate=scaled.learning_rate, batch_size=8192, n_train=1_281_167, momentum=0.9
    )
    assert scaled.learning_rate == pytest.approx(3.2)


def test_notes_say_what_to_watch():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, momentum=0.9)
    assert recipe.notes == ()
    scaled = recipe.scaled_to(batch_size=8192)
    text = " | ".join(scaled.notes)
    assert "16% of the training set" in text
    assert "effective learning rate of 32" in text
    assert "AdamRecipe" in text
    slow = ns.Recipe(learning_rate=0.1, batch_size=100, n_train=1000, momentum=0.99)
    assert any("needs about 100 updates to forget" in note for note in slow.notes)
    long = ns.Recipe(learning_rate=0.01, batch_size=100, n_train=1000, momentum=0.99, epochs=200)
    assert long.notes == ()
    assert long == ns.Recipe(
        learning_rate=0.01,
        batch_size=100,
        n_train=1000,
        momentum=0.99,
        epochs=200,
        notes=("another",),
    )
    assert scaled.to_dict()["notes"] == list(scaled.notes)
    assert repr(recipe) == (
        "Recipe(learning_rate=0.1, batch_size=256, n_train=50000, momentum=0.9)"
    )


RECIPE = ns.Recipe(learning_rate=0.1, batch_size=10, n_train=100, momentum=0.5)


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
        (lambda: ns.Recipe(learning_rate=1, batch_size=1, n_train=2, epochs=0), "epochs must be"),
        (lambda: RECIPE.scaled_to(), "was asked for nothing"),
        (lambda: RECIPE.scaled_to(batch_size=20, learning_rate=1), "batch_size and learning_rate"),
        (lambda: RECIPE.scaled_to(batch_size=20, via="batch_size"), "cannot both be set"),
        (lambda: RECIPE.scaled_to(batch_size=20, via="n_train"), "via must be one of"),
        (lambda: RECIPE.scaled_to(batch_size=20, rule="cubic"), "rule must be one of"),
        (lambda: RECIPE.scaled_to(batch_size=101), "batch_size must be at most 100"),
        (lambda: RECIPE.scaled_to(batch_size=100, rule="exact"), "has no noise, so the exact rule"),
        (lambda: RECIPE.scaled_to(batch_size=1, via="momentum"), "momentum of -4, below 0"),
        (lambda: RECIPE.scaled_to(learning_rate=50), "would need a batch_size of 5e\\+03, outside"),
        (lambda: RECIPE.scaled_to(learning_rate=0.001), "would need a batch_size of 0.1, outside"),
    ],
)
def test_bad_requests_get_one_sentence(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_smaller_training_set_takes_a_smaller_batch():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=500, n_train=1000)
    assert recipe.scaled_to(n_train=400).batch_size == 200


def test_a_recipe_without_noise_cannot_keep_it():
    silent = ns.Recipe(learning_rate=0.1, batch_size=100, n_train=100)
    assert silent.noise_scale == 0
    with pytest.raises(InputError, match="it has no noise for the exact rule to keep"):
        silent.scaled_to(batch_size=10, rule="exact")
    assert silent.scaled_to(batch_size=10).learning_rate == pytest.approx(0.01)


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


@pytest.mark.parametrize("rule", RULES)
def test_growing_the_batch_keeps_the_noise_of_the_decay(rule):
    recipe = ns.Recipe(learning_rate=0.1, batch_size=128, n_train=50_000, momentum=0.9)
    decay = [(0, 0.1), (60, 0.02), (120, 0.004), (160, 0.0008)]
    made = recipe.as_batch_schedule(decay, rule=rule)
    for stage, (epoch, rate) in zip(made.stages, decay, strict=True):
        plain = ns.Recipe(learning_rate=rate, batch_size=128, n_train=50_000, momentum=0.9)
        grown = ns.Recipe(
            learning_rate=stage.learning_rate,
            batch_size=stage.batch_size,
            n_train=50_000,
            momentum=0.9,
        )
        assert stage.epoch == epoch
        assert grown.kept(rule) == pytest.approx(plain.kept(rule), rel=1e-12)
    sizes = [stage.batch_size for stage in made.stages]
    assert sizes == ([128, 640, 3200, 5000] if rule == "linear" else [128, 634, 3015, 5000])
    assert made.stages[2].learning_rate == pytest.approx(0.1, rel=1e-3)
    assert made.stages[3].learning_rate < 0.04
    assert "from epoch 160 on the batch is held at a tenth of the training set" in made.notes[0]


def test_schedules_stay_within_memory_and_warm_up_by_learning_rate():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=128, n_train=50_000, momentum=0.9)
    made = recipe.as_batch_schedule([(0, 0.01), (5, 0.1), (60, 0.01)], max_batch_size=512)
    assert [stage.batch_size for stage in made.stages] == [128, 128, 512]
    assert made.stages[2].learning_rate == pytest.approx(0.04)
    assert "max_batch_size, 512" in made.notes[0]
    for bad, message in (
        ([], "holds no pairs"),
        ([(0, 0.1), (0, 0.01)], "epochs must rise"),
        ([0.1, 0.2], "must be pairs"),
        ([(0, -1)], "learning_rate must be"),
    ):
        with pytest.raises(InputError, match=message):
            recipe.as_batch_schedule(bad)
    with pytest.raises(InputError, match="max_batch_size must be at least"):
        recipe.as_batch_schedule([(0, 0.1)], max_batch_size=64)


def test_a_batch_that_is_large_from_the_start_stays():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=500, n_train=1000)
    made = recipe.as_batch_schedule([(0, 0.1), (10, 0.01)])
    assert [stage.batch_size for stage in made.stages] == [500, 500]
    assert "held at the recipe's own, 500" in made.notes[0]
