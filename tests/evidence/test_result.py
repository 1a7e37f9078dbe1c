"""What an evidence says of itself."""

from pathlib import Path

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.result import odds_in_words
from oracles.models import affine


def test_the_parts_add_up(fitted):
    params, data, _ = fitted
    r = ns.log_evidence(affine, params, data, prior_precision=0.5, log_degeneracy=1.5)
    assert r.log_evidence == pytest.approx(-(r.nll + r.penalty) + r.log_occam_factor + 1.5)
    assert r.log_bayes_factor == pytest.approx(r.log_evidence - r.log_null) == -r.E
    assert r.to_dict()["E"] == r.E
    for word in ("log Occam factor", "E (the paper's)", "log degeneracy", "odds of"):
        assert word in repr(r)


def test_a_point_that_is_no_minimum_says_what_that_means(fitted):
    params, data, fit = fitted
    moved = {"w": params["w"] + 0.5, "b": params["b"]}
    with pytest.warns(ns.NotAMinimumWarning, match="could still fall by .* nats") as caught:
        result = ns.log_evidence(affine, moved, data, prior_precision=0.5)
    assert len(caught) == 1
    # For this nearly quadratic cost the decrement foretells the fall.
    fall = result.nll + result.penalty - fit.nll - fit.penalty
    assert result.newton_decrement / 2 == pytest.approx(fall, rel=0.15)


def test_verdicts_in_words():
    assert odds_in_words(0.0, "A", "B") == "even odds between A and B"
    assert odds_in_words(np.log(20), "A", "B") == "odds of 20 to 1 for A against B"
    assert odds_in_words(-230.26, "A", "B") == "odds of 10^100.0 to 1 for B against A"


def test_the_standard_error_is_shown_once(fitted):
    params, data, _ = fitted
    result = ns.log_evidence(
        affine, params, data, prior_precision=0.5, method="lanczos", tolerance=5.0
    )
    assert result.log_evidence_std > 0
    assert repr(result).count("standard error") == 1
    exact = ns.log_evidence(affine, params, data, prior_precision=0.5)
    assert "standard error" not in repr(exact)
    # Without negative curvature there is one determinant, and it is shown once.
    assert "full determinant" not in repr(exact)


def test_warnings_point_to_the_users_line(fitted):
    params, data, _ = fitted
    moved = {"w": params["w"] + 0.5, "b": params["b"]}
    settings = {"nll": 1.0, "penalty": 0.1, "prior_precision": 0.5, "n_train": 3}
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    with pytest.warns(ns.NotAMinimumWarning) as caught:
        ns.log_evidence(affine, moved, data, prior_precision=0.5)
    assert caught[0].filename == __file__
    assert lines[caught[0].lineno - 1].strip().startswith("ns.log_evidence(affine, moved")
    with pytest.warns(ns.NotAMinimumWarning) as caught:
        ns.log_evidence_from_operator(-np.eye(2), **settings)
    assert caught[0].filename == __file__
    assert lines[caught[0].lineno - 1].strip().startswith("ns.log_evidence_from_operator(")


def test_both_sums_are_shown_where_they_differ():
    H = np.diag([3.0, -0.3])
    result = ns.log_evidence_from_operator(
        H, nll=1.0, penalty=0.1, prior_precision=0.5, n_train=40, n_classes=2
    )
    gap = -0.5 * np.log1p(-0.3 / 0.5)
    assert result.log_bayes_factor_full - result.log_bayes_factor == pytest.approx(gap)
    assert "by the restricted sum" in result.verdict
    assert "by the full determinant" in result.verdict
    assert repr(result).count("full determinant") == 4  # Occam, evidence, Bayes factor, verdict
    assert result.to_dict()["log_bayes_factor_full"] == result.log_bayes_factor_full


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ns.InputError, match="log_evidence is -inf here: nll 1.7e.308"):
        ns.log_evidence_from_operator(
            np.eye(1), nll=1.7e308, penalty=1.7e308, prior_precision=1.0, n_train=3
        )
