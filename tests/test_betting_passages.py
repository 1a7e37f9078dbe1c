"""The passages on what evidences cost, before and after their benchmarks have run."""

import json

import betting_passages
import pytest


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(betting_passages, "RESULTS", tmp_path)
    return tmp_path


def test_nothing_is_said_while_nothing_is_measured(results):
    assert betting_passages.beliefs_passage() == ""


def test_tables_of_what_was_measured(results):
    def paid(value):
        return {"log_bayes_factor": value, "seconds": 12.3}

    beliefs = [
        {
            "labels": labels,
            "laplace_torch": paid(1600 + k),
            "exact_at_the_point": paid(1700 + k),
            "prequential": paid(1400 - 1402.1 * k),
        }
        for k, labels in enumerate(("true", "random"))
    ]
    maps = [
        {"labels": "true", "E_at_the_map": -1444.0, "seconds": 70.0, "prior_precision": 0.1},
        {"labels": "random", "E_at_the_map": None, "seconds": 80.0, "prior_precision": 0.1},
    ]
    (results / "betting.json").write_text(json.dumps({"beliefs": beliefs}))
    assert betting_passages.beliefs_passage() == ""  # the other half is still to come
    (results / "map_evidence.json").write_text(json.dumps({"n_train": 1000, "rows": maps}))
    told = betting_passages.beliefs_passage()
    assert '| `at="map"`, prior precision 0.1 | +1,444 (70 s) | withheld (80 s) |' in told
    assert "| prequential, one order and seed | +1,400 (12 s) | -2 (12 s) |" in told
    assert "| laplace-torch, post hoc, its best prior | +1,600 (12 s) | +1,601 (12 s) |" in told
