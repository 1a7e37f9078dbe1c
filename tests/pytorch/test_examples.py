"""The five examples run, and their evidence is that of brute force."""

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from oracles.torch_evidence import BruteForce, nll_of  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]
SMALL = {
    "cnn": {"n_train": 20, "iterations": 30},
    "nested": {"n_train": 20, "iterations": 50},
    "characters": {"context": 11, "iterations": 50},
    "regression": {"n_train": 40, "iterations": 200},
    "binary": {"n_train": 80, "iterations": 200},
}


@pytest.mark.parametrize("name", SMALL)
def test_example(name, monkeypatch):
    module = importlib.import_module("examples.torch_evidence")
    asked = {}

    def noted(model, data, **settings):
        asked.update(model=model, data=data)
        return nst.log_evidence(model, data, **settings)

    monkeypatch.setattr(module, "log_evidence", noted)
    found = module.EXAMPLES[name](**SMALL[name])
    likelihood = {"regression": "gaussian", "binary": "bernoulli"}.get(name, "categorical")
    x, y = asked["data"]
    noise = 1.0
    if name == "regression":
        noise = y.numel() / float(((asked["model"](x).detach() - y) ** 2).sum())
    truth = BruteForce(asked["model"], x, y, nll_of(likelihood, noise=noise), hessian=False)
    assert found.n_params == len(truth.w)
    L = found.prior_precision
    if isinstance(L, dict):
        L = np.concatenate([np.full(truth.sizes[n], L[n.rpartition(".")[0]]) for n in truth.names])
    assert found.log_evidence == pytest.approx(truth.log_evidence(L), rel=1e-8)
    assert found.log_null is not None


def test_they_are_worth_believing():
    module = importlib.import_module("examples.torch_evidence")
    for name in ("regression", "binary"):
        assert module.EXAMPLES[name]().log_bayes_factor > 3
