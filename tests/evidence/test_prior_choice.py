"""The evidence against the prior precision, and where it is largest."""

import numpy as np
import pytest

import noisescale as ns
from oracles.models import NETWORK, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos"])
def test_the_curve_is_the_evidence_at_each_precision(method, no_small_roots):
    params, pair = params_of(NETWORK), data()
    grid = np.geomspace(1e-3, 1e3, 25)
    curve = ns.evidence_curve(NETWORK, params, pair, prior_precisions=grid, method=method)
    exact = [
        ns.log_evidence(NETWORK, params, pair, prior_precision=lam).log_evidence
        for lam in grid[::6]
    ]
    # Three standard errors, each of 1 %: what probes are added for.
    np.testing.assert_allclose(
        curve.log_evidence[::6], exact, rtol=1e-9 if method != "lanczos" else 0.03
    )
    np.testing.assert_allclose(curve.E, -40 * np.log(4) - curve.log_evidence)
    assert curve.edge is None
    assert curve.best_log_evidence >= curve.log_evidence.max()
    assert "largest log evidence" in repr(curve)


def test_few_precisions_are_factorised_one_by_one(no_small_roots, monkeypatch):
    params, pair = params_of(NETWORK), data(200)
    few = ns.evidence_curve(NETWORK, params, pair, prior_precisions=[0.1, 1, 10], method="dual")
    monkeypatch.setattr("scipy.linalg.eigvalsh", None)  # would fail if it were called
    monkeypatch.setattr("noisescale.evidence.prior_choice._EVALUATIONS", 0)
    one_by_one = ns.evidence_curve(
        NETWORK, params, pair, prior_precisions=[0.1, 1, 10], method="dual"
    )
    np.testing.assert_allclose(one_by_one.log_evidence, few.log_evidence, rtol=1e-10)


@pytest.mark.parametrize("method", ["dense", "dual"])
def test_chosen_priors_are_stationary_points_of_the_evidence(method, no_small_roots):
    params, pair = params_of(NETWORK), data()
    chosen = ns.log_evidence(NETWORK, params, pair, prior_precision="auto", method=method)
    layers = ns.log_evidence(NETWORK, params, pair, prior_precision="per_layer", method=method)
    assert layers.log_evidence > chosen.log_evidence
    assert "maximises the evidence" in " ".join(chosen.notes)
    precisions = layers.prior_precision
    assert list(precisions) == ["0", "1", "2"]

    def at(values):
        prior = tuple({"b": v, "w": v} for v in values)
        return ns.log_evidence(NETWORK, params, pair, prior_precision=prior).log_evidence

    best = np.array(list(precisions.values()))
    for k in range(3):
        for factor in (1.1, 1 / 1.1):
            moved = best * np.where(np.arange(3) == k, factor, 1)
            assert at(moved) < layers.log_evidence
    for factor in (1.05, 1 / 1.05):
        scalar = chosen.prior_precision * factor
        moved = ns.log_evidence(NETWORK, params, pair, prior_precision=scalar)
        assert moved.log_evidence < chosen.log_evidence


class TestAtTheMap:
    """A prior that is chosen is that of the evidence which is reported."""

    def problem(self, signal=0.9):
        rng = np.random.default_rng(3)
        x = rng.normal(size=(40, 6))
        return x, (rng.random(40) < 1 / (1 + np.exp(-signal * x[:, 0]))).astype(int)

    def evidence(self, params, data, prior, **settings):
        return ns.log_evidence(
            linear,
            params,
            data,
            prior_precision=prior,
            likelihood="bernoulli",
            at="map",
            **settings,
        )

    @pytest.mark.parametrize("prior", ["auto", "per_layer"])
    @pytest.mark.parametrize("start", [0.0, 1e-3, 3.0])
    def test_the_same_as_the_linear_solver_from_any_start(self, prior, start):
        from noisescale.sklearn import EvidenceLogisticRegression

        x, y = self.problem()
        exact = EvidenceLogisticRegression(fit_intercept=False).fit(x, y)
        found = self.evidence(np.full(6, start), (x, y), prior)
        assert found.prior_precision == pytest.approx(exact.prior_precision_, rel=0.03)
        assert pytest.approx(exact.E_, abs=1e-4) == found.E
        assert "each at its own MAP" in found.notes[0]
        by_hand = self.evidence(np.full(6, start), (x, y), found.prior_precision)
        assert found.log_evidence == pytest.approx(by_hand.log_evidence, abs=1e-6)
        assert found.map.start_cost == pytest.approx(by_hand.map.start_cost)

    def test_where_the_evidence_goes_on_rising(self):
        """Labels that the inputs say nothing of: the weights are best at zero, and it is said."""
        x = np.repeat(np.random.default_rng(0).normal(size=(20, 3)), 2, axis=0)
        found = self.evidence(np.ones(3), (x, np.arange(40) % 2), "auto")
        assert found.prior_precision == 1e6
        assert found.notes[0].startswith("the evidence is still rising at prior precision 1e+06")

    def test_layers_that_stay_zero_are_named(self):
        x, y = self.problem()
        params = {"a": np.ones(6), "b": np.zeros(6)}
        with pytest.raises(ns.InputError, match="layer b has only zeros"):
            ns.log_evidence(
                lambda w, x: x @ w["a"],
                params,
                (x, y),
                prior_precision="per_layer",
                likelihood="bernoulli",
                at="map",
            )


def linear(w, x):
    return x @ w


@pytest.mark.parametrize("at", ["check", "point", "map"])
def test_a_prior_is_chosen_without_a_null_model(at):
    """Constant targets leave the best constant no residuals, but nobody asks for it here."""
    x = np.random.default_rng(0).normal(size=(30, 2))
    found = ns.log_evidence(
        linear,
        np.ones(2),
        (x, np.ones(30)),
        prior_precision="auto",
        likelihood=ns.gaussian("estimate"),
        log_null=-10.0,
        at=at,
    )
    assert found.log_null == -10.0
