"""A Lanczos estimate of a module that is killed goes on; the module is known by its content."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from oracles.killed import killed_after_eight_probes  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]

SETTINGS = {
    "prior_precision": 0.3,
    "method": "lanczos",
    "tolerance": 1e-3,
    "max_probes": 16,
    "at": "point",
}
MADE = """
import torch

torch.manual_seed(0)
module = torch.nn.Sequential(
    torch.nn.Linear(8, 7), torch.nn.BatchNorm1d(7), torch.nn.Tanh(), torch.nn.Linear(7, 4)
).eval()
x = torch.randn(60, 8)
y = x[:, :4].argmax(dim=1)
"""
KILLED = """
import noisescale.torch as nst

nst.log_evidence(module, (x, y), store={!r}, progress=told, **{!r})
"""


@pytest.fixture
def made():
    names = {}
    exec(MADE, names)
    return names["module"], (names["x"], names["y"])


def test_killed_and_resumed_is_uninterrupted(made, tmp_path):
    killed_after_eight_probes(MADE + KILLED.format(str(tmp_path), SETTINGS))
    whole = nst.log_evidence(*made, **SETTINGS)
    resumed = nst.log_evidence(*made, store=tmp_path, **SETTINGS)
    assert resumed.details["n_stored_probes"] == 8
    assert resumed.details["n_probes"] == 16
    assert resumed.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)
    assert resumed.log_evidence_std == pytest.approx(whole.log_evidence_std, rel=1e-9)


def test_another_module_or_data_set_has_no_probes_there(made, tmp_path):
    module, (x, y) = made
    settings = SETTINGS | {"max_probes": 2, "store": tmp_path}
    nst.log_evidence(module, (x, y), **settings)
    other, normalised = copy.deepcopy(module), copy.deepcopy(module)
    other[2] = torch.nn.Sigmoid()
    normalised[1].running_var *= 1.001
    for given in (
        (other, (x, y)),
        (normalised, (x, y)),
        (module, (x + 1e-6, y)),
        (module, (x, (y + 1) % 4)),
    ):
        found = nst.log_evidence(*given, **settings)
        assert found.details["n_stored_probes"] == 0
    part = nst.log_evidence(module, (x, y), select="3", **settings)
    assert part.details["n_stored_probes"] == 0
    again = nst.log_evidence(copy.deepcopy(module), (x.clone(), y.clone()), **settings)
    assert again.details["n_stored_probes"] == 2
