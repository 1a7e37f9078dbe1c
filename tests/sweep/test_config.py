import csv
import json
from dataclasses import FrozenInstanceError, replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisescale.data import load_digits
from noisescale.sweep import RunConfig, make_plan

SHARED = {"data": "digits", "hidden_widths": (), "learning_rate": 0.1, "steps": 10}
BASIC = RunConfig(**SHARED, batch_size=8)
RESULTS = Path(__file__).parents[2] / "results"


def test_the_key_is_the_hash_of_the_canonical_configuration():
    content = json.loads(BASIC.canonical)
    again = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert again == BASIC.canonical
    assert sha256(again.encode()).hexdigest() == BASIC.key
    assert content["data_fingerprint"] == load_digits().fingerprint
    assert content["n_train"] == len(load_digits().y_train)
    everything = {
        "data",
        "data_fingerprint",
        "subset",
        "preprocessing",
        "model",
        "initialisation",
        "cost_convention",
        "sampler",
        "dtype",
        "evaluate_at",
        "format",
    }
    assert everything <= set(content)
    assert repr(0.1) in BASIC.canonical


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 0.1 + 1e-16 * 4},
        {"batch_size": 9},
        {"steps": 11},
        {"momentum": 0.5},
        {"prior_precision": 1e-9},
        {"seed": 1},
        {"n_train": 100},
        {"n_test": 100},
        {"hidden_widths": (3,)},
        {"initialisation": "zeros"},
        {"cost_convention": "per_class"},
        {"sampler": "shuffle"},
        {"evaluate_at": "final"},
        {"n_evaluations": 7},
        {"model": "oracles.unruly:useless_model"},
        {"data_fingerprint": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_makes_another_run(change):
    assert replace(BASIC, **change).key != BASIC.key


def test_number_types_do_not_make_another_run():
    import numpy as np

    same = RunConfig(
        **SHARED | {"steps": np.int32(10), "hidden_widths": []}, batch_size=np.int64(8), momentum=0
    )
    assert same.key == BASIC.key
    assert RunConfig(**BASIC.to_dict()).key == BASIC.key


def test_configurations_are_frozen():
    with pytest.raises(FrozenInstanceError):
        BASIC.steps = 3


@given(st.floats(1e-6, 1e6), st.floats(0, 0.999), st.integers(0, 2**40))
def test_a_configuration_survives_json(learning_rate, momentum, seed):
    run = replace(BASIC, learning_rate=learning_rate, momentum=momentum, seed=seed)
    assert RunConfig(**json.loads(json.dumps(run.to_dict()))).key == run.key


def test_cost_follows_the_work():
    assert replace(BASIC, steps=100_000).cost > 5 * BASIC.cost
    assert replace(BASIC, batch_size=1000).cost > BASIC.cost
    assert replace(BASIC, evaluate_at="final").cost < BASIC.cost


def rows(name):
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_shipped_runs_have_the_keys_of_their_configurations():
    """A key that changed would orphan every stored run, here and on users' disks."""
    evaluated = {}
    for row in rows("curves.csv"):
        evaluated.setdefault(row["key"], []).append(int(row["step"]))
    shipped = [row for path in sorted(RESULTS.glob("figure*.csv")) for row in rows(path.name)]
    assert len(shipped) > 1_000
    for row in shipped:
        run = RunConfig(
            data=row.get("data", "mnist"),
            **{name: float(row[name]) for name in ("learning_rate", "momentum", "prior_precision")},
            **{name: int(row[name]) for name in ("batch_size", "n_train", "steps", "seed")},
            cost_convention=row["cost_convention"],
            hidden_widths=json.loads(row["hidden_widths"]),
            evaluate_at="log" if row["key"] in evaluated else "final",
        )
        if run.key != row["key"] and row["key"] in evaluated:  # at steps of its own
            run = replace(run, evaluate_at=evaluated[row["key"]])
        assert run.key == row["key"]


def test_a_plan_on_verified_data_loads_nothing(monkeypatch):
    for loader in ("load_dataset", "load_mnist", "load_digits", "_load", "_embedded_mnist"):
        monkeypatch.setattr(f"noisescale.data.{loader}", lambda *_: pytest.fail("loads data"))
    for name in ("mnist", "mnist-embedded", "digits"):
        (run,) = make_plan(SHARED | {"data": name, "batch_size": 8})
        assert run.cost > 0
