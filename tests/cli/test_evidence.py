import json
import sys

import pytest

from command_line import run

# The model is a minimum for one prior only, and the command says so.
pytestmark = pytest.mark.filterwarnings("default::noisescale.evidence.NotAMinimumWarning")

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

def one():
    return (lambda w, x: x @ w), np.ones(1), (np.array([[1.0], [2.0], [-1.0]]), np.ones(3))

def wrong():
    return 3
"""


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    (tmp_path / "my_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    return tmp_path


def test_evidence_of_a_users_model(model_file):
    done = run("evidence", "my_model:trained", "--prior-precision", "1", "--plot", "spectrum.png")
    assert done.code == 0, done.err
    assert "log evidence" in done.out
    assert "Spectrum of the Gauss-Newton matrix, 12 eigenvalues" in done.out
    assert (model_file / "spectrum.png").stat().st_size > 1_000


def test_evidence_as_json_and_explained(model_file):
    done = run("evidence", "my_model:trained", "--json", "--at", "point")
    shown = json.loads(done.out)
    assert shown["evidence"]["E"] < 0
    assert shown["evidence"]["kind"] == "neighbourhood"
    assert "maximises the evidence" in " ".join(shown["evidence"]["notes"])
    assert len(shown["spectrum"]["top"]) == 10
    assert "noisescale: warning: " in done.err
    explained = run("evidence", "my_model:trained", "--explain")
    assert "lanczos: " in explained.out
    assert "log evidence" not in explained.out


def test_evidence_at_the_map_against_frequencies(model_file):
    done = run("evidence", "my_model:trained", "--json", "--at", "map", "--null", "frequencies")
    found = json.loads(done.out)["evidence"]
    assert found["kind"] == "linear model"
    assert found["details"]["map"]["status"] == "map"
    assert found["log_null"] > -60 * 0.6931472 - 5
    assert "odds of" in found["odds"]


def test_evidence_of_one_parameter(model_file):
    done = run("evidence", "my_model:one", "--likelihood", "gaussian", "--at", "map")
    assert done.code == 0, done.err
    assert "Spectrum of the Gauss-Newton matrix, 1 eigenvalues: largest 6\n" in done.out


@pytest.mark.parametrize("json_", [False, True])
def test_an_evidence_without_a_spectrum_is_told_all_the_same(model_file, monkeypatch, json_):
    """ARPACK does not always converge."""
    monkeypatch.setattr("noisescale.evidence.curvature.spectrum._DENSE", 0)
    one = ("evidence", "my_model:one", "--likelihood", "gaussian", "--at", "map")
    done = run(*one, *["--json"] * json_)
    assert done.code == 0, done.err
    reason = "the 1 largest eigenvalues of 1 were not found"
    if json_:
        shown = json.loads(done.out)
        assert shown["evidence"]["kind"] == "linear model"
        assert shown["spectrum"] is None
        assert reason in shown["no_spectrum"]
    else:
        assert "log evidence" in done.out
        assert f"There is no spectrum: {reason}" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("my_model:wrong",), "must return (apply_fn, params, (x, y)) or (torch.nn.Module"),
        (("my_model:absent",), "cannot be imported"),
        (("my_model:trained", "--at", "top"), "at must be one of check, map, point, got 'top'"),
        (("my_model:trained", "--null", "x"), "null must be one of uniform, frequencies"),
        (("my_model:trained", "--prior-precision", "x"), "must be a number, auto or per_layer"),
        (
            ("my_model:trained", "--prior-precision", "0"),
            "--prior-precision must be a finite number above 0",
        ),
    ],
)
def test_evidence_refuses_with_one_line(model_file, arguments, message):
    assert message in run("evidence", *arguments).sentence
