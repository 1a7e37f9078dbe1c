"""Priors by layer where parameters of a module lie beside its submodules."""

import itertools

import numpy as np
import pytest
import scipy.optimize

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]


class Block(torch.nn.Module):
    """By name its own ``scale`` comes after ``lin`` and before ``zoom``."""

    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)
        self.scale = torch.nn.Parameter(torch.randn(3))
        self.zoom = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.zoom(torch.tanh(self.lin(x)) * self.scale)


class Nested(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.a = torch.nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.block(x) + self.a


class Wrapped(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.m = inner

    def forward(self, x):
        return self.m(x)


LAYERS = {
    "(module)": ["a"],
    "block": ["block.scale"],
    "block.lin": ["block.lin.bias", "block.lin.weight"],
    "block.zoom": ["block.zoom.bias", "block.zoom.weight"],
}


@pytest.fixture
def module():
    torch.manual_seed(3)
    return Nested().double()


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4))
    return x, x[:, :3].argmax(axis=1)


def brute_force(module, pair):
    """The log evidence of precisions by layer from dense float64 Jacobians, name by name."""
    x, y = torch.tensor(pair[0]), torch.tensor(pair[1])
    named = dict(module.named_parameters())
    free = {name: p.detach() for name, p in named.items()}
    logits = module(x).detach()
    nll = float(torch.nn.functional.cross_entropy(logits, y, reduction="sum"))
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(module, p, (x,)))(free)
    q = torch.softmax(logits, 1).numpy()
    Lambda = q[:, :, None] * np.eye(3) - q[:, :, None] * q[:, None, :]
    order = list(itertools.chain(*LAYERS.values()))
    J = np.concatenate([jacobian[name].numpy().reshape(40, 3, -1) for name in order], axis=2)
    H = np.einsum("ncp,ncd,ndq->pq", J, Lambda, J)
    sizes = [sum(named[name].numel() for name in names) for names in LAYERS.values()]
    squares = [sum(float((free[name] ** 2).sum()) for name in names) for names in LAYERS.values()]

    def log_evidence(logs):
        L = np.repeat(np.exp(logs), sizes)
        _, logdet = np.linalg.slogdet(np.eye(len(L)) + H / np.sqrt(np.outer(L, L)))
        return -nll - 0.5 * float(np.exp(logs) @ squares) - 0.5 * logdet

    return log_evidence


@pytest.mark.parametrize("method", ["dense", "dual"])
def test_the_layers_of_largest_evidence_are_those_of_a_dense_computation(module, pair, method):
    log_evidence = brute_force(module, pair)
    best = scipy.optimize.minimize(lambda t: -log_evidence(t), np.zeros(4), tol=1e-10)
    found = nst.log_evidence(module, pair, prior_precision="per_layer", method=method)
    precisions = found.prior_precision
    assert sorted(precisions) == sorted(LAYERS)
    # The fixed point stops at steps of 1e-3 in ln(precision); the evidence is flat there.
    assert found.log_evidence == pytest.approx(-best.fun, abs=1e-4)
    logs = np.log([precisions[layer] for layer in LAYERS])
    np.testing.assert_allclose(logs, best.x, atol=5e-3)
    assert found.log_evidence == pytest.approx(log_evidence(logs), abs=1e-8)


def test_precisions_that_were_reported_give_the_same_evidence(module, pair):
    found = nst.log_evidence(module, pair, prior_precision="per_layer")
    precisions = found.prior_precision
    by_name = {name: precisions[layer] for layer, names in LAYERS.items() for name in names}
    for given in (by_name, precisions):
        again = nst.log_evidence(module, pair, prior_precision=given)
        assert again.log_evidence == pytest.approx(found.log_evidence, rel=1e-12)
        assert again.prior_precision == pytest.approx(precisions, rel=1e-12)


def test_a_wrapper_changes_nothing(module, pair):
    plain = nst.log_evidence(module, pair, prior_precision="per_layer")
    wrapped = nst.log_evidence(Wrapped(module), pair, prior_precision="per_layer")
    assert wrapped.log_evidence == pytest.approx(plain.log_evidence, rel=1e-9)
    linear = torch.nn.Linear(4, 3).double()
    plain = nst.log_evidence(linear, pair, prior_precision="per_layer")
    wrapped = nst.log_evidence(Wrapped(linear), pair, prior_precision="per_layer")
    assert wrapped.log_evidence == pytest.approx(plain.log_evidence, rel=1e-9)


def test_frozen_parameters_are_of_no_layer(module, pair):
    module.block.lin.requires_grad_(requires_grad=False)
    found = nst.log_evidence(module, pair, prior_precision="per_layer")
    assert sorted(found.prior_precision) == ["(module)", "block", "block.zoom"]
    assert isinstance(found, ns.Evidence)
