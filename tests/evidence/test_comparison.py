from dataclasses import replace

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.comparison import ComparisonWarning
from oracles.models import affine


class TestCompare:
    def test_probabilities(self):
        result = ns.compare({"a": -10.0, "b": -10.0 - np.log(3)})
        np.testing.assert_allclose(result.probabilities, [0.75, 0.25])
        assert result.best == "a"
        np.testing.assert_allclose(result.log_odds, [0, -np.log(3)])

    def test_prior_odds(self):
        result = ns.compare({"a": -10.0, "b": -10.0}, prior_odds={"a": 1, "b": 9})
        np.testing.assert_allclose(result.probabilities, [0.1, 0.9])

    def test_huge_differences_do_not_overflow(self):
        assert ns.compare({"a": -1e6, "b": -3e6}).probabilities == (1.0, 0.0)

    def test_takes_evidences_and_shows_a_table(self, fitted):
        params, data, _ = fitted
        weak = ns.log_evidence(affine, params, data, prior_precision=0.5)
        result = ns.compare({"model": weak, "null": weak.log_null})
        assert result.best == "model"
        head, first, second = repr(result).splitlines()
        assert head.split() == [
            "model",
            "rank",
            "log",
            "evidence",
            "difference",
            "its",
            "error",
            "weight",
            "warning",
        ]
        assert first.split()[:2] == ["model", "0"]
        assert second.split()[:2] == ["null", "1"]

    @pytest.mark.parametrize(
        ("arguments", "prior", "message"),
        [
            ({}, None, "at least one model"),
            ({"a": float("nan")}, None, "the log evidence of a must be a finite number, got nan"),
            ({"a": 0.0}, {"b": 1}, "must name the same models"),
            ({"a": 0.0}, {"a": -1}, "prior_odds must be a finite number above 0"),
        ],
    )
    def test_bad_input(self, arguments, prior, message):
        with pytest.raises(ns.InputError, match=message):
            ns.compare(arguments, prior_odds=prior)

    def test_differences_within_their_error_are_said(self, fitted):
        params, data, _ = fitted
        exact = ns.log_evidence(affine, params, data, prior_precision=0.5)
        loose = replace(exact, log_evidence=exact.log_evidence + 1.0, log_evidence_std=2.0)
        result = ns.compare({"exact": exact, "loose": loose})
        assert result.log_evidence_stds == (0.0, 2.0)
        assert "exact and loose differ by less than two standard errors" in result.notes[0]
        assert "note: exact and loose differ" in repr(result)
        assert result.log_odds_stds == (2.0, 0.0)
        assert result.warnings == ("not resolved", "")
        sharp = replace(loose, log_evidence_std=0.1)
        assert ns.compare({"exact": exact, "sharp": sharp}).notes == ()

    def test_kinds_are_not_mixed(self, fitted):
        params, data, _ = fitted
        exact = ns.log_evidence(affine, params, data, prior_precision=0.5)
        mode = replace(exact, kind=ns.Kind.ONE_MODE)
        assert ns.compare({"linear": exact, "network": mode}).warnings == ("", "one mode")
        for kind in ("neighbourhood", "unchecked", "annealed", "prequential"):
            other = replace(exact, kind=ns.Kind(kind))
            with pytest.raises(ns.InputError, match=rf"kinds.*\(mode: one mode, other: {kind}\)"):
                ns.compare({"mode": mode, "other": other})
        whole = replace(exact, kind=ns.Kind.ANNEALED)
        assert ns.compare({"linear": exact, "network": whole}).names == ("linear", "network")
        given = replace(exact, conditional_on=20)
        with pytest.raises(ns.InputError, match="conditional on different numbers"):
            ns.compare({"a": exact, "b": given})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"method": "diagonal"}, r"approximations \(diagonal\) may be off by far more"),
            ({"curvature": "hessian"}, "some the Hessian: use one curvature"),
        ],
    )
    def test_evidences_that_were_not_computed_alike(self, fitted, change, message):
        params, data, _ = fitted
        exact = ns.log_evidence(affine, params, data, prior_precision=0.5)
        other = replace(exact, **change)
        with pytest.warns(ComparisonWarning, match=message) as caught:
            result = ns.compare({"exact": exact, "other": other, "null": exact.log_null})
        assert caught[0].filename == __file__
        assert len(result.notes) == 1
        assert ns.compare({"a": other, "b": other, "null": exact.log_null}).notes == ()
