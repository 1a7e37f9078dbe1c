"""An estimate that is killed goes on from the probes that it had finished."""

import threading

import numpy as np
import pytest

import noisescale as ns
from noisescale.jobs.store import RunStore
from oracles.killed import killed_after_eight_probes
from oracles.models import NETWORK, as_function, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")

SETTINGS = {
    "prior_precision": 0.3,
    "method": "lanczos",
    "tolerance": 1e-3,  # which it will not reach
    "max_probes": 16,
    "at": "point",
}
KILLED = """
import noisescale as ns
from oracles.killed import killed_after_eight_probes
from oracles.models import NETWORK, data, params_of

model = NETWORK, params_of(NETWORK), data()
ns.log_evidence(*model, store={!r}, progress=told, **{!r})
"""


def test_killed_and_resumed_is_uninterrupted(tmp_path):
    killed_after_eight_probes(KILLED.format(str(tmp_path), SETTINGS))
    model = NETWORK, params_of(NETWORK), data()
    whole = ns.log_evidence(*model, **SETTINGS)
    resumed = ns.log_evidence(*model, store=tmp_path, **SETTINGS)
    assert resumed.details["n_stored_probes"] == 8
    assert resumed.details["n_probes"] == whole.details["n_probes"] == 16
    assert "n_stored_probes" not in whole.details
    for name in ("log_evidence", "log_evidence_full", "log_evidence_std", "newton_decrement"):
        assert getattr(resumed, name) == pytest.approx(getattr(whole, name), rel=1e-12)
    again = ns.log_evidence(*model, store=tmp_path, **SETTINGS)
    assert again.details["n_stored_probes"] == 16
    assert again.log_evidence == resumed.log_evidence


def test_an_estimate_that_is_to_be_nearer_goes_on(tmp_path):
    model, settings = (NETWORK, params_of(NETWORK), data()), SETTINGS | {"max_probes": 8}
    rough = ns.log_evidence(*model, store=tmp_path / "a.sqlite", **settings)
    assert rough.details["n_stored_probes"] == 0
    finer = ns.log_evidence(*model, store=tmp_path / "a.sqlite", **SETTINGS)
    assert finer.details["n_stored_probes"] == 8
    assert finer.log_evidence == ns.log_evidence(*model, **SETTINGS).log_evidence


def test_blocks_of_another_problem_are_neither_used_nor_touched(tmp_path):
    params, (x, y) = params_of(NETWORK), data()
    settings = SETTINGS | {"max_probes": 2}
    changed = np.array(x)
    changed[0, 0] += 1e-6
    moved = [layer | {"b": layer["b"] + 1e-6} for layer in params]
    with RunStore(tmp_path / "runs.sqlite", write=True) as store:
        first = ns.log_evidence(NETWORK, params, (x, y), store=store, **settings)
        for others in (
            {"data": (changed, y)},
            {"data": (x, (y + 1) % 4)},
            {"params": moved},
            {"apply_fn": as_function},
            {"prior_precision": 0.31},
            {"curvature": "hessian"},
            {"seed": 1},
            {"likelihood": lambda z, y: (z**2).sum(axis=1)},
        ):
            given = {"apply_fn": NETWORK, "params": params, "data": (x, y)} | settings | others
            found = ns.log_evidence(store=store, **given)
            assert found.details["n_stored_probes"] == 0, others
            assert found.log_evidence == ns.log_evidence(**given).log_evidence
        again = ns.log_evidence(NETWORK, params, (x, y), store=store, **settings)
    assert again.details["n_stored_probes"] == 2
    assert again.log_evidence == first.log_evidence


def test_an_operator_is_known_by_its_content(tmp_path):
    h = np.geomspace(1e-2, 1e2, 40)
    settings = {
        "nll": 3.0,
        "penalty": 1.0,
        "prior_precision": 0.5,
        "n_train": 9,
        "n_classes": 2,
        "method": "lanczos",
        "store": tmp_path,
    }
    for curvature, stored in ((np.diag(h), 0), (np.diag(h), 8), (np.diag(2 * h), 0)):
        found = ns.log_evidence_from_operator(curvature, **settings)
        assert found.details["n_stored_probes"] == stored


def test_what_cannot_be_told_apart_is_not_used_and_that_is_said(tmp_path):
    lock, told = threading.Lock(), []

    def locked(params, x):
        with lock:
            return NETWORK(params, x)

    settings = SETTINGS | {"max_probes": 2, "store": tmp_path, "progress": told.append}
    for _ in range(2):
        found = ns.log_evidence(locked, params_of(NETWORK), data(), **settings)
        assert found.details["n_stored_probes"] == 0
    assert any("stored probes are not used" in line and "lock" in line for line in told)


def test_stores_that_cannot_be(tmp_path):
    model = NETWORK, params_of(NETWORK), data()
    (tmp_path / "notes.txt").write_text("not a store")
    with pytest.raises(ns.InputError, match="is not a store of noisescale: it was left as it is"):
        ns.log_evidence(*model, store=tmp_path / "notes.txt", **SETTINGS)
    with pytest.raises(ns.InputError, match="method='dense' has none: leave store out"):
        ns.log_evidence(*model, store=tmp_path, **SETTINGS | {"method": "dense"})
    exact = ns.log_evidence(*model, store=tmp_path, **SETTINGS | {"method": "auto"})
    assert exact.method in ("dense", "dual")  # which has nothing to keep
