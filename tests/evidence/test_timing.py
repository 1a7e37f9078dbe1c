"""Predictions of time: a clock that goes as far as is counted must be foretold exactly."""

import numpy as np
import pytest

from noisescale.evidence import timing
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam import bounds, dense, diagonal, dual, kfac, lanczos
from noisescale.evidence.occam.outlook import outlook
from noisescale.evidence.occam.row_timing import sample_rows
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.problem import Facts, Problem
from noisescale.evidence.timing import extrapolated, fastest, timed, whole
from oracles.models import NETWORK, as_function, data, params_of


class Clock:
    """Seconds that pass when something says so."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(timing, "clock", found)
    monkeypatch.setattr(timing, "_SHORT", 0.0)  # what is short is looked at like the rest
    monkeypatch.setattr(timing, "arithmetic_rate", lambda: 1e30)
    for module in (bounds, dense, dual, kfac):
        monkeypatch.setattr(module, "arithmetic_rate", lambda: 1e30)
    return found


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize(("a_call", "each"), [(0.0, 1e-6), (2e-3, 1e-5), (0.0, 0.5), (1e-4, 1e-9)])
def test_the_whole_follows_from_parts(clock, degree, a_call, each):
    """Neither what a call costs nor what is done once is taken for work, and little is measured."""
    asked = []

    def part(size):
        def run():
            clock.now += a_call + each * size**degree + (50.0 if not asked else 0.0)
            asked.append(size)

        return run

    n = 10**6
    found = whole(part, n, first=36, degree=degree)
    assert found == pytest.approx(a_call + each * float(n) ** degree, rel=1e-6)
    spent = clock.now - 50
    assert spent <= max(1.0, 0.05 * found)


@pytest.mark.parametrize(("a_call", "n_parts"), [(1e-3, 1), (0.1, 3)])
def test_measuring_ends_when_the_whole_is_short(clock, monkeypatch, a_call, n_parts):
    """As soon as parts show that it is a matter of a second or two."""
    monkeypatch.setattr(timing, "_SHORT", 2.0)
    asked = []

    def part(size):
        def run():
            clock.now += a_call + 1e-6 * size
            asked.append(size)

        return run

    assert a_call <= whole(part, 1_000, first=36) <= 2.0
    assert len(set(asked)) <= n_parts
    assert len(asked) > 1 or n_parts == 1


def test_parts_are_whole_blocks(clock):
    """A program is compiled for a block, and one for what all there is leaves over."""
    asked = []

    def part(size):
        def run():
            clock.now += 1e-4 * size + (9.0 if size % 48 and size not in asked else 0.0)
            asked.append(size)

        return run

    assert whole(part, 1_000, first=48, step=48) == pytest.approx(0.1)
    assert all(size % 48 == 0 for size in asked)
    asked.clear()
    assert whole(part, 100, first=48, step=48) == pytest.approx(0.01)
    assert set(asked) == {48, 100}


def test_what_is_short_is_tried_again(clock):
    times = iter([9.0, 0.003, 0.001, 0.002, 7.0, 0.5])

    def run():
        clock.now += next(times)
        return "value"

    assert timed(run) == (pytest.approx(0.001), "value")  # the first is not counted
    assert fastest(run) == pytest.approx(7.0)  # long enough for once
    assert extrapolated([(1.0, 3.0)], 10.0) == 30.0  # nothing is known of what a call costs


class Counting:
    """A problem whose clock goes by the rows it makes and by what a call costs."""

    a_call, a_row = 0.004, 1e-4

    def __init__(self, problem: Problem, clock: Clock) -> None:
        self.problem, self.clock = problem, clock

    def __getattr__(self, name):
        found = getattr(self.problem, name)
        if name not in ("rows", "squared_rows", "kronecker", "squared_norms", "operator"):
            return found

        def counted(*args):
            rows = args[-1]
            self.clock.now += self.a_call + self.a_row * len(rows)
            return found(*args)

        return counted


@pytest.mark.parametrize("module", [kfac, diagonal])
def test_seconds_grow_as_the_work_does(clock, module):
    """A call's own cost does not grow with N; the old block of some rows took it for theirs."""
    found = []
    for n in (500, 4_000):
        problem = jax_problem(NETWORK, params_of(NETWORK), data(n), "categorical")
        facts = problem.facts()
        counting = Counting(problem, clock)
        prior = problem.w * 0 + 1
        found.append(module.seconds(counting, facts, "ggn", prior, Accuracy()))
        assert found[-1] == pytest.approx(0.004 + 1e-4 * facts.rows, rel=1e-6)
    assert found[1] / found[0] == pytest.approx(7.8, abs=0.2)


def test_rows_of_a_function_are_counted_by_blocks(clock):
    """Every block costs its call."""
    problem = jax_problem(as_function, params_of(NETWORK), data(600), "categorical")
    facts = problem.facts()
    counting = Counting(problem, clock)
    predicted = dense.seconds(counting, facts, "ggn", problem.w * 0 + 1, Accuracy())
    blocks = facts.rows / problem.rows_at_once()
    assert predicted == pytest.approx(0.004 * blocks + 1e-4 * facts.rows, rel=0.05)


@pytest.mark.parametrize("n", [30, 300])
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize(("scale", "tolerance"), [(0.3, None), (1.0, None), (1.0, 0.3)])
def test_lanczos_foresees_its_products(n, curvature, scale, tolerance):
    """Within a factor of two of those that it then takes, whatever the spectrum."""
    accuracy = Accuracy(tolerance)
    problem = jax_problem(NETWORK, params_of(NETWORK, scale=scale), data(n), "categorical")
    L = np.full(len(problem.w), 1.0)

    def operator(precision):
        return lanczos._in_prior_units(problem.operator(curvature, precision), L)

    expected = outlook(operator, len(L), accuracy, curvature == "ggn")
    found = lanczos.term(problem, L, np.zeros(len(L)), curvature, accuracy).details
    ratio = expected.n_probes * expected.n_steps / (found["n_probes"] * found["n_steps"])
    assert 0.5 <= ratio <= 2.0


def test_rows_to_measure_with_are_spread_where_blocks_are():
    """Of sequences with a thousand rows each: a block has some of several."""
    facts = Facts(p=10, N=4, C=3, rows=4_000, pass_flops=1.0)
    assert set(sample_rows(facts, 12).examples) == {0}
    assert sample_rows(facts, 12, among=3).examples.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert max(sample_rows(facts, 12, among=9).examples) == 3  # there are no more
    few = Facts(p=10, N=40, C=3, rows=80, pass_flops=1.0)
    assert sample_rows(few, 6, among=2).examples.tolist() == [0, 0, 1, 1, 2, 2]
