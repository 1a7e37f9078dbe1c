import math
from dataclasses import replace

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
    assert (
        "the paper's rule, but on its network the best batch size grew more slowly"
        in (more.notes[0])
    )
    assert not any("grew more" in note for note in recipe.scaled_to(batch_size=200).notes)
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
        (lambda: RECIPE.scaled_to(batch_size=20, learning_rate=1), "momentum of -1.5, below 0"),
        (
            lambda: RECIPE.scaled_to(batch_size=20, learning_rate=1, momentum=0.1),
            "batch_size and learning_rate and momentum all set there is nothing left to move",
        ),
        (lambda: RECIPE.scaled_to(n_train=200), "depends on the length of the run: give epochs or"),
        (lambda: RECIPE.scaled_to(n_train=200, epochs=1, steps=2), "both say .* give one of them"),
        (lambda: RECIPE.scaled_to(n_train=200, epochs=-1), "epochs must be a finite number above"),
        (lambda: RECIPE.scaled_to(n_train=200, steps=0), "steps must be at least 1, got 0"),
        (lambda: RECIPE.scaled_to(batch_size=20, epochs=3), "epochs and steps go with a new n_tra"),
        (
            lambda: RECIPE.scaled_to(n_train=200, law=ns.PAPER_LAW, rule="exact"),
            "law goes with a new n_train and without a rule",
        ),
        (lambda: RECIPE.scaled_to(n_train=200, epochs=3, law=3), "law must be .* got int"),
        (lambda: replace(RECIPE, length_in="days"), "length_in must be one of epochs, steps"),
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
    assert recipe.scaled_to(n_train=400, rule="linear").batch_size == 200


def test_a_recipe_without_noise_cannot_keep_it():
    silent = ns.Recipe(learning_rate=0.1, batch_size=100, n_train=100)
    assert silent.noise_scale == 0
    with pytest.raises(InputError, match="it has no noise for the exact rule to keep"):
        silent.scaled_to(batch_size=10, rule="exact")
    assert silent.scaled_to(batch_size=10).learning_rate == pytest.approx(0.01)


def test_two_changes_at_once_keep_the_noise():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, momentum=0.9)
    for changes, moved in (
        ({"batch_size": 1024, "learning_rate": 0.2}, "momentum"),
        ({"batch_size": 1024, "momentum": 0.95}, "learning_rate"),
        ({"learning_rate": 0.2, "momentum": 0.95}, "batch_size"),
        ({"n_train": 100_000, "batch_size": 1024, "rule": "linear"}, "learning_rate"),
    ):
        there = recipe.scaled_to(**changes)
        assert there.kept("linear") == pytest.approx(recipe.kept("linear"), rel=1e-12)
        asked = {name: value for name, value in changes.items() if name != "rule"}
        assert {name: getattr(there, name) for name in asked} == asked
        assert getattr(there, moved) != getattr(recipe, moved)


@given(recipes(), st.floats(0, 0.99))
def test_dampening_is_a_smaller_learning_rate(recipe, dampening):
    assume(recipe.momentum > 0)
    damped = replace(recipe, dampening=dampening, notes=())
    plain = replace(recipe, learning_rate=recipe.learning_rate * (1 - dampening), notes=())
    assert damped.noise_scale == pytest.approx(plain.noise_scale, rel=1e-12)
    size = min(2 * recipe.batch_size, recipe.n_train - 1)
    for via in ("learning_rate", "momentum"):
        there = damped.scaled_to(batch_size=size, via=via)
        same = plain.scaled_to(batch_size=size, via=via)
        assert there.kept("linear") == pytest.approx(same.kept("linear"), rel=1e-9)
        assert there.momentum == pytest.approx(same.momentum, rel=1e-12)


def test_a_stream_has_no_n_and_needs_none():
    stream = ns.Recipe(learning_rate=0.1, batch_size=256, momentum=0.9)
    known = replace(stream, n_train=10**6)
    four = stream.scaled_to(batch_size=1024)
    assert four.learning_rate == known.scaled_to(batch_size=1024).learning_rate
    assert stream.scaled_to(learning_rate=0.2).batch_size == 512
    assert math.isnan(stream.noise_scale)
    assert stream.to_dict()["noise_scale"] is None
    for call, message in (
        (lambda: stream.scaled_to(batch_size=512, rule="exact"), "of a stream, whose N is not"),
        (lambda: stream.scaled_to(n_train=10**6, epochs=3), "own n_train is not known"),
        (lambda: stream.scaled_to(n_train=10**6, rule="linear"), "own n_train is not known"),
        (lambda: replace(stream, epochs=3), "epochs need n_train"),
        (lambda: stream.as_batch_schedule([(0, 0.1)]), "needs n_train"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_warmup_is_kept_in_examples_but_not_below_the_memory():
    recipe = ns.Recipe(
        learning_rate=0.1, batch_size=256, n_train=10**6, momentum=0.9, warmup_steps=1000
    )
    assert recipe.scaled_to(batch_size=1024).warmup_steps == 250
    assert recipe.scaled_to(batch_size=64).warmup_steps == 4000
    assert recipe.scaled_to(batch_size=100_000).warmup_steps == 10
    assert recipe.scaled_to(batch_size=100_000, via="momentum").warmup_steps == 1000
    assert replace(recipe, warmup_steps=None).scaled_to(batch_size=512).warmup_steps is None
    # Neither rounding nor the memory is left on the way back, by whatever way.
    for size, via in ((768, None), (4096, None), (256_000, None), (256_000, "momentum")):
        there = recipe.scaled_to(batch_size=size, via=via)
        assert there.scaled_to(batch_size=256, via=via).warmup_steps == 1000
    # What replace() changes is tuned anew.
    assert replace(there, warmup_steps=50).scaled_to(batch_size=512_000).warmup_steps == 50


LENGTHS = [{"epochs": 90}, {"epochs": 0.5}, {"steps": 20_000}, {"steps": 701}]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"batch_size": 1024},
        {"learning_rate": 0.2},
        {"via": "learning_rate"},
        {"rule": "linear"},
        {"rule": "exact"},
        {"rule": "linear", "batch_size": 1024},
    ],
)
def test_the_length_asked_for_is_kept_whatever_else_changes(changes, length):
    tuned = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, epochs=90)
    there = tuned.scaled_to(n_train=200_000, **length, **changes)
    assert there.n_train == 200_000
    ((name, value),) = length.items()
    assert (getattr(there, name), there.length_in) == (value, name)
    assert there.steps == pytest.approx(there.epochs * 200_000 / there.batch_size)
    assert there.to_dict()["steps"] == there.steps
    lines = {trainer: there.to(trainer) for trainer in ("pytorch", "transformers", "lightning")}
    if length == {"epochs": 90}:
        assert "num_epochs = 90  # about " in lines["pytorch"] or 200_000 % there.batch_size == 0
        assert "num_train_epochs=90," in lines["transformers"]
        assert "max_epochs=90)" in lines["lightning"]
        return
    assert f"max_steps = {round(there.steps)}  # updates: " in lines["pytorch"]
    assert f"max_steps={round(there.steps)})  # updates: " in lines["lightning"]
    last = f"max_steps={value}," if name == "steps" else f"num_train_epochs={value},"
    assert last in lines["transformers"]


def test_less_than_an_update_is_said():
    tiny = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, epochs=0.001)
    assert (
        "trainer = Trainer(accumulate_grad_batches=1, max_steps=1)  "
        "# updates: less than one in 0.001 epochs"
    ) in tiny.to("lightning").splitlines()


def test_another_batch_later_keeps_the_epochs():
    tuned = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000, epochs=90)
    grown = tuned.scaled_to(n_train=200_000, steps=20_000)
    later = grown.scaled_to(batch_size=1024)
    assert (later.epochs, later.length_in) == (grown.epochs, "epochs")
    assert math.isnan(ns.Recipe(learning_rate=0.1, batch_size=256).steps)


def test_more_is_not_there_than_the_training_set_holds():
    tuned = ns.Recipe(
        learning_rate=0.1, batch_size=256, n_train=50_000, epochs=90, warmup_steps=500
    )
    assert tuned.notes == ()
    few = tuned.scaled_to(n_train=10, epochs=90)
    assert (few.batch_size, few.warmup_steps) == (10, 12_800)
    assert "there are 10 examples to train on: the batch is held at 10" in few.notes
    (note,) = (note for note in few.notes if "warm-up" in note)
    assert note.startswith("a warm-up of 12800 updates leaves nothing of a run of 90")


def test_tokens_come_in_whole_sequences():
    recipe = ns.Recipe(
        learning_rate=0.1, batch_size=65_536, n_train=10**9, unit="tokens", sequence_length=1024
    )
    assert recipe.examples == 64
    there = recipe.scaled_to(learning_rate=0.1234)
    assert there.batch_size % 1024 == 0
    assert there.batch_size == pytest.approx(65_536 * 1.234, abs=512)
    assert "unit='tokens', sequence_length=1024" in repr(recipe)
