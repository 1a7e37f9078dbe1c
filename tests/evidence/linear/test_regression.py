import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import noisescale as ns
from noisescale.data import load_digits
from noisescale.evidence.linear.path import lambda_path, maximise_evidence
from noisescale.evidence.linear.regression import fit_map, linear_problem, logit_covariance

SHAPES = {"N > p": (60, 6), "p > N": (15, 80), "p >> N": (12, 900)}


def make(n_classes, n, d, seed=0, separation=1.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    x = rng.normal(size=(n, d)) + separation * np.eye(n_classes, d)[y]
    x[:, -1] = 0  # a feature that no example uses
    return x, y


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_map_is_scikit_learns(n_classes, shape):
    x, y = make(n_classes, *SHAPES[shape])
    fit = fit_map(linear_problem(x, y, fit_intercept=False), prior_precision=0.7)
    reference = LogisticRegression(
        C=1 / 0.7, fit_intercept=False, tol=1e-9, solver="newton-cg"
    ).fit(x, y)
    # The reference's gradient, of a mean, is below 1e-9 in each of p directions, and the curvature
    # of the sum at least 0.7: |w - w'| <= 60 sqrt(3600) 1e-9/0.7 = 5e-6.
    np.testing.assert_allclose(np.atleast_2d(fit.coef), reference.coef_, atol=5e-6)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_evidence_is_that_of_the_dense_method(n_classes, shape):
    """Reduced coordinates and softmax contrasts against p x p (or N C x N C) matrices."""
    x, y = make(n_classes, *SHAPES[shape])
    fit = fit_map(linear_problem(x, y), prior_precision=0.7, intercept_precision=0.02)
    coef = np.atleast_2d(fit.coef).T
    params = {"w": coef, "b": np.atleast_1d(fit.intercept)}
    reference = ns.log_evidence(
        lambda p, x: x @ p["w"] + p["b"],
        params,
        (x, y),
        prior_precision={"w": 0.7, "b": 0.02},
        likelihood="bernoulli" if n_classes == 2 else "categorical",
    )
    assert fit.log_evidence == pytest.approx(reference.log_evidence, rel=1e-10)
    assert fit.log_occam_factor == pytest.approx(reference.log_occam_factor, rel=1e-9)
    assert pytest.approx(reference.E, rel=1e-9) == fit.E
    assert reference.newton_decrement < 1e-9


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prior_precision", [1e-8, 1e6])
def test_newton_converges_at_the_extremes(n_classes, shape, prior_precision):
    x, y = make(n_classes, *SHAPES[shape], separation=20.0)
    fit = fit_map(linear_problem(x, y), prior_precision=prior_precision)
    assert 0 <= fit.newton_decrement <= 1e-10
    if prior_precision < 1:
        assert fit.scores(x, y)[0] == 1.0
        assert fit.nll < 1e-3


def test_a_separable_real_problem_at_a_vanishing_prior(mnist):
    data = ns.data.balanced_binary(0, 1, n_train=200, n_test=2, data=mnist)
    problem = linear_problem(data.x_train, data.y_train)
    fit = fit_map(problem, prior_precision=1e-8)
    assert fit.newton_decrement <= 1e-10
    assert fit.nll + fit.penalty < 1e-4  # so small a cost, and yet the determinant is right
    warm = lambda_path(problem, np.logspace(-8, 2, 21))[0]
    assert warm.log_evidence == pytest.approx(fit.log_evidence, rel=1e-8)
    assert fit.scores(data.x_train.astype(float), data.y_train)[0] == 1.0


def test_a_warm_start_changes_nothing():
    x, y = make(3, 40, 10)
    problem = linear_problem(x, y)
    grid = np.logspace(-6, 4, 11)
    warm = lambda_path(problem, grid[::-1])
    cold = [fit_map(problem, prior_precision=lam) for lam in grid[::-1]]
    assert [fit.prior_precision for fit in warm] == grid[::-1].tolist()
    for a, b in zip(warm, cold, strict=True):
        assert a.log_evidence == pytest.approx(b.log_evidence, rel=1e-9)


def test_scores_and_margins_are_their_definitions():
    x, y = make(2, 30, 5)
    fit = fit_map(linear_problem(x, y), prior_precision=0.3)
    z = x @ fit.coef + fit.intercept
    sign = 2 * y - 1
    assert fit.scores(x, y)[0] == np.mean((z > 0) == y)
    assert fit.scores(x, y)[1] == pytest.approx(np.log1p(np.exp(-sign * z)).mean())
    assert fit.scores(x, y)[1] * 30 == pytest.approx(fit.nll)
    assert fit.mean_margin(x, y) == pytest.approx((sign * z).mean() / np.linalg.norm(fit.coef))
    x, y = make(3, 30, 5)
    fit = fit_map(linear_problem(x, y), prior_precision=0.3)
    z = x @ fit.coef.T + fit.intercept
    nearest = [
        min(
            (z[i, y[i]] - z[i, k]) / np.linalg.norm(fit.coef[y[i]] - fit.coef[k])
            for k in range(3)
            if k != y[i]
        )
        for i in range(30)
    ]
    assert fit.mean_margin(x, y) == pytest.approx(np.mean(nearest))


def test_counts_are_repeats():
    x, y = make(3, 20, 4)
    counts = np.arange(20) % 4
    by_count = fit_map(linear_problem(x, y, counts=counts), prior_precision=0.5)
    repeated = fit_map(
        linear_problem(np.repeat(x, counts, axis=0), np.repeat(y, counts)), prior_precision=0.5
    )
    np.testing.assert_allclose(by_count.coef, repeated.coef, atol=1e-9)
    assert by_count.log_evidence == pytest.approx(repeated.log_evidence, rel=1e-10)
    assert pytest.approx(repeated.E, rel=1e-10) == by_count.E


@pytest.mark.parametrize("shape", ["N > p", "p > N"])
def test_predictive_variance_knows_directions_never_seen(shape):
    x, y = make(2, *SHAPES[shape])
    problem = linear_problem(x, y)
    fit = fit_map(problem, prior_precision=0.7)
    new = np.random.default_rng(5).normal(size=(9, x.shape[1]))  # uses the unused feature too
    wide, wide_new = (np.hstack([a, np.ones((len(a), 1))]) for a in (x, new))
    p = 1 / (1 + np.exp(-fit.logits(x)))
    H = wide.T @ ((p * (1 - p))[:, None] * wide) + 0.7 * np.eye(wide.shape[1])
    expected = np.einsum("ni,ij,nj->n", wide_new, np.linalg.inv(H), wide_new)
    np.testing.assert_allclose(logit_covariance(problem, fit, new), expected, rtol=1e-8)


class TestMaximum:
    def test_is_the_maximum(self):
        data = load_digits()
        problem = linear_problem(data.x_train, data.y_train)
        found = maximise_evidence(problem)
        assert found.edge is None
        best = found.fit.prior_precision
        around = lambda_path(problem, best * np.array([0.8, 0.98, 1.02, 1.25]))
        assert all(fit.log_evidence <= found.fit.log_evidence + 1e-6 for fit in around)
        # A quarter's change costs what the stated width says: (log10 ratio / std)^2 / 2 nats.
        loss = found.fit.log_evidence - around[-1].log_evidence
        assert loss == pytest.approx((np.log10(1.25) / found.log10_std) ** 2 / 2, rel=0.2)
        assert found.fit in found.path
        precisions = [fit.prior_precision for fit in found.path]
        assert precisions == sorted(precisions)

    def test_labels_without_a_pattern_end_at_the_upper_edge(self):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(40, 10))
        found = maximise_evidence(linear_problem(x, np.arange(40) % 2, fit_intercept=False))
        assert found.edge == "highest"
        assert found.fit.prior_precision == 1e6
        assert found.log10_std is None

    def test_a_narrow_range_ends_at_its_lower_edge(self):
        data = load_digits()
        problem = linear_problem(data.x_train[:200], data.y_train[:200])
        assert maximise_evidence(problem, bounds=(1e3, 1e6)).edge == "lowest"

    @pytest.mark.parametrize(
        ("bounds", "message"),
        [((1.0, 0.1), "low < high"), ((0.0, 1.0), "bounds must be a finite number above 0")],
    )
    def test_bad_bounds(self, bounds, message):
        x, y = make(2, 20, 3)
        with pytest.raises(ns.InputError, match=message):
            maximise_evidence(linear_problem(x, y), bounds=bounds)


def test_bad_input():
    x, y = make(3, 20, 4)

    def refuse(message, *data, **settings):
        with pytest.raises(ns.InputError, match=message):
            linear_problem(*data, **settings)

    refuse("one class only", x, np.zeros(20, int))
    refuse("one class only", x, y, counts=(y == 1).astype(float))
    refuse("20 examples but y has shape", x, y[1:])
    refuse("one row an example", x[:, 0], y)
    refuse("x holds NaN", np.where(x == x[3, 2], np.nan, x), y)
    refuse("y must be whole numbers", x, y + 0.5)
    refuse("none below 0", x, y - 1)
    refuse(r"labels must lie in 0..1, got 2", x, y, n_classes=2)
    refuse("counts must be 20 finite numbers", x, y, counts=np.ones(3))
    refuse("with negative or non-finite values", x, y, counts=-np.ones(20))
    problem = linear_problem(x, y)
    for value in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ns.InputError, match="a flat prior has no evidence"):
            fit_map(problem, prior_precision=value)
    with pytest.raises(ns.InputError, match="intercept_precision must be"):
        fit_map(problem, prior_precision=1.0, intercept_precision=0.0)


@pytest.mark.parametrize("prior", [1e-8, 1e-10])
def test_rank_deficient_features_keep_their_accuracy(prior):
    rng = np.random.default_rng(0)
    few = rng.normal(size=(60, 6))
    rotation = np.linalg.qr(rng.normal(size=(40, 40)))[0][:6]
    y = np.arange(60) % 2
    narrow, wide = (
        fit_map(linear_problem(x, y, fit_intercept=False), prior_precision=prior)
        for x in (few, few @ rotation)
    )
    assert wide.log_evidence == pytest.approx(narrow.log_evidence, rel=1e-9)
    assert wide.optimum.coefficients.shape == (6, 1)


def test_labels_with_gaps_are_refused():
    x, y = make(3, 20, 4)
    with pytest.raises(ns.InputError, match="leave out some of 0..7"):
        linear_problem(x, np.where(y == 2, 7, y))


def test_covariances_do_not_depend_on_the_block(monkeypatch):
    x, y = make(3, 40, 5)
    problem = linear_problem(x, y)
    fit = fit_map(problem, prior_precision=0.5)
    whole = logit_covariance(problem, fit, x)
    monkeypatch.setattr("noisescale.evidence.linear.regression._BLOCK", 1)
    np.testing.assert_allclose(logit_covariance(problem, fit, x), whole, rtol=1e-10, atol=1e-14)


def test_too_large_a_fit_says_so(monkeypatch):
    x, y = make(3, 20, 4)
    monkeypatch.setattr("noisescale.checks.memory_limit", lambda: 100.0)
    with pytest.raises(ns.InputError, match="a linear fit would take .* GiB"):
        fit_map(linear_problem(x, y), prior_precision=1.0)
