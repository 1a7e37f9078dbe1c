"""The report's calculator computes what the library does: its script in Node."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

import noisescale as ns

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="Node is not on this machine")

# Inputs and outputs by name; a slider takes what it is given.
FORM = """
const given = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const outputs = {};
const input = (name) => ({name, value: String(given[name]), addEventListener() {}});
const inputs = Object.keys(given).map(input);
const named = (selector) => /name=(\\w+)/.exec(selector)?.[1];
const form = {
  querySelectorAll: () => inputs,
  querySelector: (selector) =>
    selector.startsWith("output") ? (outputs[named(selector)] ??= {dataset: {}})
    : selector.includes("range") ? {addEventListener() {}}
    : inputs.find((one) => one.name === named(selector)),
};
const document = {querySelector: () => form};
"""
SHOW = "console.log(JSON.stringify(outputs));"


def shown(**given):
    """What the outputs hold: a number each, and what is printed."""
    usual = {
        "learning_rate": 0.1,
        "batch_size": 256,
        "n_train": 50_000,
        "momentum": 0.9,
        "new_batch": 512,
    }
    script = (files("noisescale.paper.report") / "calculator.js").read_text("utf-8")
    done = subprocess.run(
        [NODE, "-e", FORM + script + SHOW],
        input=json.dumps(usual | given),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def value(output):
    return float(output["dataset"]["value"])


@pytest.mark.parametrize(
    ("rate", "size", "n", "m"),
    [
        (0.1, 256, 50_000, 0.9),
        (0.37, 7, 1_000, 0.0),
        (2.5, 999, 1_000, 0.95),
        (1.0, 60, 60, 0.5),
    ],
)
def test_the_noise_scale_is_the_librarys(rate, size, n, m):
    found = shown(learning_rate=rate, batch_size=size, n_train=n, momentum=m)
    assert value(found["g"]) == ns.noise_scale(rate, size, n, m)
    assert value(found["approximate"]) == ns.noise_scale(rate, size, n, m, approximate=True)


def test_another_batch_keeps_the_noise_scale():
    at = {"learning_rate": 0.2, "batch_size": 64, "n_train": 10_000, "momentum": 0.8}
    recipe, found = ns.Recipe(**at), shown(**at, new_batch=300)
    for rule in ("linear", "exact"):
        moved = recipe.scaled_to(batch_size=300, rule=rule)
        assert value(found[rule]) == pytest.approx(moved.learning_rate, rel=1e-12)
    moved = recipe.scaled_to(batch_size=300, via="momentum")
    assert value(found["via_momentum"]) == pytest.approx(moved.momentum, rel=1e-12)


def test_what_is_wrong_is_said():
    assert shown(batch_size=100, n_train=50)["g"]["value"] == "B cannot exceed N"
