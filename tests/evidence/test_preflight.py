import tracemalloc

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.jax_problem import jax_problem
from noisescale.evidence.occam.term import Accuracy
from noisescale.evidence.preflight import METHODS, preflight
from noisescale.evidence.problem import Facts, Weight
from oracles.models import NETWORK, as_function, data, params_of


@pytest.mark.parametrize(("n", "method"), [(1_000, "dual"), (2_000, "dual"), (20_000, "lanczos")])
def test_the_choice_goes_by_counted_operations(n, method):
    facts = Facts(p=50_000, N=n, C=10, rows=9 * n, pass_flops=1e5)
    assert preflight(facts, "auto", "ggn").method == method


def test_costs_are_bytes_and_operations(monkeypatch):
    facts = Facts(p=300, N=5_000, C=10, rows=45_000, pass_flops=600.0)
    plan = preflight(facts, "auto", "ggn")
    assert plan.reason == "the fastest exact method that fits"
    dense = plan.costs[0]
    assert dense.work == 5_000 * 10 * (3 * 600 + 300**2) + 300**3 / 3
    assert str(dense).endswith(" MiB, 4.6e+09 operations")
    monkeypatch.setattr("noisescale.evidence.preflight._PATIENCE", 1e9)
    plan = preflight(facts, "auto", "ggn")
    assert plan.method == "lanczos"
    assert plan.reason == "exact methods would take 4.6e+09 operations"


def test_auto_goes_by_what_fits():
    def facts(p, N, weights=()):
        return Facts(p=p, N=N, C=10, rows=9 * N, pass_flops=2.0 * p, weights=weights)

    assert preflight(facts(300, 5_000), "auto", "ggn").method == "dense"
    paper = preflight(facts(636_010, 1_000, (Weight(784, 800), Weight(800, 10))), "auto", "ggn")
    assert paper.method == "dual"
    assert "dense: 8.83 TiB" in str(paper)
    assert preflight(facts(636_010, 1_000), "auto", "hessian").method == "lanczos"
    assert preflight(facts(2_000_000, 60_000), "auto", "ggn").method == "lanczos"
    with pytest.raises(ns.InputError, match="'dense' would take .* TiB.* would fit is .*lanczos"):
        preflight(facts(10**6, 1_000), "dense", "ggn")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior_precision": None}, "an unpenalised parameter has no evidence"),
        ({"prior_precision": "best"}, "prior_precision must be one of auto, per_layer"),
        ({"method": "lanczos", "tolerance": 0.0}, "tolerance=0 asks for an exact value"),
        ({"method": "dual", "tolerance": -1}, "tolerance must be a finite number >= 0, got -1"),
        ({"method": "lanczos", "max_probes": 1}, "max_probes must be at least 2"),
        ({"method": "kfac", "curvature": "hessian"}, "method='kfac' needs curvature='ggn'"),
        ({"prior_precision": "per_layer", "method": "lanczos"}, "needs curvature='ggn' with"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(NETWORK, params_of(NETWORK), data(), **{"prior_precision": 1.0} | settings)


def test_what_is_listed_can_be_done():
    """Layers are known of a dense network alone, so kfac is offered to nothing else."""
    known, unknown = (
        jax_problem(model, params_of(NETWORK), data(), "categorical").facts()
        for model in (NETWORK, as_function)
    )
    listed = [[c.method for c in preflight(f, "auto", "ggn").costs] for f in (known, unknown)]
    assert listed[0] == ["dense", "dual", "lanczos", "kfac", "diagonal"]
    assert listed[1] == ["dense", "dual", "lanczos", "diagonal"]
    with pytest.raises(ns.InputError, match="method='kfac' needs layers that multiply"):
        preflight(unknown, "kfac", "ggn")


def test_rows_that_do_not_fit_are_streamed_and_cost_more():
    def facts(N):
        return Facts(p=10**6, N=N, C=10, rows=9 * N, pass_flops=2e6)

    fitting, streamed = (METHODS["dual"].cost(facts(N), "ggn") for N in (100, 10_000))
    assert fitting[0] > 8 * 900 * 10**6  # the rows are held
    assert streamed[0] == 8 * 90_000**2  # the kernel alone is


def test_layers_make_the_kernel_cheaper():
    weights = (Weight(784, 800), Weight(800, 10))
    with_layers, without = (
        METHODS["dual"].cost(
            Facts(p=636_010, N=200, C=10, rows=1_800, pass_flops=1.3e6, weights=known), "ggn"
        )
        for known in (weights, ())
    )
    assert with_layers[1] < 0.05 * without[1]
    assert with_layers[0] < 0.05 * without[0]
    # A convolution's positions make Gram matrices dearer than its rows.
    patches = Weight(400, 32, positions=196)
    assert patches.kernel_flops(9) > 2 * patches.size


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos"])
def test_memory_is_what_numpy_then_allocates(method):
    """Within a factor of two, where it is the method's own and not a framework's."""
    network = ns.DenseNetwork((60, 16, 10))
    problem = jax_problem(network, params_of(network), data(150, 60, 10), "categorical")
    L = np.ones(len(problem.w))
    _, gradient = problem.nll_and_gradient()
    settings = (problem, L, gradient + L * problem.w, "ggn", Accuracy())
    METHODS[method].term(*settings)  # programs are compiled, which is not counted
    tracemalloc.start()
    try:
        METHODS[method].term(*settings)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    predicted, _ = METHODS[method].cost(problem.facts(), "ggn")
    assert 0.5 <= predicted / peak <= 2.0


def test_an_example_of_thousands_of_rows_takes_no_more_than_a_block():
    """A sequence of 32 places and 65 characters has 2,048 rows, which go in parts."""
    facts = Facts(
        p=350_000,
        N=20,
        C=32 * 65,
        rows=20 * 2_048,
        pass_flops=2.3e7,
        weights=(Weight(96, 288, 32),),
        activations=250_000,
    )
    (kfac,) = (c for c in preflight(facts, "kfac", "ggn").costs if c.method == "kfac")
    coefficients = 8 * facts.rows * facts.C
    assert kfac.memory < coefficients + 2**28
