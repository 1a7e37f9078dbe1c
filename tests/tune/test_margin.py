"""The tuner with a tolerance: what it takes, what it recommends, and when it says nothing."""

import math
import re
from dataclasses import replace

import pytest

import noisescale as ns
import tune_functions as functions
from noisescale.noise.batch_law import PAPER_LAW
from noisescale.tune import TuneWarning
from tune_functions import N_TRAIN


@pytest.fixture
def tune(engine):
    def call(train, **options):
        return ns.tune_large_batch(train, N_TRAIN, **{"epochs": 10, "executor": engine} | options)

    return call


def test_growth_goes_on_until_the_loss_is_beyond_the_tolerance(tune):
    found = tune(functions.peaked)
    # 27 times at the same noise scale; half as much again costs .01 ln(1.5)^2 = .0016 on top.
    assert found.start.batch_size == pytest.approx(50, rel=0.1)
    assert found.recipe.batch_size == round(1.5 * 27 * found.start.batch_size)
    assert found.inconclusive is None
    assert found.tolerance == 0.002
    assert re.match(
        r"A batch 40.\d times as large loses less than 0.002, at 95 %", found.conclusion
    )
    strict = tune(functions.peaked, tolerance=0.001)
    assert strict.recipe.batch_size < found.recipe.batch_size
    assert any("loses more than the tolerance" in d.why for d in found.trail)


def test_what_is_taken_was_shown_to_lose_no_more_than_the_tolerance(tune):
    for train in (functions.peaked, functions.flat, functions.plateau):
        found = tune(train)
        taken = [d for d in found.trail if d.accepted and d.difference is not None]
        assert taken
        for d in taken:
            assert d.difference > -0.002


def test_the_recommendation_is_never_smaller_than_the_trail_supports(tune):
    # Stage 1 peaks near 100; 128 was measured there too, and nothing grows: 1.5 times 100 holds.
    found = tune(functions.plateau, batch_sizes=[25, 50, 100, 220, 400])
    assert found.start.batch_size == pytest.approx(100, rel=0.3)
    assert found.recipe.batch_size == 220
    assert (found.recipe.learning_rate, found.recipe.momentum) == (0.1, 0.9)
    last, again = [d for d in found.trail if d.accepted and d.recipe == found.recipe]
    assert last.difference > -0.002
    assert (again.stage, again.changed, again.n_seeds) == (4, "seeds", 9)
    larger = [d for d in found.trail if d.recipe.batch_size > found.recipe.batch_size]
    assert all(not d.accepted for d in larger)


def test_noise_beyond_the_margin_is_inconclusive_and_says_what_would_decide(tune):
    found = tune(functions.noisy, max_seeds=5)
    assert found.recipe.batch_size == found.start.batch_size
    first = repr(found).splitlines()[0]
    assert first.startswith("Inconclusive: noise hides whether B = ")
    enough = float(re.search(r"tolerance=([\d.]+) would hold", found.inconclusive)[1])
    assert 0.01 < enough < 1
    assert found.to_dict()["inconclusive"] == found.inconclusive
    # With the tolerance that it names, the same runs decide.
    decided = tune(functions.noisy, max_seeds=5, tolerance=enough, confirm=False)
    assert decided.inconclusive is None
    assert decided.recipe.batch_size > decided.start.batch_size


def test_a_poor_score_lowers_the_learning_rate(tune):
    found = tune(functions.too_hot)
    assert found.start.learning_rate == pytest.approx(0.1 / 9)
    assert found.inconclusive is None
    told = [note for note in found.notes if note.startswith("a third of the learning rate")]
    assert [re.search(r"rate (\S+) scores", note)[1] for note in told] == ["0.1", "0.0333"]
    assert found.recipe.batch_size > found.start.batch_size


def test_scores_that_rise_as_the_learning_rate_falls_are_inconclusive(tune):
    found = tune(functions.ever_better, largest_batch=600, batch_sizes=[8, 64])
    assert found.start.learning_rate == pytest.approx(0.1 / 3**5)
    assert found.inconclusive.startswith("a third of the learning rate 0.000412 scores 1.1 ±")
    assert "give learning_rate=0.00014 or less" in found.inconclusive


class TestLookingDown:
    """A score may be as poor at a third of the learning rate: at chance, say."""

    def test_a_score_at_chance_lowers_the_learning_rate_until_it_learns(self, tune):
        found = tune(functions.dead)
        assert found.start.learning_rate == pytest.approx(0.1 / 27)
        assert found.inconclusive is None
        (note,) = [note for note in found.notes if "of the learning rate" in note]
        assert re.match(r"1/27 of the learning rate 0.1 scores 0.7\d+ ± \S+ more", note)
        assert not any(d.accepted for d in found.trail if d.recipe.learning_rate > 0.004)
        looks = [d for d in found.trail if d.changed == "learning_rate" and d.stage == 1]
        assert [d.recipe.learning_rate for d in looks] == pytest.approx(
            [0.1 / 3**k for k in (1, 2, 3, 4)]
        )
        assert "a third of the learning rate is no better; no peak is res" in looks[0].why
        assert "so 1/27 is tried" in looks[1].why
        assert looks[2].why.endswith("1/27 of the learning rate is better")
        # At 1/27 a peak is resolved: one look is enough.
        assert looks[3].why.endswith("a third of the learning rate is no better")

    def test_so_does_one_that_is_the_same_for_every_run(self, tune):
        with pytest.warns(TuneWarning, match="every batch size and seed at learning rate 0.1"):
            found = tune(functions.dead_alike)
        assert found.start.learning_rate == pytest.approx(0.1 / 27)
        assert found.inconclusive is None
        # Stage 1 does not widen where nothing changes: its smallest batch takes the most updates.
        assert min(d.recipe.batch_size for d in found.trail) == 8

    def test_the_same_everywhere_is_inconclusive(self, tune):
        with pytest.warns(TuneWarning, match="ignores what it is given, or does not learn"):
            found = tune(functions.stuck)
        first = repr(found).splitlines()[0]
        told = "Inconclusive: the score is 0.1 for every batch size and seed at learning rate 0.1"
        assert first.startswith(told)
        assert "give another learning_rate" in first
        assert found.recipe == found.start
        assert found.conclusion.startswith("No larger batch was tried")
        assert all(d.stage == 1 for d in found.trail)
        looks = [d for d in found.trail if d.changed == "learning_rate"]
        assert len(looks) == 5

    def test_a_peak_that_is_resolved_needs_one_look(self, tune):
        found = tune(functions.peaked)
        looks = [d for d in found.trail if d.changed == "learning_rate" and d.stage == 1]
        assert len(looks) == 1

    def test_one_look_is_enough_where_batch_and_learning_rate_matter(self, tune):
        found = tune(functions.cooling)
        looks = [d for d in found.trail if d.changed == "learning_rate" and d.stage == 1]
        assert [d.why.split(": ")[1] for d in looks] == [
            "a third of the learning rate is no better"
        ]

    def test_a_flat_score_ends_with_a_word_of_doubt(self, tune):
        found = tune(functions.dead, learning_rate=2)  # whose 243rd part is still too high
        assert found.start.learning_rate == 2
        (note,) = [note for note in found.notes if "above chance" in note]
        assert note.startswith("at learning rate 2 the score was not seen to depend on the batch")
        assert "no rate down to 0.00823 is better" in note

    @pytest.mark.parametrize("max_runs", [18, 21, 24, 30])
    def test_looks_count_against_the_budget(self, tune, max_runs):
        found = tune(functions.dead, max_runs=max_runs)
        assert not found.complete
        assert found.n_runs <= max_runs
        if max_runs == 30:  # stage 1 took 18, three looks 9; stage 1 again would take 12 more
            assert found.inconclusive.startswith("1/27 of the learning rate 0.1 scores 0.7")
            assert "give learning_rate=0.0037 or less" in found.inconclusive


@pytest.mark.parametrize("max_runs", [15, 25, 40])
def test_a_budget_still_gives_the_largest_that_was_measured(tune, max_runs):
    found = tune(functions.plateau, batch_sizes=[25, 50, 100, 220, 400], max_runs=max_runs)
    assert not found.complete
    assert found.n_runs <= max_runs
    if max_runs == 40:
        assert found.recipe.batch_size >= found.start.batch_size


class TestStart:
    def test_a_batch_size_near_the_best_saves_updates(self, tune):
        options = {"confirm": False, "tolerance": 0.003}  # what comes after stage 1 costs the same
        plain = tune(functions.peaked, **options)
        for start in (60, 60.4, PAPER_LAW.predict(learning_rate=0.3, n_train=1000, steps=400)):
            found = tune(functions.peaked, start=start, **options)
            assert found.recipe.batch_size == pytest.approx(plain.recipe.batch_size, rel=0.1)
            assert found.n_updates < 0.7 * plain.n_updates

    def test_a_recipe_says_everything(self, tune):
        recipe = ns.Recipe(learning_rate=0.2, batch_size=80, n_train=N_TRAIN, momentum=0.8)
        found = tune(functions.peaked, start=recipe)
        assert (found.start.learning_rate, found.start.momentum) == (0.2, 0.8)
        assert found.start.kept("linear") == pytest.approx(200, rel=0.1)
        assert found.recipe.batch_size > 9 * found.start.batch_size

    def test_far_off_it_only_takes_longer(self, tune):
        found = tune(functions.peaked, start=3000)
        assert found.start.batch_size == pytest.approx(50, rel=0.2)

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"n_train": 5_000}, "start is for n_train=5000, and train has 10000: scale it first"),
            ({"unit": "tokens", "sequence_length": 8}, "start counts tokens"),
        ],
    )
    def test_recipes_of_another_kind_are_refused(self, tune, options, told):
        recipe = ns.Recipe(**{"learning_rate": 0.2, "batch_size": 80, "n_train": N_TRAIN} | options)
        with pytest.raises(ns.InputError, match=told):
            tune(functions.peaked, start=recipe)
        with pytest.raises(ns.InputError, match="start says the learning_rate already"):
            tune(functions.peaked, start=replace(recipe), learning_rate=0.1)
        adam = ns.AdamRecipe(learning_rate=1e-3, batch_size=64, n_train=N_TRAIN)
        with pytest.raises(ns.InputError, match="start is an AdamRecipe, but train takes momentum"):
            tune(functions.peaked, start=adam)

    @pytest.mark.parametrize(
        ("train", "start"),
        [
            (functions.peaked, ns.Recipe(learning_rate=0.2, batch_size=80, n_train=5_000)),
            (
                functions.adam_at_ease,
                ns.AdamRecipe(learning_rate=1e-3, batch_size=64, n_train=5_000),
            ),
        ],
        ids=["SGD", "Adam"],
    )
    def test_what_a_refusal_advises_can_be_done(self, tune, train, start):
        with pytest.raises(ns.InputError, match="start is for n_train=5000, and") as caught:
            tune(train, start=start)
        advised = re.search(r"start\.scaled_to\(.*\)", str(caught.value))[0]
        found = tune(train, start=eval(advised, {"start": start}), max_runs=9)
        assert found.n_runs == 9

    def test_notes_of_a_prediction_are_passed_on(self, tune):
        few = PAPER_LAW.predict(learning_rate=0.1, momentum=0.9, n_train=N_TRAIN, epochs=10)
        found = tune(functions.peaked, start=few, max_runs=9)
        assert found.notes[0].startswith("start: 10 epochs are fewer than the 15.6 that the law ne")
        enough = PAPER_LAW.predict(learning_rate=0.1, momentum=0.9, n_train=N_TRAIN, epochs=30)
        assert not any(
            "start:" in n for n in tune(functions.peaked, start=enough, max_runs=9).notes
        )


class TestAdam:
    def test_grows_by_the_square_root_then_by_the_half_life(self, tune):
        found = tune(functions.adam, weight_decay=0.1, betas=(0.9, 0.9999), tolerance=0.03)
        assert isinstance(found.recipe, ns.AdamRecipe)
        assert found.start.learning_rate == 1e-3
        assert found.start.batch_size == pytest.approx(64, rel=0.3)
        grown = [d for d in found.trail if d.changed == "square_root" and d.accepted]
        assert [d.recipe.batch_size for d in grown][:1] == [3 * found.start.batch_size]
        assert grown[0].recipe.weight_decay == pytest.approx(0.1 * math.sqrt(3))
        assert found.recipe.batch_size > found.start.batch_size
        assert {d.changed for d in found.trail} >= {"square_root", "half_life", "batch_size"}
        assert "betas 0." in repr(found)
        found.plot()

    def test_grows_from_where_each_way_begins_so_that_steps_compose(self, tune):
        found = tune(functions.adam_at_ease)
        by_root = [d.recipe for d in found.trail if d.changed == "square_root" and d.accepted]
        assert [r.batch_size for r in by_root] == [found.start.batch_size * k for k in (3, 9)]
        for recipe in by_root:
            assert recipe == found.start.scaled_to(batch_size=recipe.batch_size)
        # At 10 times the batch the rule ends, and the other way goes on from there.
        beta1, beta2 = by_root[-1].betas
        assert (beta1, beta2) == pytest.approx((0.1, 0.991))
        by_life = [d.recipe for d in found.trail if d.changed == "half_life" and d.accepted]
        assert by_life[-1].batch_size == N_TRAIN
        growth = N_TRAIN / by_root[-1].batch_size
        assert by_life[-1].betas == pytest.approx((beta1, beta2**growth))
        assert found.recipe.betas == by_life[-1].betas
        told = "\n".join(found.notes)
        assert "beta1 = 0.1 averages over 1.11 updates, where the tuned 0.9 averages over" in told
        assert told.count("of the training set") == 1

    def test_a_function_takes_one_of_momentum_and_betas(self, tune):
        with pytest.raises(ns.InputError, match="train takes momentum and betas: take one"):
            tune(lambda batch_size, learning_rate, momentum, betas, steps, seed: 0.0)
        with pytest.raises(ns.InputError, match="momentum was given, but train takes no momentum"):
            tune(functions.adam, momentum=0.9)
        with pytest.raises(ns.InputError, match="or betas for Adam, but it has no momentum"):
            tune(lambda batch_size, learning_rate, steps, seed: 0.0)


@pytest.mark.parametrize(
    ("options", "limited"),
    [
        ({"workers": 1}, True),
        ({"accelerator": True}, False),
        ({"accelerator": True, "timeout": 60}, False),
    ],
    ids=["usual", "accelerator", "with a time limit"],
)
def test_an_accelerator_leaves_the_settings_of_the_machine(options, limited, monkeypatch, tmp_path):
    for name in ("OMP_NUM_THREADS", "JAX_PLATFORMS", "NOISESCALE_ONE_THREAD"):
        monkeypatch.delenv(name, raising=False)
    small = {"epochs": 1, "batch_sizes": [8, 32], "seeds": 2, "max_runs": 4}
    ns.tune_large_batch(functions.environment, 64, store=tmp_path, **small, **options)
    with ns.RunStore(tmp_path) as store:
        told = store.frame()["score"] > 5
    assert len(told) == 4
    assert (told == limited).all()
