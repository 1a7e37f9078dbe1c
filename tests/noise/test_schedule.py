import json
import math

import numpy as np
import pandas as pd
import pytest

import noisescale as ns
from noisescale.errors import InputError
from noisescale.noise.scale import RULES
from noisescale.noise.watch.reading import Batch
from noisescale.noise.watch.record import NoiseRecord


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


def test_multiples_leave_the_rest_to_the_learning_rate():
    recipe = ns.Recipe(learning_rate=0.1, batch_size=128, n_train=50_000, momentum=0.9)
    made = recipe.as_batch_schedule([(0, 0.1), (60, 0.03)], multiple_of=128)
    stage = made.stages[1]
    assert stage.batch_size == 384  # 427 in whole batches of 128
    assert stage.learning_rate * 0.1 / 0.1 / 384 == pytest.approx(0.03 / 128)
    with pytest.raises(InputError, match="128 is no multiple of 100: choose a divisor"):
        recipe.as_batch_schedule([(0, 0.1)], multiple_of=100)


RECIPE = ns.Recipe(learning_rate=0.1, batch_size=256, n_train=50_000)
GROWS = RECIPE.as_batch_schedule([(0, 0.1), (60, 0.05), (120, 0.025), (150, 0.02)], multiple_of=256)


def test_every_trainer_gets_the_schedule_in_its_words():
    assert [s.batch_size for s in GROWS.stages] == [256, 512, 1024, 1280]
    assert GROWS.to("lightning") == (
        "GradientAccumulationScheduler(scheduling={0: 1, 60: 2, 120: 4, 150: 5})"
    )
    # Epoch 60 is 3 million examples, of 1,000 tokens each.
    assert GROWS.to("megatron", sequence_length=1000) == (
        '--step-batch-size-schedule "0:256 3B:512 6B:1024 7500M:1280"'
    )
    two = RECIPE.as_batch_schedule([(0, 0.1), (60, 0.05), (120, 0.05)])
    assert two.to("nemo") == "rampup_batch_size=[256, 256, 3000000]"
    assert two.to("olmo", sequence_length=8) == (
        "BatchSizeSchedulerCallback(batch_sizes=[2048, 4096], "
        "schedule=[Duration.tokens(0), Duration.tokens(24000000)])"
    )
    listed = two.to("list")
    assert json.loads(json.dumps(listed, allow_nan=False))[1]["learning_rate"] == 0.1
    assert "from epoch 60: B = 512, learning rate 0.1" in repr(two)


def test_nemos_ramp_is_what_nemo_makes_of_it():
    even = RECIPE.as_batch_schedule([(0, 0.1), (10, 0.05), (20, 0.1 / 3)])
    start, increment, samples = eval(even.to("nemo").partition("=")[2])
    last = even.stages[-1].batch_size

    def ramp(consumed):  # by its documentation: equal increments after equal numbers of samples
        each = samples / ((last - start) / increment)
        return last if consumed >= samples else start + increment * int(consumed / each)

    for stage in even.stages:
        assert ramp(stage.start) == stage.batch_size
        assert stage.start == 0 or ramp(stage.start - 1) < stage.batch_size


@pytest.mark.parametrize(
    ("schedule", "trainer", "message"),
    [
        (GROWS, "nemo", "by equal increments after equal numbers of samples"),
        (GROWS, "olmo", "1280.* tokens is none of"),
        (GROWS, "megatron", "give sequence_length"),
        (GROWS, "deepspeed", "trainer must be one of megatron, nemo, olmo, lightning, list"),
        (RECIPE.as_batch_schedule([(0, 0.1)]), "nemo", "never grows"),
        (RECIPE.as_batch_schedule([(0, 0.1), (1.5, 0.05)]), "lightning", "begins at epoch 1.5"),
        (RECIPE.as_batch_schedule([(0, 0.1), (1, 0.07)]), "lightning", "with multiple_of=256"),
    ],
)
def test_what_a_trainer_cannot_say_is_refused(schedule, trainer, message):
    length = 1000 if trainer == "olmo" else None
    with pytest.raises(InputError, match=message):
        schedule.to(trainer, sequence_length=length)


def history(**columns):
    return pd.DataFrame(columns)


def test_the_batch_follows_the_critical_batch_size_and_never_shrinks():
    noise = [70.0, 65.0, 300.0, float("nan"), 280.0, 900.0, 5000.0]
    frame = history(examples=[0, 1000, 2000, 3000, 4000, 5000, 6000], critical_batch_size=noise)
    made = ns.BatchSchedule.from_history(frame, max_batch_size=2048, n_train=10_000)
    assert [(s.start, s.batch_size) for s in made.stages] == [
        (0, 64),
        (2000, 256),
        (5000, 512),
        (6000, 2048),
    ]
    assert made.stages[1].epoch == 0.2
    assert any("1 readings were undetermined" in note for note in made.notes)
    assert any("held at 2048 by max_batch_size, 2048" in note for note in made.notes)
    tens = ns.BatchSchedule.from_history(frame, multiple_of=10)
    assert [s.batch_size for s in tens.stages] == [60, 280, 900, 5000]  # 300 and 280 as one
    assert ns.BatchSchedule.from_history(frame).to("olmo", sequence_length=1).startswith("Batch")


def test_a_critical_size_beyond_the_training_set_is_held_there():
    frame = history(examples=[0, 1000, 2000], critical_batch_size=[70.0, 900.0, 9000.0])
    made = ns.BatchSchedule.from_history(frame, n_train=1500, learning_rate=0.1)
    assert [s.batch_size for s in made.stages] == [64, 512, 1024]
    # The history may be of any optimizer, with any momentum: no noise scale is told.
    assert all(math.isnan(stage.noise_scale) for stage in made.stages)
    assert "the batch is held at 1024 by n_train, 1500 examples" in made.notes
    tens = ns.BatchSchedule.from_history(frame, n_train=1500, multiple_of=100)
    assert [s.batch_size for s in tens.stages] == [100, 900, 1500]
    assert tens.notes[1:] == (
        "the critical batch size begins at 70, below the smallest batch, 100",
        "the batch is held at 1500 by n_train, 1500 examples",
    )
    with pytest.raises(InputError, match="smallest batch is 100, .* more than max_batch_size, 64 "):
        ns.BatchSchedule.from_history(frame, multiple_of=100, max_batch_size=64)


@pytest.mark.parametrize("length", [1000, 1024])
def test_tokens_come_in_powers_of_two_of_sequences(length):
    frame = history(tokens=[0, 10**6, 2 * 10**6], critical_batch_size=[300.0, 70_000.0, 900_000.0])
    tokens = {"unit": "tokens", "sequence_length": length}
    made = ns.BatchSchedule.from_history(frame, **tokens)
    assert [s.batch_size // length for s in made.stages] == [1, 64, 512]
    assert all(s.batch_size % length == 0 for s in made.stages)
    assert any("begins at 300, below the smallest batch" in note for note in made.notes)
    assert made.to("olmo").startswith(
        f"BatchSizeSchedulerCallback(batch_sizes=[{length}, {64 * length}, {512 * length}]"
    )
    fives = ns.BatchSchedule.from_history(frame, multiple_of=5 * length, **tokens)
    wanted = {1000: [5, 70, 900], 1024: [5, 65, 875]}
    assert [s.batch_size // length for s in fives.stages] == wanted[length]
    with pytest.raises(InputError, match="multiple_of counts tokens"):
        ns.BatchSchedule.from_history(frame, multiple_of=500, **tokens)
    with pytest.raises(InputError, match="needs sequence_length"):
        ns.BatchSchedule.from_history(frame, unit="tokens")


def test_one_wild_reading_decides_nothing():
    noise = [64.0, 70.0, 9000.0, 66.0, 68.0, 64.0, 65.0, 66.0]
    made = ns.BatchSchedule.from_history(
        history(step=range(0, 80, 10), critical_batch_size=noise), batch_size=32
    )
    assert [s.batch_size for s in made.stages] == [64, 128]
    assert made.stages[1].start == 20 * 32


def test_steps_become_examples_by_the_batch_of_the_run(tmp_path):
    frame = history(
        step=[10, 20, 30], batch_size=[8, 8, 16], critical_batch_size=[16.0, 40.0, 64.0]
    )
    made = ns.BatchSchedule.from_history(frame)
    assert [(s.start, s.batch_size) for s in made.stages] == [(0, 16), (160, 32), (320, 64)]
    frame.to_csv(tmp_path / "noise.csv")
    assert ns.BatchSchedule.from_history(tmp_path / "noise.csv") == made


def watched(unit="example"):
    """A run whose gradient shrinks, so that its critical batch size grows sixteenfold."""
    record = NoiseRecord(n_train=100_000, decay=0.9, unit=unit)
    rng = np.random.default_rng(0)
    for update in range(400):
        signal, trace = (1.0 if update < 200 else 1 / 16), 100.0  # |G|^2 and tr S
        total = rng.normal(1.0, 0.02) * (signal + trace / 32)
        batch = Batch(total, (signal + trace) / 32, 1 / 32, n_examples=32, n_units=32.0)
        record.take(batch, update=update, learning_rate=0.1, momentum=0.0)
    return record


def test_a_watched_run_makes_a_schedule_as_it_is_and_as_it_was_saved(tmp_path):
    record = watched()
    made = ns.BatchSchedule.from_history(record)
    first, last = made.stages[0], made.stages[-1]
    assert first.batch_size in (32, 64, 128)
    assert last.batch_size in (1024, 2048)
    assert last.start > 200 * 32  # after the gradient has shrunk
    resolved = np.isfinite(record.history["high"]).sum()
    assert made.notes[0] == f"from {resolved} readings of the critical batch size"
    for name in ("noise.csv", "noise.json"):
        record.save(tmp_path / name)
        assert ns.BatchSchedule.from_history(tmp_path / name).stages == made.stages
    with pytest.raises(InputError, match="watched in tokens: say unit='tokens'"):
        ns.BatchSchedule.from_history(watched("token"))
    in_tokens = ns.BatchSchedule.from_history(watched("token"), unit="tokens", sequence_length=8)
    assert in_tokens.unit == "tokens"


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (history(step=[1], noise=[2]), "no column critical_batch_size, but step, noise"),
        (history(step=[1], critical_batch_size=[2]), "give the batch_size of the run"),
        (history(critical_batch_size=[2]), "no column step or examples"),
        (history(examples=[1, 0], critical_batch_size=[2, 2]), "must be in order"),
        (history(examples=[0], critical_batch_size=[-1]), "no reading of the critical"),
        (history(examples=["a"], critical_batch_size=["b"]), "no reading of the critical"),
        ("nowhere.csv", "'nowhere.csv' cannot be read"),
        (3, "must be a watched run, a frame, or the path of .* got int"),
    ],
)
def test_bad_histories(frame, message):
    with pytest.raises(InputError, match=message):
        ns.BatchSchedule.from_history(frame)
