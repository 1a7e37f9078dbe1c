"""The command line, as a user runs it: a process of its own."""

import json
import subprocess
import sys

import pytest

import noisescale


def noisescale_cli(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "noisescale", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**__import__("os").environ, "COLUMNS": "100", "NO_COLOR": "1", **environment},
    )


def test_version():
    done = noisescale_cli("--version")
    assert (done.returncode, done.stdout) == (0, f"noisescale {noisescale.__version__}\n")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("paper",),
        ("sweep",),
        ("runs",),
        ("recipe",),
        ("report",),
        ("tune",),
        ("evidence",),
        ("data",),
        ("data", "fetch"),
    ],
)
def test_help_reads_well(command):
    done = noisescale_cli(*command, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "Usage" in done.stdout
    assert "Example" in done.stdout or "Begin with" in done.stdout
    words = set(done.stdout.replace(",", " ").split())
    assert "-h" in words
    assert "<bool>" not in words  # flags take no value
    if command:
        assert {"--json", "--quiet", "--debug"} <= words


def test_cheap_commands_do_not_import_jax():
    code = (
        "import sys, noisescale, noisescale.cli, noisescale.data, noisescale.sweep.listing; "
        "from noisescale import AdamRecipe, Recipe, noise_scale; "
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_data_lists_what_is_there(tmp_path):
    done = noisescale_cli("data", NOISESCALE_DATA=str(tmp_path))
    assert done.returncode == 0
    for word in ("mnist", "fashion-mnist", "mnist-embedded", "digits", "missing", "verified"):
        assert word in done.stdout
    rows = json.loads(noisescale_cli("data", "--json", NOISESCALE_DATA=str(tmp_path)).stdout)
    states = {row["name"]: row["state"] for row in rows}
    assert states["mnist"] == "missing"
    assert states["mnist-embedded"] == "verified"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"cut short")
    rows = json.loads(noisescale_cli("data", "--json", NOISESCALE_DATA=str(tmp_path)).stdout)
    assert {row["name"]: row["state"] for row in rows}["mnist"] == "altered"


def test_fetch(full_mnist):
    done = noisescale_cli("data", "fetch", "mnist", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["fingerprint"] == full_mnist.fingerprint


def test_paper_ends_with_the_path_of_the_report(tmp_path):
    done = noisescale_cli(
        "paper", "--scale", "smoke", "--only", "units,1", "--out", str(tmp_path / "report")
    )
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last == f"Report: {(tmp_path / 'report' / 'index.html').resolve()}"
    assert (tmp_path / "report" / "claims.json").is_file()
    assert "seed 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("paper", "--only", "nonsense"), "noisescale: there is no section 'nonsense'"),
        (("paper", "--seeds", "0"), "noisescale: seeds must be at least 1, got 0."),
        (("data", "fetch", "imagenet"), "noisescale: there is no data set 'imagenet' to fetch"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    extra = ("--out", str(tmp_path / "o")) if arguments[0] == "paper" else ()
    done = noisescale_cli(*arguments, *extra)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "arguments",
    [("paper", "--scale", "huge"), ("paper", "--seeds", "two"), ("nothing",), ("data", "fetch")],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments):
    done = noisescale_cli(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("noisescale: ")
    assert done.stderr.count("\n") == 1


def test_no_arguments_show_the_help():
    done = noisescale_cli()
    assert done.returncode == 2
    assert "Usage" in done.stdout + done.stderr


def test_flags_of_the_group_reach_its_commands(full_mnist):
    done = noisescale_cli("data", "--json", "fetch", "mnist")
    assert json.loads(done.stdout)["name"] == "mnist"


def test_tracebacks_only_with_debug(tmp_path):
    plain = noisescale_cli("data", "fetch", "imagenet")
    debug = noisescale_cli("data", "fetch", "imagenet", "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


TUNED = ("recipe", "--learning-rate", "0.1", "--batch-size", "256", "--n-train", "50000")


def test_recipes_side_by_side():
    done = noisescale_cli(*TUNED, "--momentum", "0.9", "--to-batch-size", "8192")
    assert done.returncode == 0, done.stderr
    for text in ("tuned", "linear rule", "exact rule", "3.2", "3.80742", "noise scale g", "16% of"):
        assert text in done.stdout
    told = json.loads(noisescale_cli(*TUNED, "--to-batch-size", "512", "--json").stdout)
    assert told["linear rule"]["learning_rate"] == pytest.approx(0.2)
    assert told["exact rule"]["noise_scale"] == pytest.approx(told["tuned"]["noise_scale"])
    one = json.loads(
        noisescale_cli(*TUNED, "--to-n-train", "100000", "--rule", "exact", "--json").stdout
    )
    assert one["exact rule"]["batch_size"] == 512
    assert "linear rule" not in one
    alone = noisescale_cli(*TUNED)
    assert "tuned" in alone.stdout
    whole = noisescale_cli(*TUNED, "--to-batch-size", "50000")
    assert whole.returncode == 0
    assert "exact rule: a batch of all 50000 examples has no noise" in whole.stdout


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
    ],
)
def test_bad_recipes(options, message):
    done = noisescale_cli(*TUNED, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


MODEL = """
import numpy as np
import noisescale as ns

def trained():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    y = (x[:, 0] > 0).astype(int)
    model = ns.softmax_regression(5, 2)
    fitted = ns.train(model, model.init(0), (x, y), learning_rate=0.5, batch_size=60, steps=2000,
                      prior_precision=1.0, evaluate_at="final")
    return model, fitted.params, (x, y)

def wrong():
    return 3
"""


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_evidence_of_a_users_model(model_file):
    done = noisescale_cli(
        "evidence", "my_model:trained", "--prior-precision", "1", "--plot", "spectrum.png"
    )
    assert done.returncode == 0, done.stderr
    assert "log evidence" in done.stdout
    assert "Spectrum of the Gauss-Newton matrix, 12 eigenvalues" in done.stdout
    assert (model_file / "spectrum.png").stat().st_size > 1_000


def test_evidence_as_json_and_explained(model_file):
    done = noisescale_cli("evidence", "my_model:trained", "--json")
    told = json.loads(done.stdout)
    assert told["evidence"]["E"] < 0
    assert "maximises the evidence" in " ".join(told["evidence"]["notes"])
    assert len(told["spectrum"]["top"]) == 10
    explained = noisescale_cli("evidence", "my_model:trained", "--explain")
    assert "lanczos: " in explained.stdout
    assert "log evidence" not in explained.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my_model:wrong",), "must return (apply_fn, params, (x, y)) or (torch.nn.Module"),
        (("my_model:absent",), "cannot be imported"),
        (("my_model:trained", "--prior-precision", "x"), "must be a number, auto or per_layer"),
        (
            ("my_model:trained", "--prior-precision", "0"),
            "--prior-precision must be a finite number above 0",
        ),
    ],
)
def test_evidence_refuses_with_one_line(model_file, arguments, message):
    done = noisescale_cli("evidence", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
