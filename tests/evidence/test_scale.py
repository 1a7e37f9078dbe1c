"""Evidence at scale: the dual kernel, Lanczos quadrature, approximations, chosen priors."""

from decimal import Decimal, localcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence import problem as problems
from noisescale.evidence.curvature.model import output_root
from noisescale.evidence.laplace import jax_problem
from noisescale.evidence.occam import dual as kernels
from noisescale.evidence.preflight import Facts, preflight

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")

NETWORK = ns.DenseNetwork((8, 7, 6, 4))


def data(n=40, d=8, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, (x[:, :classes] + 0.3 * rng.normal(size=(n, classes))).argmax(axis=1)


def params_of(network, seed=0, scale=1.0):
    return jax.tree.map(lambda leaf: scale * np.asarray(leaf, float) + 0.01, network.init(seed))


def convolutional(params, x):
    """4 x 4 images, a 3 x 3 convolution with 3 channels, average pooling, a linear layer."""
    images = x.reshape(-1, 4, 4, 1)
    z = jax.lax.conv_general_dilated(
        images, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    pooled = jnp.tanh(z + params["bias"]).reshape(-1, 2, 2, 2, 2, 3).mean(axis=(2, 4))
    return pooled.reshape(len(x), -1) @ params["head"]


def residual(params, x):
    h = x @ params["in"]
    h = h + jnp.tanh(h @ params["a"]) @ params["b"]
    return h @ params["out"]


def as_function(params, x):
    """The network again, as a function that the fast path cannot see into."""
    return NETWORK(params, x)


def draw(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}


CASES = {
    "dense network": (NETWORK, params_of(NETWORK), data()),
    "softmax regression": (
        ns.softmax_regression(8, 4),
        params_of(ns.softmax_regression(8, 4)),
        data(),
    ),
    "convolutional": (
        convolutional,
        draw({"kernel": (3, 3, 1, 3), "bias": (3,), "head": (12, 3)}),
        data(30, 16, 3),
    ),
    "residual": (
        residual,
        draw({"in": (8, 5), "a": (5, 5), "b": (5, 5), "out": (5, 4)}),
        data(),
    ),
}


@pytest.fixture
def no_small_roots(monkeypatch):
    """Small problems would take the root itself; here they take the kernel."""
    monkeypatch.setattr(problems, "_SMALL", 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("prior", [0.03, 2.0])
def test_dual_equals_dense(name, prior, no_small_roots):
    apply_fn, params, pair = CASES[name]
    found = {
        method: ns.log_evidence(apply_fn, params, pair, prior_precision=prior, method=method)
        for method in ("dense", "dual")
    }
    for field in ("log_evidence", "log_occam_factor", "newton_decrement"):
        assert getattr(found["dual"], field) == pytest.approx(
            getattr(found["dense"], field), rel=1e-9, abs=1e-9
        )
    assert found["dual"].details["kernel_rows"] <= 40 * 3


def test_the_fast_path_equals_the_generic_one(no_small_roots):
    params, pair = params_of(NETWORK), data()
    prior = jax.tree.map(lambda leaf: 0.1 * leaf.ndim, params)  # weights' and biases' differ
    fast = ns.log_evidence(NETWORK, params, pair, prior_precision=prior, method="dual")
    generic = ns.log_evidence(as_function, params, pair, prior_precision=prior, method="dual")
    assert fast.log_evidence == pytest.approx(generic.log_evidence, rel=1e-11)


def test_a_prior_within_a_layer_takes_the_generic_path(no_small_roots):
    params, pair = params_of(NETWORK), data()
    rng = np.random.default_rng(0)
    prior = jax.tree.map(lambda leaf: rng.uniform(0.1, 2, leaf.shape), params)
    found = {
        method: ns.log_evidence(NETWORK, params, pair, prior_precision=prior, method=method)
        for method in ("dense", "dual")
    }
    assert found["dual"].log_evidence == pytest.approx(found["dense"].log_evidence, rel=1e-10)


@pytest.mark.parametrize("apply_fn", [NETWORK, as_function])
def test_blocks_make_no_difference(apply_fn, no_small_roots, monkeypatch):
    params, pair = params_of(NETWORK), data()
    settings = {"prior_precision": 0.3, "method": "dual"}
    whole = ns.log_evidence(apply_fn, params, pair, **settings)
    monkeypatch.setattr(kernels, "BLOCK_BYTES", 20_000)
    parts = ns.log_evidence(apply_fn, params, pair, **settings)
    assert parts.log_evidence == pytest.approx(whole.log_evidence, rel=1e-12)


def test_the_root_of_a_softmax_in_full_relative_accuracy():
    """Against 600 digits: 1 - p of a certain model is 1e-30, far below float64's epsilon."""
    logits = np.array([[70.0, 0.0, -3.0], [0.1, 0.3, -0.2], [0.0, 500.0, -500.0]])
    pair = (np.zeros((3, 1)), np.array([0, 1, 1]))
    problem = jax_problem(lambda w, x: w["z"] + 0 * x, {"z": logits}, pair, "categorical")
    root = output_root(problem.model.architecture, logits, pair[1])
    for R, z in zip(root, logits, strict=True):
        with localcontext(prec=600):
            weights = [Decimal(value).exp() for value in z]
            p = [w / sum(weights) for w in weights]
            exact = [[float(p[a] * ((a == b) - p[b])) for b in range(3)] for a in range(3)]
        np.testing.assert_allclose(R.T @ R, exact, rtol=1e-12)


def test_rows_of_examples_learnt_for_certain_are_left_out(no_small_roots):
    """Their kernel entries are denormal numbers, which would slow the factorisation tenfold."""
    params, pair = params_of(NETWORK, scale=60.0), data()
    dense = ns.log_evidence(NETWORK, params, pair, prior_precision=0.1, method="dense")
    dual = ns.log_evidence(NETWORK, params, pair, prior_precision=0.1, method="dual")
    assert dual.details["kernel_rows"] < 90
    assert dual.log_occam_factor == pytest.approx(dense.log_occam_factor, abs=1e-8)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize("name", ["dense network", "convolutional"])
def test_lanczos_covers_the_exact_value(name, curvature):
    """A 95 % interval must hold it in at least 90 of 100 seeds; the curvature is a network's."""
    apply_fn, params, pair = CASES[name]
    problem = jax_problem(apply_fn, params, pair, "categorical")
    H, _ = problem.dense(curvature)
    nll, gradient = problem.nll_and_gradient()
    settings = {
        "nll": nll,
        "penalty": 0.15 * problem.w @ problem.w,
        "prior_precision": 0.3,
        "n_train": len(pair[1]),
        "n_classes": 4,
        "gradient": gradient + 0.3 * problem.w,
    }
    exact = ns.log_evidence_from_operator(H, method="dense", **settings)
    held = 0
    for seed in range(100):
        found = ns.log_evidence_from_operator(
            H, method="lanczos", seed=seed, max_probes=16, tolerance=0.5, **settings
        )
        held += abs(found.log_evidence - exact.log_evidence) <= 1.96 * found.log_evidence_std
    assert held >= 90
    assert found.newton_decrement == pytest.approx(exact.newton_decrement, rel=0.05)
    assert abs(found.n_negative - exact.n_negative) <= 15


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_lanczos_on_a_network_is_that_of_its_matrix(curvature):
    apply_fn, params, pair = CASES["dense network"]
    settings = {"prior_precision": 0.3, "curvature": curvature}
    exact = ns.log_evidence(apply_fn, params, pair, method="dense", **settings)
    found = ns.log_evidence(apply_fn, params, pair, method="lanczos", tolerance=0.5, **settings)
    assert abs(found.log_evidence - exact.log_evidence) < 3 * found.log_evidence_std
    if exact.log_evidence_full is None:
        assert found.log_evidence_full is None
    else:
        assert found.log_evidence_full == pytest.approx(exact.log_evidence_full, abs=3)


def test_lanczos_says_what_it_did():
    params, pair = params_of(NETWORK), data()
    told = []
    settings = {"prior_precision": 0.3, "method": "lanczos", "progress": told.append}
    loose = ns.log_evidence(NETWORK, params, pair, tolerance=50.0, **settings)
    assert loose.details["tolerance_reached"]
    assert loose.details["n_probes"] == 8
    assert told[0] == "probe 1 of at most 64"
    tight = ns.log_evidence(NETWORK, params, pair, tolerance=1e-3, max_probes=8, **settings)
    assert not tight.details["tolerance_reached"]
    assert "was not reached with 8 probes" in " ".join(tight.notes)
    again = ns.log_evidence(NETWORK, params, pair, tolerance=1e-3, max_probes=8, **settings)
    assert again.log_evidence == tight.log_evidence  # deterministic by seed


def test_lanczos_takes_float64_where_rounding_would_show():
    params, pair = params_of(NETWORK), data()
    weak = ns.log_evidence(NETWORK, params, pair, prior_precision=1e-6, method="lanczos")
    strong = ns.log_evidence(
        NETWORK, params, pair, prior_precision=10.0, method="lanczos", tolerance=0.5
    )
    assert weak.details["products"] == "float64"
    assert strong.details["products"] == "float32"
    assert weak.details["rounding_bound"] < weak.log_evidence_std


def test_diagonal_and_kfac_against_their_definitions():
    params, pair = params_of(NETWORK), data()
    model = jax_problem(NETWORK, params, pair, "categorical").model
    H = problems.dense_ggn(model)[0]
    diagonal = ns.log_evidence(NETWORK, params, pair, prior_precision=0.3, method="diagonal")
    assert diagonal.log_occam_factor == pytest.approx(
        -0.5 * np.log1p(np.diag(H) / 0.3).sum(), rel=1e-10
    )
    general = ns.log_evidence(as_function, params, pair, prior_precision=0.3, method="diagonal")
    assert general.log_occam_factor == pytest.approx(diagonal.log_occam_factor, rel=1e-10)
    assert "approximation" in " ".join(diagonal.notes)


def test_kfac_is_exact_where_it_should_be():
    """One example: the factors of every layer are the block itself, exactly."""
    network = ns.softmax_regression(8, 4)
    params, (x, y) = params_of(network), data(1)
    model = jax_problem(network, params, (x, y), "categorical").model
    H = problems.dense_ggn(model)[0]
    found = ns.log_evidence(network, params, (x, y), prior_precision=0.3, method="kfac")
    blocks = [H[:4, :4], H[4:, 4:]]  # bias and weights, which KFAC takes as unrelated
    exact = -0.5 * sum(np.linalg.slogdet(np.eye(len(b)) + b / 0.3)[1] for b in blocks)
    assert found.log_occam_factor == pytest.approx(exact, rel=1e-10)
    with pytest.raises(ns.InputError, match="needs a noisescale.DenseNetwork"):
        ns.log_evidence(as_function, params_of(NETWORK), data(), prior_precision=1.0, method="kfac")


def test_the_last_layer_alone():
    params, pair = params_of(NETWORK), data()
    last = ns.log_evidence(
        NETWORK, params, pair, prior_precision=0.5, select=lambda path: path.startswith("2/")
    )
    hidden = np.asarray(
        jax.nn.relu(
            jax.nn.relu(pair[0] @ params[0]["w"] + params[0]["b"]) @ params[1]["w"] + params[1]["b"]
        )
    )
    linear = ns.softmax_regression(6, 4)
    alone = ns.log_evidence(linear, params[2:], (hidden, pair[1]), prior_precision=0.5)
    assert last.n_params == 28
    assert last.log_evidence == pytest.approx(alone.log_evidence, rel=1e-6)
    with pytest.raises(ns.InputError, match="select chooses none of the parameters: 0/b, 0/w"):
        ns.log_evidence(NETWORK, params, pair, prior_precision=0.5, select=lambda path: False)


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos"])
def test_the_curve_is_the_evidence_at_each_precision(method, no_small_roots):
    params, pair = params_of(NETWORK), data()
    grid = np.geomspace(1e-3, 1e3, 25)
    curve = ns.evidence_curve(NETWORK, params, pair, prior_precisions=grid, method=method)
    exact = [
        ns.log_evidence(NETWORK, params, pair, prior_precision=lam).log_evidence
        for lam in grid[::6]
    ]
    np.testing.assert_allclose(
        curve.log_evidence[::6], exact, rtol=1e-9 if method != "lanczos" else 0.02
    )
    np.testing.assert_allclose(curve.E, -40 * np.log(4) - curve.log_evidence)
    assert curve.edge is None
    assert curve.best_log_evidence >= curve.log_evidence.max()
    assert "largest log evidence" in repr(curve)


def test_few_precisions_are_factorised_one_by_one(no_small_roots, monkeypatch):
    params, pair = params_of(NETWORK), data(600)
    few = ns.evidence_curve(NETWORK, params, pair, prior_precisions=[0.1, 1, 10], method="dual")
    monkeypatch.setattr("scipy.linalg.eigvalsh", None)  # would fail if it were called
    monkeypatch.setattr("noisescale.evidence.curve._EVALUATIONS", 0)
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
    precisions = layers.details["prior_precisions"]
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


def test_auto_goes_by_what_fits():
    def facts(p, N, widths=None):
        return Facts(
            p=p, N=N, C=10, rows=9 * N, pass_flops=2.0 * p, pass_numbers=1_000, widths=widths
        )

    assert preflight(facts(300, 5_000), "auto", "ggn").method == "dense"
    paper = preflight(facts(636_010, 1_000, (784, 800, 10)), "auto", "ggn")
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
        ({"method": "lanczos", "tolerance": 0.0}, "tolerance must be a finite number above 0"),
        ({"method": "lanczos", "max_probes": 1}, "max_probes must be at least 2"),
        ({"method": "kfac", "curvature": "hessian"}, "method='kfac' needs curvature='ggn'"),
        ({"prior_precision": "per_layer", "method": "lanczos"}, "needs curvature='ggn' with"),
    ],
)
def test_bad_input(settings, message):
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(NETWORK, params_of(NETWORK), data(), **{"prior_precision": 1.0} | settings)


def test_nan_within_the_network_is_told():
    def broken(params, x):
        return jnp.log(params["w"] * x[:, :4])

    with pytest.raises(ns.InputError, match="outputs or gradients are not finite"):
        ns.log_evidence(broken, {"w": np.ones(4)}, data(), prior_precision=1.0, method="dual")
