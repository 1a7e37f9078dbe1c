"""What an evidence says of itself."""

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
