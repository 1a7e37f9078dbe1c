import ast
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.curvature import per_example, products
from noisescale.evidence.curvature.gauss_newton import dense_ggn
from noisescale.evidence.curvature.hessian import dense_hessian
from noisescale.evidence.curvature.model import Model, activations, pass_flops
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


def steps(p, x):
    h = x @ p["w"]
    for k in range(30):
        h = jnp.tanh(h @ p["u"][k])
    return h


def scanned(p, x, body=lambda h, u: (jnp.tanh(h @ u), None), **options):
    return jax.lax.scan(body, x @ p["w"], p["u"], **options)[0]


def scanned_twice(p, x):
    def inner(h, part):
        return jax.lax.scan(lambda h, u: (jnp.tanh(h @ u), None), h, part)[0], None

    return jax.lax.scan(inner, x @ p["w"], p["u"].reshape(5, 6, 3, 3))[0]


own_jvp, own_vjp = jax.custom_jvp(steps), jax.custom_vjp(steps)
own_jvp.defjvp(lambda primals, tangents: jax.jvp(steps, primals, tangents))
own_vjp.defvjp(lambda *given: jax.vjp(steps, *given), lambda pull_back, g: pull_back(g))
SAME = {
    "jit": jax.jit(steps),
    "jit of jit": jax.jit(jax.jit(steps)),
    "checkpoint": jax.checkpoint(steps),
    "jit of checkpoint": jax.jit(jax.checkpoint(steps)),
    "custom_jvp": own_jvp,
    "custom_vjp": own_vjp,
    "vmap": lambda p, x: jax.vmap(lambda row: steps(p, row))(x),
    "scan": scanned,
    "scan, unrolled": lambda p, x: scanned(p, x, unroll=7),
    "scan, unrolled altogether": lambda p, x: scanned(p, x, unroll=True),
    "scan of scan": scanned_twice,
    "scan of checkpoint": lambda p, x: scanned(
        p, x, jax.checkpoint(lambda h, u: (jnp.tanh(h @ u), None))
    ),
    "cond": lambda p, x: jax.lax.cond(True, steps, lambda p, x: x[:, :3], p, x),
    "while": lambda p, x: jax.lax.while_loop(
        lambda state: state[0] < 1, lambda state: (state[0] + 1, steps(p, x)), (0, x[:, :3])
    )[1],
}


@pytest.mark.parametrize("name", SAME)
def test_what_a_pass_takes_does_not_depend_on_how_it_is_written(name, monkeypatch):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(20, 3)), "u": rng.normal(size=(30, 3, 3))}
    x, y = rng.normal(size=(50, 20)), rng.integers(3, size=50)
    plain, other = (
        Model.at(f, params, x, y, LIKELIHOODS["categorical"]) for f in (steps, SAME[name])
    )
    assert activations(plain) == 30 * 6 + 3
    assert activations(other) == pytest.approx(activations(plain), rel=0.05)
    assert pass_flops(other) == pytest.approx(pass_flops(plain), rel=0.2)
    monkeypatch.setattr(products, "_BLOCK_BYTES", 1 << 16)
    rows = [len(list(products.row_blocks(model, 1, "float64"))) for model in (plain, other)]
    assert rows[0] == pytest.approx(rows[1], abs=1)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_gradients_of_examples_count_what_is_computed_on_their_way(wrap, monkeypatch):
    """Of few parameters behind 3,000 activations each of them takes a block of its own."""
    spread = np.random.default_rng(0).normal(size=(4, 1000))

    def wide(p, x):
        h = jnp.tanh(x @ spread + p["s"]).reshape(len(x), 4, -1)
        return h.mean(-1) @ p["w"]

    x, y = np.ones((6, 4)), np.arange(6) % 3
    params = {"s": np.zeros(1), "w": np.ones((4, 3))}
    model = Model.at(wrap(wide), params, x, y, LIKELIHOODS["categorical"])
    monkeypatch.setattr("noisescale.training.per_example._BLOCK_BYTES", 4 * 4 * 3500)
    sizes, sums = [], per_example.sums
    monkeypatch.setattr(
        per_example, "sums", lambda *given: sizes.append(len(given[-1])) or sums(*given)
    )
    per_example.gradient_moments(model, "float32")
    assert sizes == [1] * 6


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
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
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
