"""The same likelihoods and null models as in JAX, and users' own."""

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from oracles.torch_evidence import BruteForce  # noqa: E402
from pytorch.zoo import animal  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]


def linear(params, x):
    return x @ params["weight"].T + params["bias"]


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (ns.gaussian("estimate"), lambda rng: rng.normal(size=(12, 2))),
        (ns.gaussian(3.0), lambda rng: rng.normal(size=(12, 2))),
        ("poisson", lambda rng: rng.poisson(2.0, size=(12, 2))),
        ("categorical", lambda rng: rng.integers(2, size=12)),
        ("categorical", lambda rng: rng.integers(2, size=(12, 4))),
    ],
)
def test_the_same_as_jax(likelihood, targets):
    rng = np.random.default_rng(0)
    y = targets(rng)
    module = torch.nn.Linear(3, 2)
    x = rng.normal(size=(12, 3) if y.shape != (12, 4) else (12, 4, 3))
    params = {name: p.detach().numpy().astype(float) for name, p in module.named_parameters()}
    settings = {"prior_precision": 0.5, "likelihood": likelihood, "method": "dual"}
    theirs = nst.log_evidence(module, (x, y), **settings)
    ours = ns.log_evidence(linear, params, (x, y), **settings)
    assert theirs.log_evidence == pytest.approx(ours.log_evidence, rel=1e-9)
    assert theirs.log_null == pytest.approx(ours.log_null, rel=1e-9)
    assert theirs.notes == ours.notes
    grid = {"prior_precisions": [0.1, 1.0, 10.0], "likelihood": likelihood}
    theirs = nst.evidence_curve(module, (x, y), **grid)
    ours = ns.evidence_curve(linear, params, (x, y), **grid)
    np.testing.assert_allclose(theirs.E, ours.E, rtol=1e-8)


def laplace(f, y):
    """Heavier tails than a Gaussian's, convex in the outputs; of batches."""
    return torch.log(torch.cosh(f[:, :, 0] - y)).sum(dim=1)


def cauchy(f, y):
    """Not convex."""
    return torch.log1p((f[:, :, 0] - y) ** 2).sum(dim=1)


class Tokens(torch.nn.Module):
    """One output for each of three tokens."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


@pytest.mark.parametrize("nll", [laplace, cauchy])
def test_users_own(nll):
    torch.manual_seed(0)
    module, x, y = Tokens(), torch.randn(5, 3, 2), 2 * torch.randn(5, 3)
    truth = BruteForce(module, x, y.double(), lambda f, y: nll(f[None], y[None])[0])
    for method, curvature in (("dense", "ggn"), ("dual", "ggn"), ("dense", "hessian")):
        settings = {"prior_precision": 0.7, "method": method, "curvature": curvature}
        if (nll, method) == (cauchy, "dual"):
            with pytest.raises(ns.InputError, match="not convex in the outputs"):
                nst.log_evidence(module, (x, y), likelihood=nll, **settings)
            continue
        found = nst.log_evidence(module, (x, y), likelihood=nll, **settings)
        assert found.nll == pytest.approx(truth.nll, rel=1e-10)
        assert found.log_evidence == pytest.approx(truth.log_evidence(0.7, curvature), rel=1e-9)
        assert found.log_null is None
    noise = nst.gradient_noise(module, (x, y), likelihood=nll)
    assert noise.trace == pytest.approx(truth.trace(), rel=2e-4)


@pytest.mark.parametrize(
    ("nll", "message"),
    [
        (lambda f, y: (f - y[:, None]) ** 2, "must return one number an example"),
        (lambda f, y: ((f - 1) ** 2).mean(), "must return one number an example"),
        (lambda f, y: f @ y, "likelihood does not accept outputs of shape"),
    ],
)
def test_users_own_must_give_one_number_an_example(nll, message):
    a = animal("mlp")
    with pytest.raises(ns.InputError, match=message):
        nst.log_evidence(a.module, (a.x, a.y.float()), prior_precision=1.0, likelihood=nll)


def test_far_logits_of_two_classes_are_exact():
    """PyTorch's softplus is linear beyond 20, which costs 2e-9 nats an example."""
    module = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(module.weight, 1.0)
    x = torch.full((1000, 1), 21.0, dtype=torch.float64)
    found = nst.log_evidence(
        module, (x, torch.ones(1000)), prior_precision=1.0, likelihood="bernoulli"
    )
    assert found.nll == pytest.approx(1000 * np.log1p(np.exp(-21.0)), rel=1e-12)
    wrong = nst.log_evidence(
        module, (x, torch.zeros(1000)), prior_precision=1.0, likelihood="bernoulli"
    )
    assert wrong.nll - 21_000 == pytest.approx(1000 * np.log1p(np.exp(-21.0)), rel=1e-4)
