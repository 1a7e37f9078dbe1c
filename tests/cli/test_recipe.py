import json

import pytest

from command_line import run

TUNED = ("recipe", "--learning-rate", "0.1", "--batch-size", "256", "--n-train", "50000")


def test_recipes_side_by_side():
    done = run(*TUNED, "--momentum", "0.9", "--to-batch-size", "8192")
    assert done.code == 0, done.err
    for text in ("tuned", "linear rule", "exact rule", "3.2", "3.80742", "noise scale g", "16% of"):
        assert text in done.out
    shown = json.loads(run(*TUNED, "--to-batch-size", "512", "--json").out)
    assert shown["linear rule"]["learning_rate"] == pytest.approx(0.2)
    assert shown["exact rule"]["noise_scale"] == pytest.approx(shown["tuned"]["noise_scale"])
    one = json.loads(run(*TUNED, "--to-n-train", "100000", "--rule", "exact", "--json").out)
    assert one["exact rule"]["batch_size"] == 512
    assert "linear rule" not in one
    alone = run(*TUNED)
    assert "tuned" in alone.out
    whole = run(*TUNED, "--to-batch-size", "50000")
    assert whole.code == 0
    assert "exact rule: a batch of all 50000 examples has no noise" in whole.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--to-batch-size", "99999"), "batch_size must be at most 50000"),
        (
            ("--to-batch-size=512", "--to-momentum=0.5", "--to-learning-rate=1"),
            "there is nothing left to move",
        ),
        (("--to-batch-size", "512", "--to-epochs", "3"), "--to-epochs goes with --to-n-train"),
        (("--to-batch-size", "512", "--rule", "law"), "--rule law is for a new --to-n-train"),
        (("--to-n-train", "99999", "--rule", "law"), "depends on the length of the run"),
        (("--unit", "tokens"), "--unit tokens needs --sequence-length"),
        (
            ("--unit", "tokens", "--sequence-length", "1024"),
            "256 tokens is less than one sequence of 1024: if 256 counts sequences",
        ),
        (("--to-world-size", "4"), "say what each holds: --per-device-batch-size"),
        (
            ("--per-device-batch-size", "64", "--world-size", "2"),
            "batch_size 256 is not 64 a device x 1 accumulated x 2 devices = 128",
        ),
        (
            ("--world-size", "512", "--to-batch-size", "1024"),
            "256 cannot be made of 512 devices: the smallest that can is 512; if 256 is what one",
        ),
        (
            ("--gradient-accumulation-steps", "3", "--world-size", "7"),
            "256 cannot be made of 3 accumulated on 7 devices: 252 = 12 x 21 and 273 = 13 x 21 can",
        ),
        (
            ("--to-batch-size", "1000", "--to-world-size", "16", "--script", "pytorch"),
            "a batch of 1000 cannot be made of 16 devices: 992 = 62 x 16 and 1008 = 63 x 16 can.",
        ),
        (("--to-batch-size", "512", "--via", "magic"), "via must be one of"),
        (("--to-batch-size", "64", "--via", "momentum"), "below 0"),
        (("--to-batch-size", "512", "--rule", "cubic"), "rule must be one of linear, exact, law"),
        (("--momentum", "1"), "momentum must be a finite number in [0, 1), got 1."),
        (("--optimizer", "adam", "--momentum", "0.9"), "--momentum goes with --optimizer sgd"),
        (("--beta1", "0.9"), "--beta1 goes with --optimizer adam"),
        (("--optimizer", "adam", "--to-n-train", "60000"), "no rule says how Adam's batch size"),
        (
            ("--optimizer", "adam", "--rule", "linear"),
            "rule must be one of sde, practice, half_life",
        ),
    ],
)
def test_bad_recipes(options, message):
    assert message in run(*TUNED, *options).sentence


def test_adam_follows_the_sde_rule():
    adam = ("--optimizer", "adam", "--beta1", "0.9", "--beta2", "0.999", "--eps", "1e-8")
    scaled = run(*TUNED, *adam, "--to-batch-size", "2048")
    assert scaled.code == 0, scaled.err
    for text in ("sde rule", "0.282843", "beta1", "0.2", "0.992", "3.53553e-09"):
        assert text in scaled.out
    assert "beta1 = 0.2 averages over 1.25 updates, where the tuned 0.9 averages" in scaled.out
    shown = json.loads(run(*TUNED, "--optimizer", "adam", "--to-batch-size=1024", "--json").out)
    assert shown["sde rule"]["betas"] == pytest.approx([0.6, 0.996])
    assert shown["tuned"]["eps"] == 1e-8
    assert "beta2" in run(*TUNED, "--optimizer", "adam").out


def test_adamw_side_by_side_in_tokens_and_on_more_devices():
    start = ("recipe", "--learning-rate=3e-4", "--optimizer=adamw", "--weight-decay=0.1")
    tokens = ("--per-device-batch-size=8", "--world-size=8", "--unit=tokens")
    more = ("--sequence-length=1024", "--warmup-steps=1000", "--to-world-size=32")
    done = run(*start, *tokens, *more, "--script=transformers")
    assert done.code == 0, done.err
    for text in ("262,144", "256", "sde rule", "half-life rule", "0.0006", "0.4", "250"):
        assert text in done.out
    assert "sde rule: this is --rule sde; practice has learning rate 0.0006, betas (" in done.out
    assert "\n# sde rule\n# this is --rule sde; practice has learning rate 0.0006" in done.out
    assert "256 examples an update are 8 a device x 1 accumulated x 32 devices\n" in done.out
    pasted = (
        "    per_device_train_batch_size=8,\n    gradient_accumulation_steps=1,  # x 32 devices"
    )
    assert pasted in done.out
    shown = json.loads(run(*start, *tokens, *more, "--json").out)
    assert shown["half-life rule"]["weight_decay"] == pytest.approx(0.4)
    assert shown["sde rule"]["weight_decay"] == pytest.approx(0.2)
    assert shown["layout"] == {
        "per_device_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "world_size": 32,
    }
    assert "torch.optim.AdamW(" in shown["script"]["lightning"]


def test_more_data_by_the_law_beside_the_papers_rule():
    more = ("--epochs=90", "--to-n-train=400000")
    shown = json.loads(run(*TUNED, *more, "--to-epochs=90", "--json").out)
    assert shown["two-branch law"]["batch_size"] == 410
    assert shown["two-branch law"]["branch"] == "noise"
    assert shown["linear rule"]["batch_size"] == 2048
    asked = run(*TUNED, *more)
    assert asked.code == 0
    assert "two-branch law: with another number of examples the best batch" in asked.out
    assert "give --to-epochs or --to-steps, one of them" in asked.out
    both = json.loads(run(*TUNED, *more, "--to-epochs=90", "--to-batch-size=2048", "--json").out)
    assert both["two-branch law"]["learning_rate"] == pytest.approx(0.1 * 2048 / 410)
    notes = both["two-branch law"]["notes"]
    told = "from the law's B = 410 the linear rule then leads to batch_size 2048 and learning_rate"
    assert any(note.startswith(told) for note in notes)
    assert "updates in all" in run(*TUNED, *more, "--to-epochs=90").out


def test_a_batch_that_moves_is_one_that_the_devices_share():
    more = ("--epochs=90", "--to-n-train=400000", "--to-epochs=90", "--world-size=16")
    done = run(*TUNED, *more, "--rule=law")
    assert "416 examples an update are 13 a device x 2 accumulated x 16 devices" in done.out
    assert "no more than the 16 that it held in the tuned run" in done.out
    more_memory = run(*TUNED, *more, "--rule=law", "--max-per-device-batch-size=32")
    assert "416 examples an update are 26 a device x 1 accumulated x 16 devi" in more_memory.out
    shown = json.loads(run(*TUNED, *more, "--json").out)
    assert shown["linear rule"]["batch_size"] == 2048


def test_more_devices_with_the_whole_batch_given():
    """Eight times the devices: each holds what it held."""
    adamw = ("recipe", "--learning-rate=3e-4", "--optimizer=adamw", "--batch-size=64")
    done = run(*adamw, "--world-size=8", "--to-world-size=64", "--script=pytorch")
    assert "512 examples an update are 8 a device x 1 accumulated x 64 devices" in done.out
    assert "# sde rule\n# " in done.out
    assert "\nloader = DataLoader(train_set, batch_size=8, sampler=" in done.out
    per_device = run(*adamw, "--world-size=128", "--to-world-size=256")
    assert "if 64 is what one device holds, say --per-device-batch-size" in per_device.sentence
    alone = run(*adamw, "--to-batch-size=512", "--script=transformers")
    assert "--max-per-device-batch-size share it out" in alone.out
    assert "# x 1 device: 512 examples an update" in alone.out


def test_beyond_the_sde_rule_the_others_answer():
    adam = ("--optimizer=adamw", "--weight-decay=0.1", "--to-batch-size=4096")
    done = run(*TUNED, *adam, "--script=pytorch")
    assert "- sde rule: the sde rule (Malladi et al. 2022) has no betas for a batch_si" in done.out
    assert "give no more than that, or --rule practice or --rule half_life" in done.out
    assert "practice rule: this is --rule practice (sde ends at batch_size 2559); hal" in done.out
    script = done.out.partition("\n# practice rule\n")[2]
    assert "# the batch is 16 times as large: measure the critical batch size first" in script
    assert "betas=(0.9, 0.98411944181" in script
    for rule in ("sde", "square_root"):
        alone = run(*TUNED, *adam, f"--rule={rule}")
        assert "2559 is the largest at which both betas stay above 0" in alone.sentence
    chosen = json.loads(run(*TUNED, *adam, "--rule=practice", "--json").out)
    assert chosen["practice rule"]["betas"] == pytest.approx([0.9, 0.999**16])
    by_rate = run(*TUNED, "--optimizer=adam", "--to-learning-rate=0.2")
    assert "half-life rule: the half-life rule keeps the learning rate" in by_rate.out
    assert "give --batch-size" not in by_rate.out
    assert "sde rule: this is --rule sde" in by_rate.out


def test_twice_the_data_and_twice_the_batch_with_adam():
    adam = ("--optimizer=adamw", "--weight-decay=0.1", "--to-n-train=100000", "--to-batch-size=512")
    done = run(*TUNED, *adam)
    for text in ("100,000", "half-life rule", "what else moves with the data is not known"):
        assert text in done.out


def test_a_stream_and_a_batch_that_does_not_divide():
    stream = ("recipe", "--learning-rate=0.1", "--batch-size=256", "--to-batch-size=1000")
    done = run(*stream, "--to-world-size=16")
    assert "not known" in done.out
    assert "exact rule: the exact rule keeps e (N/B - 1) and needs n_train" in done.out
    assert (
        "a batch of 1000 cannot be made of 16 devices: 992 = 62 x 16 and 1008 = 63 x 16 can."
        in done.out
    )
    shown = json.loads(run(*stream, "--to-world-size=16", "--json").out)
    assert "cannot be made" in shown["refused"]["script"]
    refused = run(*stream, "--to-world-size=16", "--script=pytorch")
    assert refused.sentence.startswith("a batch of 1000 cannot be made of 16 devices")


def test_every_column_has_the_length_that_was_asked_for():
    more = ("--epochs=90", "--to-n-train=200000", "--to-steps=20000", "--to-batch-size=1024")
    shown = json.loads(run(*TUNED, *more, "--json").out)
    for rule in ("two-branch law", "linear rule", "exact rule"):
        assert shown[rule]["steps"] == 20_000
        assert shown[rule]["epochs"] == pytest.approx(102.4)
    done = run(*TUNED, *more, "--script=transformers").out
    (row,) = (line for line in done.splitlines() if line.startswith("updates in all"))
    assert row.split()[3:] == ["17,578", "20,000", "20,000", "20,000"]
    assert "max_steps=20000,  # updates: 102.4 epochs" in done
    linear = run(*TUNED, *more[:3], "--rule=linear", "--script=pytorch")
    assert "max_steps = 20000  # updates: 102.4 epochs" in linear.out
    both = run(*TUNED, "--to-n-train=200000", "--to-steps=9", "--to-epochs=9")
    assert "both say how long the run is: give one." in both.sentence


def test_an_interval_without_an_upper_end():
    more = ("--epochs=90", "--to-n-train=200000", "--to-epochs=16")
    assert "[323, no upper end]\n" in run(*TUNED, *more, "--rule=law", "--quiet").out
    shown = json.loads(run(*TUNED, *more, "--json").out)["two-branch law"]
    assert shown["batch_size_interval"][1] is None


OLD = ("--per-device-batch-size=32", "--gradient-accumulation-steps=2", "--world-size=4")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((*OLD,), (32, 2, 4)),
        ((*OLD, "--to-gradient-accumulation-steps=4"), (32, 4, 4)),
        ((*OLD, "--to-world-size=6"), (32, 2, 6)),
        ((*OLD, "--to-per-device-batch-size=48"), (48, 2, 4)),
        # Split anew, and no more on a device than before, unless told otherwise.
        ((*OLD, "--to-batch-size=1024"), (32, 8, 4)),
        ((*OLD, "--to-batch-size=480"), (30, 4, 4)),
        ((*OLD, "--to-batch-size=1024", "--to-world-size=32"), (32, 1, 32)),
        ((*OLD, "--to-batch-size=1024", "--max-per-device-batch-size=64"), (64, 4, 4)),
        ((*OLD, "--to-world-size=6", "--max-per-device-batch-size=16"), (16, 4, 6)),
        ((*OLD, "--to-batch-size=1024", "--to-per-device-batch-size=128"), (128, 2, 4)),
        ((*OLD, "--to-batch-size=1024", "--to-gradient-accumulation-steps=4"), (64, 4, 4)),
        (("--batch-size=240", "--gradient-accumulation-steps=3", "--world-size=4"), (20, 3, 4)),
        (("--batch-size=256", "--world-size=4", "--to-batch-size=1024"), (64, 4, 4)),
    ],
)
def test_the_lines_have_the_devices_that_were_named(options, expected):
    start = ("recipe", "--learning-rate=0.1", *options)
    per_device, steps, world_size = expected
    shown = json.loads(run(*start, "--json").out)
    assert tuple(shown["layout"].values()) == expected
    pytorch = run(*start, "--script=pytorch").out
    assert f"batch_size={per_device}, sampler=DistributedSampler(train_set)" in pytorch
    assert (f"accumulation_steps = {steps}\n" in pytorch) is (steps > 1)
    assert f"x {world_size} devices: " in pytorch
    transformers = run(*start, "--script=transformers").out
    assert f"per_device_train_batch_size={per_device},\n" in transformers
    assert f"gradient_accumulation_steps={steps},  # x {world_size} devices: " in transformers
    lightning = run(*start, "--script=lightning").out
    assert f"DataLoader(train_set, batch_size={per_device}, shuffle=True" in lightning
    assert f"Trainer(devices={world_size}, accumulate_grad_batches={steps})" in lightning
