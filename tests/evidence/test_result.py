"""What an evidence says of itself."""

from dataclasses import replace
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
    assert result.verdict.startswith("E favours the model; no gradient was given")
    assert repr(result).count("full determinant") == 3  # Occam, evidence, Bayes factor
    assert result.to_dict()["log_bayes_factor_full"] == result.log_bayes_factor_full


def test_sums_that_favour_different_sides_are_both_told():
    null = -1.1 - 0.5 * np.log1p(6) + 0.2  # between the two sums
    result = ns.log_evidence_from_operator(
        np.diag([3.0, -0.3]), nll=1.0, penalty=0.1, prior_precision=0.5, n_train=40, log_null=null
    )
    said = "the given null model by the restricted sum, the model by the full determinant"
    assert said in result.verdict
    regression = replace(result, details={"null_model": "the best constant"})
    assert "E favours the best constant by the restricted sum" in regression.verdict


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
class TestWhatMayBeSaid:
    """Kinds, and what is withheld."""

    def test_a_linear_model_at_its_map_bears_odds(self, fitted):
        params, data, _ = fitted
        result = ns.log_evidence(affine, params, data, prior_precision=0.5)
        assert result.kind is ns.Kind.LINEAR
        assert result.withheld is None
        assert result.verdict == result.odds
        assert "odds of" in result.odds

    def test_away_from_minima_everything_but_the_parts_is_withheld(self, fitted):
        params, data, _ = fitted
        moved = {"w": params["w"] + 1.0, "b": params["b"]}
        result = ns.log_evidence(affine, moved, data, prior_precision=0.5)
        assert result.newton_decrement > 2
        for name in ("E", "log_bayes_factor", "log_bayes_factor_full", "odds", "verdict"):
            assert getattr(result, name) is None
            assert result.to_dict()[name] is None
        assert "E is withheld: the cost could still fall by" in result.withheld
        assert result.withheld in result.notes
        assert result.to_dict()["withheld"] == result.withheld
        parts = -(result.nll + result.penalty) + result.log_occam_factor
        assert result.log_evidence == pytest.approx(parts)
        with pytest.raises(ns.InputError, match="moved is not to be compared: E is withheld"):
            ns.compare({"moved": result})

    def test_the_point_as_it_is_has_a_neighbourhood(self, fitted):
        params, data, _ = fitted
        moved = {"w": params["w"] + 1.0, "b": params["b"]}
        result = ns.log_evidence(affine, moved, data, prior_precision=0.5, at="point")
        assert result.kind is ns.Kind.NEIGHBOURHOOD
        assert result.log_bayes_factor == result.log_evidence - result.log_null == -result.E
        assert result.odds is None
        assert "neighbourhood" in result.verdict

    def test_a_curvature_from_outside_is_checked_by_its_gradient(self):
        settings = {"nll": 1.0, "penalty": 0.1, "prior_precision": 0.5, "n_train": 9}
        settings |= {"n_classes": 2}
        without = ns.log_evidence_from_operator(np.eye(2), **settings)
        assert without.kind is ns.Kind.UNCHECKED
        assert without.E is not None
        near = ns.log_evidence_from_operator(np.eye(2), gradient=[0.1, 0.1], **settings)
        assert near.kind is ns.Kind.ONE_MODE
        assert near.E == without.E
        # Half the decrement is 1/2 (3^2)/1.5 = 3 nats.
        far = ns.log_evidence_from_operator(np.eye(2), gradient=[3.0, 0.0], **settings)
        assert far.newton_decrement == pytest.approx(6.0)
        assert far.E is None
        point = ns.log_evidence_from_operator(
            np.eye(2), gradient=[3.0, 0.0], at="point", **settings
        )
        assert point.E == without.E

    def test_without_a_verdict_the_first_line_says_what_to_do(self, fitted):
        params, data, _ = fitted
        moved = {"w": params["w"] + 1.0, "b": params["b"]}
        found = ns.log_evidence(affine, moved, data, prior_precision=0.5)
        first, *rest = repr(found).splitlines()
        assert first.startswith("No verdict. E is withheld: ")
        assert "use at='map'" in first
        assert not any("withheld" in line for line in rest)
        found = ns.log_evidence(affine, moved, data, prior_precision=0.5, at="map")
        assert repr(found).startswith("Evidence of ")
        outside = ns.log_evidence_from_operator(
            np.eye(2),
            gradient=[3.0, 0.0],
            nll=1.0,
            penalty=0.1,
            prior_precision=0.5,
            n_train=9,
        )
        assert "train further, or at='point'" in repr(outside).splitlines()[0]

    @pytest.mark.parametrize("kind", list(ns.Kind))
    def test_only_whole_models_and_procedures_bear_odds(self, kind):
        assert kind.bears_odds == (kind in ("linear model", "refined", "annealed", "prequential"))


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(ns.InputError, match="log_evidence is -inf here: nll 1.7e.308"):
        ns.log_evidence_from_operator(
            np.eye(1), nll=1.7e308, penalty=1.7e308, prior_precision=1.0, n_train=3
        )
