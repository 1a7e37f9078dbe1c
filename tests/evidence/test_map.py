"""The MAP: against closed forms and SciPy's Newton, on saddles, on kinks, and what E is there."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import noisescale as ns
from noisescale.data import load_digits
from noisescale.evidence import map as descent_to_the_map
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.problem import is_linear
from oracles.models import affine, linear, network, network_params


def regression(n=12, p=5, noise=2.5, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    return x, x @ rng.normal(size=p) + rng.normal(size=n), noise, rng.uniform(0.1, 5, p)


def log_density(x, y, noise, L):
    covariance = np.eye(len(y)) / noise + x @ np.diag(1 / L) @ x.T
    return multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


class TestConjugateRegression:
    """Closed forms, from a start far away."""

    def test_the_map(self):
        x, y, noise, L = regression()
        found = ns.map_estimate(
            linear, np.full(5, 7.0), (x, y), prior_precision=L, likelihood=ns.gaussian(noise)
        )
        exact = np.linalg.solve(noise * x.T @ x + np.diag(L), noise * x.T @ y)
        np.testing.assert_allclose(found.params, exact, rtol=1e-7)
        assert found.status is ns.MapStatus.MAP
        assert found.half_decrement < 1e-9
        assert found.cost == pytest.approx(found.nll + found.penalty)
        assert found.start_cost > found.cost
        lowest = np.linalg.eigvalsh(np.eye(5) + noise * (x / np.sqrt(L)).T @ (x / np.sqrt(L)))[0]
        assert found.lowest_eigenvalue == pytest.approx(lowest, rel=1e-6)
        assert "params" not in found.to_dict()
        assert repr(found).startswith("MAP: cost")

    def test_only_what_is_selected_moves(self):
        x, y, noise, _ = regression()
        params = {"a": np.zeros(2), "b": np.full(3, 0.5)}
        found = ns.map_estimate(
            lambda w, x: x[:, :2] @ w["a"] + x[:, 2:] @ w["b"],
            params,
            (x, y),
            prior_precision=2.0,
            likelihood=ns.gaussian(noise),
            select="a",
        )
        rest = y - x[:, 2:] @ params["b"]
        exact = np.linalg.solve(
            noise * x[:, :2].T @ x[:, :2] + 2 * np.eye(2), noise * x[:, :2].T @ rest
        )
        (moved,) = found.params
        np.testing.assert_allclose(moved, exact, rtol=1e-7)

    @pytest.mark.parametrize(
        ("method", "curvature"), [("dense", "ggn"), ("dual", "ggn"), ("dense", "hessian")]
    )
    def test_the_evidence(self, method, curvature):
        x, y, noise, L = regression()
        settings = {"prior_precision": L, "likelihood": ns.gaussian(noise)}
        settings |= {"method": method, "curvature": curvature}
        result = ns.log_evidence(linear, np.full(5, 7.0), (x, y), at="map", **settings)
        assert result.log_evidence == pytest.approx(log_density(x, y, noise, L), rel=1e-9)
        assert result.kind is ns.Kind.LINEAR
        assert result.map.status is ns.MapStatus.MAP

    def test_the_evidence_of_some_given_others(self):
        x, y, noise, L = regression()
        result = ns.log_evidence(
            linear,
            np.full(5, 7.0),
            (x, y),
            prior_precision=L,
            likelihood=ns.gaussian(noise),
            at="map",
            conditional_on=4,
        )
        # The predictive density of the others under the posterior of the first four.
        S = np.linalg.inv(noise * x[:4].T @ x[:4] + np.diag(L))
        mean = x[4:] @ S @ (noise * x[:4].T @ y[:4])
        covariance = x[4:] @ S @ x[4:].T + np.eye(8) / noise
        exact = multivariate_normal(mean, covariance).logpdf(y[4:])
        assert result.log_evidence == pytest.approx(exact, rel=1e-9)
        assert (result.n_train, result.conditional_on) == (8, 4)
        parts = -(result.nll + result.penalty) + result.log_occam_factor
        assert result.log_evidence == pytest.approx(parts)
        assert "given 4 others" in repr(result)

    def test_the_prior_of_largest_evidence(self):
        x, y, noise, _ = regression(40)
        result = ns.log_evidence(
            linear,
            np.full(5, 7.0),
            (x, y),
            prior_precision="auto",
            likelihood=ns.gaussian(noise),
            at="map",
        )
        grid = np.geomspace(0.05, 20, 400)
        best = max(log_density(x, y, noise, np.full(5, value)) for value in grid)
        assert result.log_evidence == pytest.approx(best, abs=2e-3)
        assert "is largest at prior precision" in result.notes[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at": "MAP"}, "at must be one of check, map, point, got 'MAP'"),
        ({"conditional_on": 4}, "needs at='map', got at='check'"),
        ({"conditional_on": 12, "at": "map"}, "must leave examples over, got 12 of 12"),
        ({"conditional_on": 0, "at": "map"}, "conditional_on must be at least 1"),
        ({"conditional_on": 3, "at": "map", "log_null": -1.0}, "neither log_null nor"),
    ],
)
def test_bad_settings(changes, message):
    x, y, *_ = regression()
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(
            linear, np.zeros(5), (x, y), prior_precision=1.0, likelihood="gaussian", **changes
        )


def test_classes_condition_too(fitted):
    """Of labels, against the linear solver fitted to both sets."""
    from noisescale.evidence.linear.regression import fit_map, linear_problem

    params, (x, y), fit = fitted
    result = ns.log_evidence(
        affine, params, (x, y), prior_precision=0.5, at="map", conditional_on=20
    )
    first = fit_map(linear_problem(x[:20], y[:20]), prior_precision=0.5)
    assert result.log_evidence == pytest.approx(fit.log_evidence - first.log_evidence, rel=1e-8)
    assert result.log_null == pytest.approx(-40 * np.log(3))


def test_a_saddle_is_left_or_said(monkeypatch):
    """nll = -4 w1 w2 + (w1 w2)^2 at the origin, whose Hessian with the prior has 1 - 4 < 0."""
    data = np.ones((1, 1)), np.zeros(1)
    saddle = {"prior_precision": 1.0, "likelihood": lambda f, y: f[:, 0] ** 2 - 4 * f[:, 0]}
    left = ns.map_estimate(lambda w, x: w[:1] * w[1:] * x, np.zeros(2), data, **saddle)
    # Minima where |w1| = |w2|: cost t^4 - 4 t^2 + t^2, least at t^2 = 3/2.
    assert left.status is ns.MapStatus.MAP
    assert left.cost == pytest.approx(-9 / 4)
    np.testing.assert_allclose(np.abs(left.params), np.sqrt(1.5), rtol=1e-5)
    monkeypatch.setattr(descent_to_the_map, "_ESCAPES", 0)
    said = ns.map_estimate(lambda w, x: w[:1] * w[1:] * x, np.zeros(2), data, **saddle)
    assert said.status is ns.MapStatus.SADDLE
    assert "curves downwards" in said.reason
    assert said.lowest_eigenvalue == pytest.approx(-3)


def test_too_few_steps_stall():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.integers(3, size=30)
    params = network_params(3)
    found = ns.map_estimate(network, params, (1e3 * x, y), prior_precision=1e-4, max_steps=1)
    assert found.status is ns.MapStatus.STALLED
    assert "allow more by max_steps" in found.reason


@settings(max_examples=5)
@given(seed=st.integers(0, 10**6), prior=st.sampled_from([0.3, 3.0]))
def test_a_map_is_a_minimum_of_the_cost(seed, prior):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(20, 3)), rng.integers(3, size=20)
    found = ns.map_estimate(network, network_params(3, seed), (x, y), prior_precision=prior)
    assert found.status is ns.MapStatus.MAP
    problem = jax_problem(network, found.params, (x, y), "categorical")
    nll = problem.nll_function("float64")
    for _ in range(5):
        w = problem.w + 1e-2 * rng.normal(size=len(problem.w))
        assert nll(w)[0] + 0.5 * prior * w @ w > found.cost


@pytest.mark.parametrize(
    ("apply_fn", "params", "expected"),
    [
        (affine, {"w": np.ones((3, 2)), "b": np.ones(2)}, True),
        (network, network_params(2), False),
        # Piecewise linear in the parameters, at which small steps see nothing.
        (lambda w, x: jnp.maximum(x @ w, 0), np.full((3, 2), 5.0), False),
        # Infinite where it is looked for: no second difference is small against that.
        (lambda w, x: jnp.exp(99 * x @ w), np.full((3, 2), 0.01), False),
    ],
)
def test_linear_models_are_recognised(apply_fn, params, expected):
    x, y = np.random.default_rng(0).normal(size=(9, 3)) + 3, np.zeros(9, int)
    assert is_linear(jax_problem(apply_fn, params, (x, y), "categorical")) is expected


def test_the_last_layer_alone_is_a_linear_model():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.integers(3, size=30)
    result = ns.log_evidence(
        network,
        network_params(3),
        (x, y),
        prior_precision=1.0,
        select=lambda path: path == "c",
        at="map",
    )
    assert result.kind is ns.Kind.LINEAR
    assert result.odds is not None


def test_a_kink_is_a_minimum_and_is_said():
    """nll = 10 |w| - 10 w^2/(1 + w^2), least at 0, beside which it curves downwards."""
    data = np.ones((1, 1)), np.zeros(1)
    found = ns.map_estimate(
        lambda w, x: 10 * (jnp.abs(w) - w**2 / (1 + w**2)) * x,
        np.array([0.3]),
        data,
        prior_precision=1.0,
        likelihood=lambda f, y: f[:, 0],
    )
    assert abs(found.params[0]) < 0.01
    assert found.lowest_eigenvalue < -10
    assert found.status is not ns.MapStatus.SADDLE
    assert found.kinked
    assert any("lies on kinks" in note for note in found.notes)


def test_a_prior_by_layer_and_the_map_alternate_until_both_stand_still():
    """Against the closed form of two groups of coefficients, each with its own spread."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 12))
    true = np.concatenate([3 * rng.normal(size=6), 0.2 * rng.normal(size=6)])
    y = x @ true + rng.normal(size=80)

    def two_layers(params, x):
        return x[:, :6] @ params["a"]["w"] + x[:, 6:] @ params["b"]["w"]

    def closed(precisions):
        return log_density(x, y, 1.0, np.repeat([precisions["a"], precisions["b"]], 6))

    params = {"a": {"w": np.ones(6)}, "b": {"w": np.ones(6)}}
    chosen = ns.log_evidence(
        two_layers, params, (x, y), prior_precision="per_layer", likelihood="gaussian", at="map"
    )
    best = chosen.prior_precision
    assert chosen.log_evidence == pytest.approx(closed(best), rel=1e-6)
    assert best["b"] > 10 * best["a"]
    for name, value in best.items():
        for factor in (1.3, 1 / 1.3):
            assert closed(best | {name: value * factor}) < closed(best)


class TestMemorisedRandomLabels:
    """The deep version of figure 2, small: a network of rectifiers that fits whatever it is given.

    It is not believed where training left it, and at the MAP E says that it is worth nothing.
    """

    @pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
    @pytest.mark.parametrize("labels", ["true", "random"])
    def test_e_at_the_point_and_at_the_map(self, labels):
        digits = load_digits()
        x, y = digits.x_train[:100], digits.y_train[:100]
        if labels == "random":
            y = np.random.default_rng(0).integers(10, size=100)
        net = ns.DenseNetwork((64, 50, 10))
        trained = ns.train(
            net,
            net.init(0),
            (x, y),
            learning_rate=0.1,
            momentum=0.9,
            batch_size=50,
            steps=3000,
            evaluate_at="final",
        )
        assert trained.final.train_accuracy == 1.0
        at_point = ns.log_evidence(net, trained.params, (x, y), prior_precision="auto", at="point")
        assert at_point.E < 0  # whatever the labels were
        assert at_point.kind is ns.Kind.NEIGHBOURHOOD
        checked = ns.log_evidence(net, trained.params, (x, y), prior_precision="auto")
        assert checked.E is None
        assert checked.verdict is None
        at_map = ns.log_evidence(net, trained.params, (x, y), prior_precision=1.0, at="map")
        assert at_map.map.half_decrement < 0.5
        assert at_map.map.further_fall < 0.5  # on kinks, where another CPU ends elsewhere
        assert at_map.map.cost < at_map.map.start_cost - 50
        assert at_map.kind is ns.Kind.ONE_MODE
        assert at_map.odds is None
        assert (at_map.E > 0) == (labels == "random")
        assert abs(at_map.E) > 10


def every_pair(first, second, third):
    """All combinations; in the usual run each pair of the first and the second, with one third."""
    return [
        pytest.param(a, b, c, marks=[] if (i + j) % len(third) == k else pytest.mark.long)
        for i, a in enumerate(first)
        for j, b in enumerate(second)
        for k, c in enumerate(third)
    ]


class TestEstimatedNoise:
    """ns.gaussian("estimate") at the MAP: of the least squares, whatever start and prior."""

    def problem(self, scale=1.0):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(200, 3)) * np.array([1.0, 1.0, scale])
        y = x @ np.array([3.0, -2.0, 1.0 / scale]) + 0.5 * rng.normal(size=200)
        best = np.linalg.lstsq(x, y, rcond=None)[0]
        return x, y, best, 200 / ((y - x @ best) ** 2).sum()

    @pytest.mark.parametrize(
        ("start", "prior", "scale"),
        every_pair(["zeros", "far", "best"], [1e-3, 1.0, 300.0], [1.0, 1e-4]),
    )
    def test_against_the_closed_form(self, start, prior, scale):
        x, y, best, noise = self.problem(scale)
        params = {"zeros": np.zeros(3), "far": np.full(3, 7.0), "best": best}[start]
        found = ns.log_evidence(
            linear,
            params,
            (x, y),
            prior_precision=prior,
            likelihood=ns.gaussian("estimate"),
            at="map",
        )
        exact = log_density(x, y, noise, np.full(3, prior))
        assert found.log_evidence == pytest.approx(exact, abs=1e-3)
        assert f"noise precision {noise:.4g} is that of largest likelihood, from" in found.notes[0]

    def test_at_given_parameters_it_is_said_so(self):
        x, y, best, _ = self.problem()
        found = ns.log_evidence(
            linear, best, (x, y), prior_precision=1e-3, likelihood=ns.gaussian("estimate")
        )
        assert "is that of largest likelihood at these parameters" in found.notes[0]

    @pytest.mark.parametrize(
        ("likelihood", "settings", "prior"),
        every_pair(
            ["gaussian", ns.gaussian(3.0), ns.gaussian("estimate")],
            [{}, {"conditional_on": 20}],
            [1e-2, 30.0],
        ),
    )
    def test_a_model_that_is_the_null_model(self, likelihood, prior, settings):
        """The same data and the same noise, so that nothing is left between them."""
        rng = np.random.default_rng(0)
        y = np.r_[5 + 0.1 * rng.normal(size=100), 5 + 2 * rng.normal(size=100)]
        found = ns.log_evidence(
            lambda w, x: jnp.zeros(len(x)) + w[0],
            np.array([4.0]),
            (np.zeros((200, 1)), y),
            prior_precision=prior,
            likelihood=likelihood,
            at="map",
            **settings,
        )
        assert abs(found.E) < 1e-4

    def test_a_fit_without_residuals_is_refused(self):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(5, 20)), rng.normal(size=5)
        with pytest.raises(ns.InputError, match=r"residuals .*: give ns.gaussian\(noise_precision"):
            ns.map_estimate(
                linear,
                np.zeros(20),
                (x, y),
                prior_precision=1.0,
                likelihood=ns.gaussian("estimate"),
            )


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize("method", ["dense", "dual", "lanczos", "kfac", "diagonal"])
def test_what_is_known_is_not_computed_again(method, monkeypatch):
    """No method but the one asked for, no second choice of it, and the nll of one pass."""
    from collections import Counter

    from noisescale.evidence import jax_problem as problems
    from noisescale.evidence import laplace
    from noisescale.evidence.preflight import METHODS

    counts = Counter()

    def counted(place, name, key):
        function = getattr(place, name)

        def wrapped(*args, **kwargs):
            counts[key] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(place, name, wrapped)

    for name, module in METHODS.items():
        counted(module, "term", name)
    counted(problems, "nll_and_gradient", "nll")
    counted(laplace, "preflight", "preflight")
    counted(descent_to_the_map, "preflight", "preflight")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)), rng.integers(0, 2, 40)
    net = ns.DenseNetwork((4, 3, 2))
    net_params = net.init(0)
    found = ns.log_evidence(
        net, net_params, (x, y), prior_precision=3.0, method=method, at="map", max_probes=4
    )
    assert found.map.status is ns.MapStatus.MAP
    assert counts[method] >= 1
    if method not in ("dense", "dual"):  # which see to the decrement as well, at each look
        assert counts[method] == 1
    assert set(counts) == {method, "nll", "preflight"}
    assert (counts["nll"], counts["preflight"]) == (1, 1)


class TestConditional:
    """What the difference of two evidences carries of either."""

    def given(self, **changes):
        x, y, noise, L = regression()
        settings = {"prior_precision": L, "likelihood": ns.gaussian(noise), "at": "map"}
        return ns.log_evidence(
            linear, np.full(5, 7.0), (x, y), conditional_on=4, **settings | changes
        )

    def test_it_is_not_refined_as_if_it_were_that_of_all(self):
        with pytest.raises(ns.InputError, match="conditional"):
            self.given().refine(100)

    def test_the_chosen_prior_is_said_to_be_of_the_first(self):
        assert self.given(prior_precision="auto").notes[0].startswith("by the first 4 examples, ")

    @pytest.mark.parametrize("worse", ["first", "every"])
    def test_the_worse_of_the_two_decides(self, worse):
        from dataclasses import replace

        from noisescale.evidence.conditional import conditional_evidence

        x, y, *_ = regression()
        clean = ns.log_evidence(
            linear, np.zeros(5), (x, y), prior_precision=1.0, likelihood="gaussian", at="map"
        )
        bad = replace(
            clean,
            kind=ns.Kind.NEIGHBOURHOOD,
            log_evidence_full=None,
            n_negative=2,
            negative_weight=3.0,
            newton_decrement=5.0,
            gradient_norm=9.0,
        )
        parts = [bad, clean] if worse == "first" else [clean, bad]  # the first is computed first
        found = conditional_evidence(
            jax_problem(linear, np.zeros(5), (x, y), "gaussian"),
            4,
            1.0,
            lambda *_, **__: parts.pop(0),
            {},
        )
        assert found.kind is ns.Kind.NEIGHBOURHOOD
        assert found.odds is None
        assert (found.n_negative, found.negative_weight) == (2, 3.0)
        assert (found.newton_decrement, found.gradient_norm) == (5.0, 9.0)
