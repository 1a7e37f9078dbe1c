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
            ("--to-batch-size", "512", "--to-momentum", "0.5"),
            "was asked for batch_size and momentum",
        ),
        (("--to-batch-size", "512", "--via", "magic"), "via must be one of"),
        (("--to-batch-size", "64", "--via", "momentum"), "below 0"),
        (("--to-batch-size", "512", "--rule", "cubic"), "rule must be one of linear, exact"),
        (("--momentum", "1"), "momentum must be a finite number in [0, 1), got 1."),
        (("--optimizer", "adam", "--momentum", "0.9"), "--momentum goes with --optimizer sgd"),
        (("--beta1", "0.9"), "--beta1 goes with --optimizer adam"),
        (
            ("--optimizer", "adam", "--to-batch-size", "4096"),
            "below 0: Adam's rule ends at batch_size 2560, so grow the batch less",
        ),
    ],
)
def test_bad_recipes(options, message):
    assert message in run(*TUNED, *options).sentence


def test_adam_follows_the_square_root_rule():
    adam = ("--optimizer", "adam", "--beta1", "0.9", "--beta2", "0.999", "--eps", "1e-8")
    scaled = run(*TUNED, *adam, "--to-batch-size", "2048")
    assert scaled.code == 0, scaled.err
    for text in ("square-root rule", "0.282843", "beta1", "0.2", "0.992", "3.53553e-09"):
        assert text in scaled.out
    assert "- at beta1 = 0.2 the newest gradient weighs more than all before it" in scaled.out
    shown = json.loads(run(*TUNED, "--optimizer", "adam", "--to-batch-size=1024", "--json").out)
    assert shown["square-root rule"]["betas"] == pytest.approx([0.6, 0.996])
    assert shown["tuned"]["eps"] == 1e-8
    assert "beta2" in run(*TUNED, "--optimizer", "adam").out
