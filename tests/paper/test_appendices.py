"""Appendices A and D: the models behind them, and verdicts on numbers whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noisescale.noise.langevin import overdamped, run_chains
from noisescale.paper import appendix_d, location, visits
from noisescale.paper.claims import Verdict
from noisescale.paper.matched import COARSE, DOUBLED, Setting, agree, differ, with_noise_scale
from noisescale.paper.posterior_draws import Draws, judge_draws
from noisescale.uncertainty import Estimate
from paper.circumstances import DECIDING

R, N, U = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED


@pytest.fixture(scope="module")
def landscape():
    return location.survey(151)


def test_the_gradient_is_that_of_the_cost():
    w, h = np.array([0.3, -0.7]), 1e-6
    numeric = [(location.cost(w + h * e) - location.cost(w - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(location.gradient(w), numeric, rtol=1e-7)
    np.testing.assert_allclose(np.asarray(location.gradient(jnp.asarray(w))), numeric, rtol=1e-5)


def test_local_evidences_add_up_to_the_evidence(landscape):
    """Against Gauss and Legendre's quadrature of prior times likelihood over the plane."""
    prior = location.PRIOR_PRECISION / (2 * np.pi)

    def integral(n):
        nodes, weights = np.polynomial.legendre.leggauss(n)
        plane = 6 * np.stack(np.meshgrid(nodes, nodes), axis=-1)
        return 36 * weights @ (prior * np.exp(-location.cost(plane) + 45)) @ weights

    whole = integral(400)
    assert integral(300) == pytest.approx(whole, rel=1e-6)  # it has converged
    parts = sum(np.exp(m.log_evidence + 45) for m in landscape.minima)
    assert parts == pytest.approx(whole, rel=1e-4)


def test_minima_have_basins_and_laplace_is_near(landscape):
    for k, m in enumerate(landscape.minima):
        np.testing.assert_allclose(location.gradient(m.position), 0, atol=1e-6)
        at = [int(np.abs(landscape.axis - value).argmin()) for value in m.position]
        assert landscape.basins[tuple(at)] == k
        assert m.laplace == pytest.approx(m.log_evidence, abs=0.7)
    shares = landscape.probabilities()
    assert shares.sum() == pytest.approx(1)
    assert landscape.minima[0].cost < landscape.minima[1].cost  # the sharp one is deeper,
    assert shares[1] > shares[0]  # yet has less evidence


def test_the_coarse_chain_of_a_pair_is_langevin_dynamics(monkeypatch):
    """Both members of a coupled pair have the law of their own step: variances on a quadratic."""
    step, curvature = 0.02, 20.0
    monkeypatch.setattr(visits, "gradient", lambda w: curvature * w)
    zeros = jnp.zeros((400, 2))
    chains = run_chains(
        visits._halved(step),
        {"fine": zeros, "coarse": zeros},
        key=jax.random.key(0),
        burn_in=100,
        n_samples=50,
        thin=20,
    )
    for name, d in (("fine", step / 2), ("coarse", step)):
        found = np.asarray(chains.draws[name]).reshape(-1)
        exact = 1 / (curvature * (1 - d * curvature / 2))
        assert found.var() == pytest.approx(exact, rel=4 * np.sqrt(2 / len(found)))


def test_pairs_of_chains_stay_together_and_single_ones_do_not(landscape):
    starts = visits._starts(landscape, 60)
    draws = visits._run(visits._halved(1e-3), starts, 3_000, seed=0)
    together = np.abs(draws["fine"] - draws["coarse"]).mean()
    alone = visits._run(
        overdamped(location.gradient, step_size=1e-3), starts["fine"], 3_000, seed=1
    )
    assert together < 0.1 * np.abs(draws["fine"] - alone).mean()


def seen(landscape, shift=0.0, moved=0.1, std=0.004):
    expected = landscape.probabilities()
    shares = expected + shift * std * np.array([1, -1, 0])
    return visits.Visits(
        minima=landscape.minima,
        basins=landscape.basins,
        expected=expected,
        expected_at=np.zeros((60, 3)),
        equal_temperature=1.0,
        at_one=[Estimate(p, std, n=99) for p in shares],
        moved=np.full(3, moved * std),
        by_temperature={},
        left={},
        positions=np.zeros((1, 2)),
    )


def test_visits_judged(landscape):
    assert visits.judge_visits(seen(landscape)).verdict == R
    assert visits.judge_visits(seen(landscape, shift=5)).verdict == N
    # A step too large says nothing of the claim.
    assert visits.judge_visits(seen(landscape, moved=2)).verdict == U
    # Nor do shares that are hardly known, whatever the scale is called.
    assert visits.judge_visits(seen(landscape, std=0.03)).verdict == U


@pytest.mark.parametrize(("errors", "verdict"), [(0.08, R), (0.12, N)])
def test_single_samples_judged(errors, verdict):
    rng = np.random.default_rng(0)
    scores = np.full((4, 50, 2), errors) + rng.normal(0, 1e-3, (4, 50, 2))
    draws = [Draws(1.0, (0.1, 0.3), scores, (0.09, 0.3), 1.0)] * 3
    found = judge_draws(DECIDING, {"the paper's network": draws})
    assert [j.verdict for j in found] == [verdict]


def test_as_many_better_as_worse_is_undecided():
    scores = np.random.default_rng(0).normal(0.1, 1e-3, (4, 50, 2))
    found = judge_draws(DECIDING, {"m": [Draws(1.0, (0.1, 0.3), scores, (0.09, 0.3), 1.0)] * 3})
    assert found[0].verdict == U


def test_settings_share_the_noise_scale_they_are_asked_for():
    for B, n, m in ((10, 1_000, 0.0), (500, 1_000, 0.9), (3, 300, 0.5)):
        assert with_noise_scale(0.7, B, n, m).noise_scale == pytest.approx(0.7, rel=1e-12)


def test_the_shown_noise_scale_is_the_closed_form():
    """2 N h Var(w)/F with the variance as it is usually written."""
    s, h, F = Setting(0.3, 20, 500, 0.6, COARSE), 2.5, 1.7
    e, m = s.learning_rate, s.momentum
    sigma2 = F * (1 / 20 - 1 / 500)
    variance = e * sigma2 * (1 + m) / (h * (1 - m) * (2 * (1 + m) - e * h))
    assert float(s.shown_noise_scale(h)) == pytest.approx(2 * 500 * h * variance / F, rel=1e-12)


@pytest.mark.parametrize("setting", [appendix_d._QUADRATIC[4], appendix_d._QUADRATIC[-1]])
def test_fluctuations_on_a_quadratic(setting):
    context = SimpleNamespace(scale="quick")
    found = appendix_d._quadratic(context, setting)
    assert abs(found.value - float(setting.shown_noise_scale(1.0))) < 4 * found.std


def test_agreeing_and_differing():
    a, b = with_noise_scale(1.0, 10, 1_000, 0.0), with_noise_scale(1.0, 100, 1_000, 0.9)
    twice = with_noise_scale(2.0, 5, 1_000, 0.0, DOUBLED)
    shown = {
        a: Estimate(1.0, 0.01, n=9),
        b: Estimate(1.03, 0.01, n=9),
        twice: Estimate(2, 0.02, n=9),
    }
    assert agree(shown, 1.0)
    assert differ(shown, 1.0)
    assert not agree(shown | {b: Estimate(1.1, 0.01, n=9)}, 1.0)
    assert not differ(shown | {twice: Estimate(1.05, 0.02, n=9)}, 1.0)
    # A step too large is left out of the comparison.
    large = replace(a, learning_rate=0.5, batch_size=333)
    assert agree(shown | {large: Estimate(7.0, 0.01, n=9)}, 1.0)
    # No step is small enough: there is nothing to compare.
    assert agree(shown, 1e6) is None
    assert differ(shown, 1e6) is None
    assert differ({a: shown[a], b: shown[b]}, 1.0) is None
