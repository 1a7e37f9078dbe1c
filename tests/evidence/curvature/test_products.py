import ast
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.curvature import products
from noisescale.evidence.curvature.gauss_newton import dense_ggn
from noisescale.evidence.curvature.hessian import dense_hessian
from noisescale.evidence.curvature.model import Model, activations
from noisescale.evidence.curvature.products import curvature_operator
from noisescale.likelihood import LIKELIHOODS

NETWORK = ns.DenseNetwork((6, 5, 4, 3))


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(37, 6)).astype(np.float32)
    y = rng.integers(3, size=37).astype(np.int32)
    return Model.at(NETWORK, NETWORK.init(0), x, y, LIKELIHOODS["categorical"])


@pytest.mark.parametrize(
    ("curvature", "dense"), [("ggn", lambda m: dense_ggn(m)[0]), ("hessian", dense_hessian)]
)
@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-12), ("float32", 2e-6)])
def test_products_are_those_of_the_dense_matrix(model, curvature, dense, precision, tolerance):
    operator = curvature_operator(model, curvature, precision=precision)
    H = dense(model)
    found = operator @ np.eye(model.n_params)
    np.testing.assert_allclose(found, H, atol=tolerance * np.abs(H).max())
    v = np.random.default_rng(1).normal(size=model.n_params)
    np.testing.assert_allclose(operator @ v, H @ v, atol=10 * tolerance * np.abs(H @ v).max())


def test_blocks_of_examples_add_up(model, monkeypatch):
    whole = curvature_operator(model, precision="float64") @ np.eye(model.n_params)
    monkeypatch.setattr(products, "_BLOCK_BYTES", 1 << 14)  # a block is then a few rows
    assert len(list(products.row_blocks(model, model.n_params, "float64"))) > 3
    parts = curvature_operator(model, precision="float64") @ np.eye(model.n_params)
    np.testing.assert_allclose(parts, whole, atol=1e-12 * np.abs(whole).max())


def test_a_row_counts_all_that_is_computed_on_its_way(model):
    hidden = sum(NETWORK.widths[1:])
    assert hidden <= activations(model) <= 5 * hidden  # products, sums with biases, relus

    def twice(w, x):
        return NETWORK(w, x) + NETWORK(w, 2 * x)

    other = Model.at(twice, NETWORK.init(0), model.x, model.y, LIKELIHOODS["categorical"])
    assert activations(other) > 1.9 * activations(model)


def test_nothing_flips_the_precision_of_the_session(model):
    curvature_operator(model, precision="float64") @ np.ones(model.n_params)
    assert not jax.config.jax_enable_x64


SHARDED = """
import jax, numpy as np, noisescale as ns
from noisescale.evidence.curvature.model import Model
from noisescale.evidence.curvature.products import curvature_operator, spread
from noisescale.likelihood import LIKELIHOODS
assert jax.local_device_count() == 2
network = ns.DenseNetwork((6, 5, 3))
rng = np.random.default_rng(0)
x = rng.normal(size=(40, 6))
assert len(spread(x).sharding.device_set) == 2
model = Model.at(network, network.init(0), x, rng.integers(3, size=40), LIKELIHOODS["categorical"])
operator = curvature_operator(model, precision="float64")
print(repr((operator @ np.arange(model.n_params) / 10).tolist()))
"""


def test_several_devices_give_the_same_products():
    flags = "--xla_force_host_platform_device_count=2"
    told = subprocess.run(
        [sys.executable, "-c", SHARDED],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    network = ns.DenseNetwork((6, 5, 3))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6))
    one = Model.at(
        network, network.init(0), x, rng.integers(3, size=40), LIKELIHOODS["categorical"]
    )
    alone = curvature_operator(one, precision="float64") @ np.arange(one.n_params) / 10
    np.testing.assert_allclose(ast.literal_eval(told.stdout), alone, rtol=1e-12, atol=1e-12)
