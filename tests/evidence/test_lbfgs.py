import numpy as np
import pytest
import scipy.optimize

from noisescale.evidence.lbfgs import Pairs, lbfgs


def quadratic(A, b):
    return lambda u: (0.5 * u @ A @ u - b @ u, A @ u - b)


def run(function, u, **settings):
    return list(lbfgs(function, u, *function(u), **settings))


@pytest.mark.parametrize("n_pairs", [1, 3, 5])
def test_directions_are_those_of_the_updates_one_by_one(n_pairs):
    """The compact form against H <- (I - rho s y') H (I - rho y s') + rho s s', pair by pair."""
    rng = np.random.default_rng(n_pairs)
    n, memory = 7, 3
    A = rng.normal(size=(n, n))
    A = A @ A.T + np.eye(n)
    pairs, seen = Pairs(n, memory), []
    g = rng.normal(size=n)
    for _ in range(n_pairs):
        s = rng.normal(size=n)
        y = A @ s
        g = g + y
        pairs.add(s, y, g)
        seen.append((s, y))
    s, y = seen[-1]
    H = s @ y / (y @ y) * np.eye(n)
    for s, y in seen[-memory:]:
        V = np.eye(n) - np.outer(y, s) / (s @ y)
        H = V.T @ H @ V + np.outer(s, s) / (s @ y)
    np.testing.assert_allclose(pairs.direction(g), -H @ g, rtol=1e-9, atol=1e-12)


def test_a_quadratic_cost():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(20, 20))
    A, b = A @ A.T + np.eye(20), rng.normal(size=20)
    points = run(quadratic(A, b), np.zeros(20))
    # To the rounding of the gradient, not of the value, whose root it would be.
    np.testing.assert_allclose(points[-1][0], np.linalg.solve(A, b), atol=1e-12)
    values = np.array([value for _, value, _ in points])
    assert all(np.diff(values) <= 1e-15 * abs(values[:-1]))


def test_rosenbrocks_valley():
    def function(u):
        return scipy.optimize.rosen(u), scipy.optimize.rosen_der(u)

    points = run(function, np.tile([-1.2, 1.0], 5))
    np.testing.assert_allclose(points[-1][0], 1, atol=1e-5)
    for _, value, slope in points:
        assert np.isfinite(value)
        assert np.isfinite(slope).all()


def test_every_step_meets_the_conditions_of_wolfe_also_at_kinks():
    def function(u):  # its minimum lies on kinks of both kinds
        return float(np.abs(u).sum() + 0.5 * u @ u), np.sign(u) + u

    u = np.array([3.0, -2.0, 0.7, 0.1])
    value, slope = function(u)
    for there, after, slope_there in lbfgs(function, u, value, slope):
        step = there - u
        assert after <= value + 1e-4 * slope @ step
        assert slope_there @ step >= 0.9 * slope @ step
        u, value, slope = there, after, slope_there
    assert value < 1e-3


def test_it_turns_back_from_where_there_is_no_value():
    def function(u):
        if abs(u[0]) > 2:
            return 1e150, u.copy()
        return float(np.cosh(u[0])), np.sinh(u)

    assert run(function, np.array([1.9]))[-1][0][0] == pytest.approx(0, abs=1e-6)


def test_it_ends_at_a_minimum_and_where_nothing_falls():
    assert run(lambda u: (float(u @ u), 2 * u), np.zeros(3)) == []
    assert run(lambda u: (0.0, np.ones(3)), np.zeros(3)) == []  # a gradient that lies
