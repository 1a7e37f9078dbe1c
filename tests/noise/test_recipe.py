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
    rounding = [note for note in there.notes if "rounding" in note]
    assert bool(rounding) == (abs(off) >= 1e-12)


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
