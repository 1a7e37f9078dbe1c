import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.scale import RULES


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
