"""Every kind of module, every function and method, against brute force in float64."""

import copy
from functools import cache

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from torch.nn import functional  # noqa: E402

import noisescale.torch as nst  # noqa: E402
from noisescale.evidence.occam.kernel import output_rows, row_products  # noqa: E402
from noisescale.torch.batches import mapped  # noqa: E402
from noisescale.torch.problem import TorchProblem  # noqa: E402
from oracles.torch_evidence import BruteForce, call, kfac, nll_of, row_of, take  # noqa: E402
from pytorch.zoo import NAMES, animal  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]
LAMBDA = 0.7


def long_for(*names):
    """All modules; these with the tests that take long."""
    marks = {name: [pytest.mark.long] for name in names}
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks.get(name, [])) for name in NAMES]
    )


@cache
def brute(name):
    a = animal(name)
    return BruteForce(a.module, a.x, labels(name), nll_of(a.likelihood))


def labels(name):
    """Of each token's output: transformers shifts them inside."""
    y = animal(name).y
    return functional.pad(y[:, 1:], (0, 1), value=-100) if name == "hf gpt" else y


@pytest.mark.parametrize("name", NAMES)
def test_exact_methods(name):
    a, truth = animal(name), brute(name)
    settings = {"prior_precision": LAMBDA, "likelihood": a.likelihood}
    ways = [("dense", "ggn"), ("dual", "ggn")]
    if len(truth.w) < 60:  # products with the Hessian are compared for all of them below
        ways.append(("dense", "hessian"))
    for method, curvature in ways:
        found = nst.log_evidence(a.module, a.data, method=method, curvature=curvature, **settings)
        assert found.n_params == len(truth.w)
        assert found.nll == pytest.approx(truth.nll, rel=1e-10)
        expected = truth.log_evidence(LAMBDA, curvature)
        assert found.log_evidence == pytest.approx(expected, rel=1e-8), (method, curvature)


@pytest.mark.parametrize("name", NAMES)
def test_diagonal_and_noise(name):
    a, truth = animal(name), brute(name)
    settings = {"prior_precision": LAMBDA, "likelihood": a.likelihood}
    found = nst.log_evidence(a.module, a.data, method="diagonal", **settings)
    h = np.diag(truth.ggn)
    # Gradients in float32, rounded by about 1e-6 of their size; squares by twice that.
    assert found.log_occam_factor == pytest.approx(-0.5 * np.log1p(h / LAMBDA).sum(), rel=1e-5)
    noise = nst.gradient_noise(a.module, a.data, likelihood=a.likelihood, n_eigenvalues=1)
    assert noise.trace == pytest.approx(truth.trace(), rel=2e-4)
    covariance = np.cov(truth.gradients.T)
    assert noise.spectrum.eigenvalues[0] == pytest.approx(
        np.linalg.eigvalsh(covariance)[-1], rel=1e-3
    )


@pytest.mark.parametrize("name", NAMES)
def test_products_and_rows(name):
    a, truth = animal(name), brute(name)
    problem = TorchProblem(a.module, a.data, a.likelihood)
    V = np.random.default_rng(0).normal(size=(len(truth.w), 3))
    for curvature, H in (("ggn", truth.ggn), ("hessian", truth.hessian)):
        operator = problem.operator(curvature, "float64")
        np.testing.assert_allclose(operator @ V, H @ V, atol=1e-10 * np.abs(H).max() * len(H))
        rough = problem.operator(curvature, "float32")  # as Lanczos begins with
        np.testing.assert_allclose(rough @ V, H @ V, atol=1e-5 * np.abs(H).max() * len(H))
    _, gradient = problem.nll_and_gradient()
    np.testing.assert_allclose(gradient, truth.gradients.sum(axis=0), atol=1e-10)
    rows = output_rows(problem)
    A = problem.rows(rows)
    np.testing.assert_allclose(A.T @ A, truth.ggn, atol=1e-10 * np.abs(truth.ggn).max())
    np.testing.assert_allclose(row_products(problem, V.T, rows), V.T @ A.T, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_kfac(name):
    a, truth = animal(name), brute(name)
    settings = {"prior_precision": LAMBDA, "likelihood": a.likelihood, "method": "kfac"}
    if name == "lora":  # its Linear layers are frozen
        with pytest.raises(ns.InputError, match="method='kfac' needs layers that multiply"):
            nst.log_evidence(a.module, a.data, **settings)
        return
    found = nst.log_evidence(a.module, a.data, **settings)
    wanted, rest = kfac(a.module, a.x, labels(name), nll_of(a.likelihood), LAMBDA, truth)
    assert found.log_occam_factor == pytest.approx(wanted, rel=1e-5)  # passes in float32
    assert found.details.get("kfac_diagonal", ()) == rest


# The products that it is made of are compared for all of them above.
@long_for("bert", "gpt", "hf gpt", "vit", "resnet")
def test_lanczos_holds_the_exact_value(name):
    a, truth = animal(name), brute(name)
    found = nst.log_evidence(
        a.module,
        a.data,
        prior_precision=LAMBDA,
        likelihood=a.likelihood,
        method="lanczos",
        max_probes=8,
    )
    error = abs(found.log_evidence - truth.log_evidence(LAMBDA))
    assert error < 4 * found.log_evidence_std + 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_precisions_by_layer_come_round(name):
    a, truth = animal(name), brute(name)
    settings = {"method": "dense", "likelihood": a.likelihood}
    found = nst.log_evidence(a.module, a.data, prior_precision="per_layer", **settings)
    precisions = found.prior_precision
    again = nst.log_evidence(a.module, a.data, prior_precision=precisions, **settings)
    assert again.log_evidence == pytest.approx(found.log_evidence, rel=1e-12)
    layer = {name: name.rpartition(".")[0] or "(module)" for name in truth.names}
    L = np.concatenate([np.full(truth.sizes[n], precisions[layer[n]]) for n in truth.names])
    assert found.log_evidence == pytest.approx(truth.log_evidence(L), rel=1e-8)


@pytest.mark.parametrize("method", ["dense", "dual"])
@pytest.mark.parametrize("name", NAMES)
def test_the_curve(name, method):
    a, truth = animal(name), brute(name)
    grid = [0.1, 1.0, 10.0]
    found = nst.evidence_curve(
        a.module, a.data, prior_precisions=grid, likelihood=a.likelihood, method=method
    )
    expected = [truth.log_evidence(value) for value in grid]
    np.testing.assert_allclose(found.log_evidence, expected, rtol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_the_spectrum(name):
    a, truth = animal(name), brute(name)
    spectrum = nst.spectrum(
        a.module, a.data, likelihood=a.likelihood, top_k=2, n_probes=2, n_steps=8
    )
    top = np.linalg.eigvalsh(truth.hessian)[::-1][:2]
    np.testing.assert_allclose(spectrum.top, top, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "select"),
    [
        ("cnn", "head"),
        ("gpt", ["out", "qkv.bias"]),
        ("mlp", "*.bias"),
        ("bert", lambda name: name.startswith("classifier")),
    ],
)
def test_selected_parameters_are_the_model(name, select):
    chosen = {
        "cnn": lambda n: n.startswith("head."),
        "gpt": lambda n: n.startswith("out.") or n == "qkv.bias",
        "mlp": lambda n: n.endswith("bias"),
        "bert": lambda n: n.startswith("classifier"),
    }[name]
    a = animal(name)
    truth = BruteForce(a.module, a.x, a.y, nll_of(a.likelihood), chosen, hessian=False)
    found = nst.log_evidence(a.module, a.data, prior_precision=LAMBDA, select=select)
    assert found.n_params == len(truth.w)
    assert found.log_evidence == pytest.approx(truth.log_evidence(LAMBDA), rel=1e-8)
    noise = nst.gradient_noise(a.module, a.data, select=select)
    assert noise.trace == pytest.approx(truth.trace(), rel=2e-4)


def test_what_select_does_not_find():
    a = animal("mlp")
    with pytest.raises(ns.InputError, match="select '7' chooses none of the parameters: 0.weight"):
        nst.log_evidence(a.module, a.data, prior_precision=1.0, select=["0", "7"])
    with pytest.raises(ns.InputError, match="select must be the name of a layer"):
        nst.log_evidence(a.module, a.data, prior_precision=1.0, select=3)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("regression", "counts")])
def test_predictions(name):
    """Of the linearised model, by dense algebra on brute-force Jacobians."""
    a, truth = animal(name), brute(name)
    found = [
        nst.posterior_predict(
            a.module,
            a.data,
            mapped(lambda part: part[:2], a.x),
            prior_precision=LAMBDA,
            likelihood=a.likelihood,
            method=method,
        )
        for method in ("dense", "dual")
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-7)
    K = found[0].shape[-1]
    inverse = np.linalg.inv(truth.ggn + LAMBDA * np.eye(len(truth.w)))
    for i in range(2):
        z, S = moments(a, i, inverse)
        if name == "binary":
            p = 1 / (1 + np.exp(-z[0] / np.sqrt(1 + np.pi / 8 * S[0, 0])))
            expected = np.array([[1 - p, p]])
        else:
            centre = np.eye(K) - 1 / K
            expected = []
            for t in range(len(z) // K):
                part = slice(t * K, (t + 1) * K)
                s2 = np.diag(centre @ S[part, part] @ centre)
                q = np.exp(centre @ z[part] / np.sqrt(1 + np.pi / 8 * s2))
                expected.append(q / q.sum())
        np.testing.assert_allclose(found[0][i].reshape(-1, K), np.array(expected), rtol=1e-7)


def moments(a, i, inverse):
    """Outputs of example i and their covariance."""
    twin = copy.deepcopy(a.module).double().eval()
    params = [p for _, p in sorted(twin.named_parameters()) if p.requires_grad]
    outputs = call(twin, take(a.x, i))[0].reshape(-1)
    J = np.stack([row_of(f, params) for f in outputs])
    return outputs.detach().numpy(), J @ inverse @ J.T


# They descend for seconds: past saddles, or by thousands of steps.
@long_for("gpt", "hf gpt", "bert", "vit")
def test_the_map_is_a_minimum_by_brute_force(name):
    a = animal(name)
    found = nst.map_estimate(a.module, a.data, prior_precision=LAMBDA, likelihood=a.likelihood)
    assert found.status is not ns.MapStatus.STALLED
    a.module.load_state_dict(found.params, strict=False)
    saddle = found.status is ns.MapStatus.SADDLE  # that three ways out of it led to another
    there = BruteForce(a.module, a.x, labels(name), nll_of(a.likelihood), hessian=saddle)
    if saddle:
        lowest = np.linalg.eigvalsh(there.hessian)[0] / LAMBDA + 1
        assert lowest == pytest.approx(found.lowest_eigenvalue, rel=0.05)
        assert lowest < 0
    slope = there.gradients.sum(axis=0) + LAMBDA * there.w
    falls = 0.5 * slope @ np.linalg.solve(there.ggn + LAMBDA * np.eye(len(there.w)), slope)
    # The weights that were put back are in float32. Nothing promises as much of a saddle, where
    # the gradient vanishes on average over the last steps; a nat tells it from no descent.
    assert falls < (1.0 if saddle else 1e-3)
    assert there.nll + 0.5 * LAMBDA * (there.w**2).sum() == pytest.approx(found.cost, rel=1e-5)
