"""Rows, kernels, Kronecker factors and sums by layer rules, against the plainest computation."""

import _thread
from functools import partial

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from noisescale.evidence import pace  # noqa: E402
from noisescale.evidence.laplace import evidence_of  # noqa: E402
from noisescale.evidence.occam import dual  # noqa: E402
from noisescale.evidence.occam.kernel import (  # noqa: E402
    HeldRows,
    StreamedRows,
    kernel_builder,
    output_rows,
)
from noisescale.evidence.rows import Rows, by_examples  # noqa: E402
from noisescale.torch import by_examples as blocks  # noqa: E402
from noisescale.torch import kernel  # noqa: E402
from noisescale.torch.kronecker import Gram  # noqa: E402
from noisescale.torch.problem import TorchProblem  # noqa: E402
from noisescale.torch.rows import RowBlock  # noqa: E402
from noisescale.torch.tensors import side_by_side  # noqa: E402
from oracles.torch_evidence import BruteForce, kfac, nll_of  # noqa: E402
from pytorch.zoo import animal  # noqa: E402

nn = torch.nn
checkpoint, weight_norm = torch.utils.checkpoint.checkpoint, nn.utils.parametrizations.weight_norm
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]
N = 12


class Grouped(nn.Module):
    """Convolutions with groups and stride, normalisation, operations in place, a bare parameter."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 6, 2, stride=2, groups=2, bias=False)
        self.scale = nn.Parameter(torch.full((6, 1, 1), 1.2))
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        h = self.norm(self.conv(x.reshape(-1, 1, 4, 4))).relu_()
        return self.head(torch.tanh(self.grouped(h) * self.scale).flatten(1))


class Attention(nn.Module):
    """Tokens and positions, one head of attention, the table tied to the outputs."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(5, 6), nn.Embedding(4, 6)
        self.norm, self.qkv, self.mlp = nn.LayerNorm(6), nn.Linear(6, 18), nn.Linear(6, 6)
        self.out = nn.Linear(6, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x):
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        q, k, v = self.qkv(self.norm(h)).chunk(3, dim=-1)
        h = h + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out((h + torch.relu(self.mlp(h)))[:, -1])


def cases():
    torch.manual_seed(0)
    grouped, attention = Grouped().double().eval(), Attention().double()
    grouped.norm.running_mean.normal_()
    dense = nn.Sequential(nn.Linear(16, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)).double()
    images, labels = torch.randn(N, 16, dtype=torch.float64), torch.randint(3, (N,))
    tokens = torch.randint(5, (N, 4)), torch.randint(5, (N,))
    return {
        "dense": (dense, (images, labels)),
        "grouped": (grouped, (images, labels)),
        "attention": (attention, tokens),
    }


CASES = cases()
FOLLOWED = {
    "dense": {"0.weight", "0.bias", "2.weight", "2.bias"},
    "grouped": {
        "conv.weight",
        "conv.bias",
        "norm.weight",
        "norm.bias",
        "grouped.weight",
        "head.weight",
        "head.bias",
    },
    "attention": {
        "table.weight",
        "places.weight",
        "norm.weight",
        "norm.bias",
        "qkv.weight",
        "qkv.bias",
        "mlp.weight",
        "mlp.bias",
    },
}


def jacobian(module, x):
    """(N, C, p) one example and one output at a time, parameters by name in order."""
    params = dict(sorted(module.named_parameters()))
    rows = []
    for i in range(len(x)):
        outputs = module(x[i : i + 1])[0]
        for c in range(len(outputs)):
            g = torch.autograd.grad(outputs[c], list(params.values()), retain_graph=True)
            rows.append(torch.cat([part.reshape(-1) for part in g]))
    return torch.stack(rows).reshape(len(x), -1, len(rows[0])).numpy()


@pytest.fixture(params=CASES)
def case(request):
    module, (x, y) = CASES[request.param]
    problem = TorchProblem(module, (x, y), "categorical")
    return request.param, module, x, y, problem


def test_rows_are_those_of_plain_differentiation(case):
    name, module, x, _, problem = case
    assert problem.gradients("float64").plan.followed == FOLLOWED[name]
    J = jacobian(module, x)
    rng = np.random.default_rng(0)
    examples = np.array([0, 0, 0, 2, 5, 5, 11])
    rows = Rows(examples, rng.normal(size=(7, J.shape[1])))
    wanted = np.einsum("rc,rcp->rp", rows.coefficients, J[examples])
    np.testing.assert_allclose(problem.rows(rows), wanted, atol=1e-11)


def test_the_kernel_by_every_way(case):
    _, module, x, _, problem = case
    every = output_rows(problem)
    J = jacobian(module, x)
    A = np.einsum("rc,rcp->rp", every.coefficients, J[every.examples])
    rng = np.random.default_rng(1)
    alike = np.concatenate(
        [np.full(np.prod(s), 0.5 + i) for i, s in enumerate(problem.shapes.values())]
    )
    kept = rng.uniform(size=len(every)) < 0.7
    v = rng.normal(size=len(alike))
    for L in (alike, rng.uniform(0.5, 2, len(alike)), np.where(np.arange(len(v)) < 30, 1.0, 1e300)):
        K = (A / L) @ A.T
        builders = [kernel_builder(problem, L, every), HeldRows(problem, L, every)]
        builders += [StreamedRows(problem, L, every)]
        for builder in builders:
            np.testing.assert_allclose(builder.diagonal(), np.diag(K), atol=1e-11)
            found = np.tril(builder.matrix(kept))
            np.testing.assert_allclose(found, np.tril(K[kept][:, kept]), atol=1e-11)
            if L.max() < 1e200:
                np.testing.assert_allclose(builder.along(v), A @ v, atol=1e-10)


def test_gram_matrices_are_taken_where_they_are_cheaper():
    module, data = CASES["dense"]
    problem = TorchProblem(module, data, "categorical")
    builder = kernel_builder(problem, np.ones(len(problem.w)), output_rows(problem))
    assert set(builder.precisions) == {"0.weight", "2.weight"}
    assert set(builder.formed) == {"0.bias", "2.bias"}


def test_dual_is_dense(case, monkeypatch):
    _, module, x, y, _ = case
    monkeypatch.setattr(dual, "SMALL", 0)  # the kernel, not the root
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 16)  # several blocks
    found = {
        method: nst.log_evidence(module, (x, y), prior_precision=0.3, method=method)
        for method in ("dual", "dense")
    }
    assert found["dual"].log_evidence == pytest.approx(found["dense"].log_evidence, rel=1e-10)
    assert found["dual"].newton_decrement == pytest.approx(
        found["dense"].newton_decrement, rel=1e-8
    )


def test_the_diagonal_is_that_of_the_dense_matrix(case):
    _, module, x, y, problem = case
    H, _ = problem.dense("ggn")
    log_occam = -0.5 * np.log1p(np.diag(H) / 0.3).sum()
    found = nst.log_evidence(module, (x, y), prior_precision=0.3, method="diagonal")
    # Gradients in float32, whose squares are rounded by about 2e-6 of their size.
    assert found.log_occam_factor == pytest.approx(log_occam, rel=1e-5)


def test_gradient_moments_are_those_of_a_loop(case, monkeypatch):
    _, module, x, y, problem = case
    g = []
    params = dict(sorted(module.named_parameters()))
    for i in range(N):
        nll = nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1])
        parts = torch.autograd.grad(nll, list(params.values()))
        g.append(np.concatenate([part.numpy().ravel() for part in parts]))
    g = np.array(g)
    direction = np.random.default_rng(0).normal(size=g.shape[1])
    for kept in (1 << 30, 0):  # gradients kept for their slopes, or made again
        monkeypatch.setattr(blocks, "KEPT_BYTES", kept)
        moments = problem.gradient_moments()
        scale = np.abs(g).max()
        np.testing.assert_allclose(moments.sq_norms, (g**2).sum(1), rtol=2e-5)
        np.testing.assert_allclose(moments.total, g.sum(0), atol=1e-5 * scale)
        np.testing.assert_allclose(moments.squares, (g**2).sum(0), atol=1e-5 * scale**2)
        slopes = problem.slopes(direction)
        np.testing.assert_allclose(slopes, g @ direction, atol=1e-5 * np.abs(g @ direction).max())
        assert problem._kept == []


@pytest.mark.parametrize("kept", [1 << 30, 0])
@pytest.mark.parametrize("noise", [0.1, 1e-2, 1e-3, 1e-4, 1e-6])
def test_a_noise_down_to_a_millionth_of_the_gradient(noise, kept, monkeypatch):
    """Of two layers, one of them with positions, by definition in float64."""
    monkeypatch.setattr(blocks, "KEPT_BYTES", kept)
    torch.manual_seed(0)
    x = 1 + noise * torch.randn(200, 3, 4, dtype=torch.float64)
    y = torch.full((200, 1), -1000.0, dtype=torch.float64)
    module = nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(9, 1)).double()
    found = nst.gradient_noise(module, (x, y), likelihood="gaussian", n_eigenvalues=2)
    params = list(module.parameters())
    g = np.array(
        [
            np.concatenate(
                [p.ravel() for p in torch.autograd.grad(loss, params, retain_graph=True)]
            )
            for loss in 0.5 * (module(x) - y).square().sum(1)
        ]
    )
    S, mean = np.cov(g.T), g.mean(axis=0)
    assert found.trace == pytest.approx(np.trace(S), rel=1e-3)
    signal = mean @ mean - np.trace(S) / 200
    assert found.critical_batch_size == pytest.approx(np.trace(S) / signal, rel=1e-3)
    assert found.low < found.critical_batch_size < found.high < 2 * found.low
    variance = np.concatenate(
        [np.ravel(found.variance[name]) for name, _ in module.named_parameters()]
    )
    above = np.diag(S) > 1e-12 * mean**2  # the last bias has hardly any
    np.testing.assert_allclose(variance[above], np.diag(S)[above], rtol=1e-2)
    assert above.sum() >= 8
    np.testing.assert_allclose(found.spectrum.eigenvalues, np.linalg.eigvalsh(S)[:-3:-1], rtol=1e-2)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(("last", "reason"), [(0.5, "one example alone"), (0.1, "alike")])
def test_what_is_not_determined_says_why(kind, last, reason):
    module = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).to(kind)
    x, y = torch.full((33, 2), 0.1, dtype=kind), torch.full((33, 1), 3.0, dtype=kind)
    x[-1] = last
    noise = nst.gradient_noise(module, (x, y), likelihood="gaussian")
    assert reason in noise.undetermined
    assert (noise.critical_batch_size, noise.low, noise.high) == (None, 0.0, np.inf)


def test_kfac_is_that_of_its_definition():
    torch.manual_seed(1)
    module = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 2, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(2, 3, 2, bias=False),
        nn.Flatten(),
        nn.LayerNorm(27),
        nn.Linear(27, 3),
    ).double()
    x, y = torch.randn(6, 16, dtype=torch.float64), torch.randint(3, (6,))
    nll = nll_of("categorical")
    wanted, rest = kfac(module, x, y, nll, 0.3, BruteForce(module, x, y, nll, hessian=False))
    found = nst.log_evidence(module, (x, y), prior_precision=0.3, method="kfac")
    assert found.log_occam_factor == pytest.approx(wanted, rel=1e-5)  # passes in float32
    assert found.details["kfac_diagonal"] == rest == ("5.bias", "5.weight")


def test_kfac_of_a_dense_network_is_that_of_jax():
    network = ns.DenseNetwork((16, 7, 3))
    module, (x, y) = CASES["dense"]
    params = tuple(
        {"w": layer.weight.detach().numpy().T, "b": layer.bias.detach().numpy()}
        for layer in (module[0], module[2])
    )
    for precision in (0.3, {"0": 0.3, "1": 2.0}):
        theirs = precision if isinstance(precision, float) else {"0": 0.3, "2": 2.0}
        ours = ns.log_evidence(
            network, params, (x.numpy(), y.numpy()), prior_precision=precision, method="kfac"
        )
        found = nst.log_evidence(module, (x, y), prior_precision=theirs, method="kfac")
        assert found.log_evidence == pytest.approx(ours.log_evidence, rel=1e-5)
        assert found.newton_decrement == pytest.approx(ours.newton_decrement, rel=1e-4)
    grid = [0.1, 1.0, 10.0]
    theirs = nst.evidence_curve(module, (x, y), prior_precisions=grid, method="kfac")
    ours = ns.evidence_curve(
        network, params, (x.numpy(), y.numpy()), prior_precisions=grid, method="kfac"
    )
    np.testing.assert_allclose(theirs.log_evidence, ours.log_evidence, rtol=1e-5)


def test_kfac_says_what_it_needs():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.W = nn.Parameter(torch.randn(16, 3))

        def forward(self, x):
            return x @ self.W

    x, y = CASES["dense"][1]
    with pytest.raises(ns.InputError, match="method='kfac' needs layers that multiply"):
        nst.log_evidence(Bare().double(), (x, y), prior_precision=1.0, method="kfac")
    module = CASES["dense"][0]
    uneven = {name: 1.0 for name, _ in module.named_parameters()}
    uneven["0.weight"] = torch.linspace(1, 2, 7 * 16).reshape(7, 16)
    with pytest.raises(ns.InputError, match="precisions of 0.weight lie between 1 and 2"):
        nst.log_evidence(module, (x, y), prior_precision=uneven, method="kfac")


def test_methods_that_are_listed_are_accepted(case):
    _, module, x, y, _ = case
    listed = nst.log_evidence(module, (x, y), prior_precision=1.0).preflight.costs
    assert "kfac" in [cost.method for cost in listed]
    for cost in listed:
        found = nst.log_evidence(
            module, (x, y), prior_precision=1.0, method=cost.method, max_probes=2
        )
        assert found.method == cost.method


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos", "kfac", "diagonal"])
def test_every_method_is_heard(monkeypatch, method):
    monkeypatch.setattr(pace, "EVERY", 0.0)  # every block speaks
    heard = []
    module, data = CASES["grouped"]
    settings = {"prior_precision": 1.0, "method": method, "max_probes": 2}
    nst.log_evidence(module, data, progress=heard.append, **settings)
    assert any("left" in text for text in heard)


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos", "kfac", "diagonal"])
@pytest.mark.parametrize("heard_before", [0, 2])
@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_ends_every_method(monkeypatch, method, heard_before):
    """What interrupts is neither kept back nor swallowed: nothing more is heard."""
    monkeypatch.setattr(pace, "EVERY", 0.0)
    heard = []
    module, data = CASES["grouped"]

    def tell(text):
        heard.append(text)
        if len(heard) > heard_before:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        nst.log_evidence(module, data, prior_precision=1.0, method=method, progress=tell)
    assert len(heard) == heard_before + 1


@pytest.mark.parametrize("method", ["dual", "kfac", "diagonal"])
def test_rows_of_a_long_sequence_go_in_parts(monkeypatch, method):
    """Some at a time, where one example's would take longer than progress may be silent."""
    gpt = animal("gpt")
    settings = {"prior_precision": 1.0, "method": method, "at": "point"}
    data = (gpt.x, gpt.y)
    whole = nst.log_evidence(gpt.module, data, **settings)
    problem = TorchProblem(gpt.module, data, "categorical")
    k = problem.facts().rows_an_example
    monkeypatch.setattr(blocks, "BLOCK_FLOPS", (1 + 2 * (k // 3)) * problem.pass_flops)
    assert problem.rows_at_once() == k // 3
    monkeypatch.setattr(pace, "EVERY", 0.0)
    monkeypatch.setattr(dual, "SMALL", 0)
    heard = []
    parts = nst.log_evidence(gpt.module, data, progress=heard.append, **settings)
    assert parts.log_evidence == pytest.approx(whole.log_evidence, rel=1e-6)
    named = {"dual": "rows", "kfac": "factors", "diagonal": "diagonal"}[method]
    assert sum(text.startswith(f"{named}:") for text in heard) >= 3 * problem.n_train


def test_rows_of_one_example_stay_together():
    rows = Rows(np.repeat(np.arange(5), [2, 3, 1, 4, 2]), np.ones((12, 1)))
    assert [list(b.examples) for b in by_examples(rows, 5)] == [
        [0, 0, 1, 1, 1],
        [2, 3, 3, 3, 3],
        [4, 4],
    ]
    assert sum(len(b) for b in by_examples(rows, 3)) == 12  # one has more than that
    block = RowBlock.of(rows[2:9])
    np.testing.assert_array_equal(block.examples, [1, 2, 3])
    assert block.coefficients.reshape(-1)[block.places].all()
    assert block.coefficients.sum() == 7


def test_other_parameters_and_examples_have_gradients_of_their_own(case):
    problem = case[-1]
    problem.gradient_moments()  # what it kept is not theirs
    rows = Rows(np.array([0, 1]), np.ones((2, problem.facts().C)))
    moved, few = problem.at(problem.w + 0.1), problem.subset(slice(3, 9))
    assert few.facts().N == 6
    np.testing.assert_allclose(
        few.rows(rows), problem.rows(Rows(rows.examples + 3, rows.coefficients)), atol=1e-12
    )
    along = few.slopes(np.ones(len(few.w)))
    np.testing.assert_allclose(along, problem.slopes(np.ones(len(few.w)))[3:9], rtol=1e-4)
    step = 1e-6
    for i, row in enumerate(moved.rows(rows)):
        direction = np.random.default_rng(i).normal(size=len(row))
        ends = [
            problem.at(problem.w + 0.1 + s * step * direction).outputs(slice(i, i + 1)).sum()
            for s in (1, -1)
        ]
        assert row @ direction == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5)


def test_flops_are_counted_not_guessed():
    """A convolution's pass is what its patches take, far more than its parameters."""
    module = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 5, 3, padding=1), nn.Flatten())
    problem = TorchProblem(module, (torch.randn(3, 16), torch.zeros(3).long()), "categorical")
    products = 2 * 16 * 9 * 5  # of 16 places
    assert problem.pass_flops - problem.activations == products


class MeanOfPlaces(nn.Module):
    def forward(self, x):
        return x.mean(1)


class Wide(nn.Module):
    """Few parameters behind wide activations, by modules or by functions."""

    def __init__(self, squash):
        super().__init__()
        self.squash, self.out = squash, nn.Linear(4, 3)
        self.shift = nn.Parameter(torch.zeros(1))
        self.register_buffer("spread", torch.randn(16, 400))

    def forward(self, x):
        h = self.squash(self.squash(x @ self.spread + self.shift) * 2)
        return self.out(h.reshape(len(x), 4, -1).mean(-1))


@pytest.mark.parametrize(
    ("module", "inputs", "numbers"),
    [
        (Wide(nn.Tanh()), torch.randn(4, 16), 5 * 400 + 4 + 3),
        (Wide(torch.tanh), torch.randn(4, 16), 5 * 400 + 4 + 3),
        (Wide(partial(checkpoint, torch.tanh, use_reentrant=False)), torch.randn(4, 16), 2_007),
        (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), torch.randn(4, 5), 7 + 7 + 3),
        # Its weights are computed too, but are no example's.
        (weight_norm(nn.Linear(50, 30)), torch.randn(4, 50), 50),
        # Nothing of what is looked up is saved for the way back, and yet it is there.
        (
            nn.Sequential(nn.Embedding(50, 64), MeanOfPlaces(), nn.Linear(64, 3)),
            torch.randint(50, (4, 128)),
            128 * 64 + 64 + 3,
        ),
    ],
    ids=["modules", "functions", "checkpoint", "dense", "normed weights", "looked up"],
)
def test_activations_are_all_that_one_example_adds(module, inputs, numbers):
    """Whether modules or functions make them, from however many examples."""
    labels = torch.zeros(4).long()
    problem = TorchProblem(module, (inputs, labels), "categorical")
    assert problem.activations == pytest.approx(numbers, rel=0.02)
    alone = TorchProblem(module, (inputs[:1], labels[:1]), "categorical")
    assert alone.activations == problem.activations


def test_nll_gradient_and_outputs_come_from_one_pass():
    """The evidence asks for them one after the other; another point has its own."""
    module, (x, y) = CASES["dense"]
    problem = TorchProblem(module, (x, y), "categorical")
    alone = problem.roots()
    passed = []
    problem.model.twins["float64"].register_forward_hook(
        lambda module, args, outputs: passed.append(len(args[0]))
    )
    nll, gradient = problem.nll_and_gradient()
    np.testing.assert_array_equal(problem.roots(), alone)
    assert problem.nll_and_gradient()[0] == nll
    assert sum(passed) == N
    elsewhere = problem.at(problem.w + 0.1)
    assert elsewhere.nll_and_gradient()[0] != nll
    assert not np.array_equal(elsewhere.roots(), alone)
    assert len(problem.subset(slice(0, 3)).roots()) == 3
    value = nn.functional.cross_entropy(module(x), y, reduction="sum")
    by_hand = torch.autograd.grad(value, [p for _, p in sorted(module.named_parameters())])
    assert nll == pytest.approx(float(value.detach()), rel=1e-12)
    np.testing.assert_allclose(gradient, torch.cat([g.flatten() for g in by_hand]), atol=1e-12)


def test_kfac_passes_are_in_float32_alone():
    """One in float64 for the cost and its gradient would take as long as all of them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    problem = TorchProblem(module, (torch.randn(400, 4), torch.randint(3, (400,))), "categorical")
    passed = {"float64": 0, "float32": 0}
    for precision, twin in problem.model.twins.items():

        def count(module, args, outputs, precision=precision):
            passed[precision] += len(args[0])

        twin.register_forward_hook(count)
    settings = {"prior_precision": 1.0, "at": "point"}
    found = evidence_of(problem, method="kfac", **settings)
    assert passed["float64"] < 200 < 800 <= passed["float32"]  # a few examples are looked at
    exact = evidence_of(problem.fresh(), method="diagonal", **settings)
    assert found.nll == pytest.approx(exact.nll, rel=1e-6)
    assert found.gradient_norm == pytest.approx(exact.gradient_norm, rel=1e-4)


@pytest.mark.parametrize("positions", [1, 3, 30, 2_000])
def test_gram_sums_block_by_block(positions):
    """In float64 where there is one position; else to float32's rounding of a block's sum."""
    x = torch.randn(37, positions, 8, generator=torch.manual_seed(0))
    gram = Gram()
    for start in (0, 20, 31):
        gram.add(x[start : {0: 20, 20: 31, 31: 37}[start]])
    flat = x.double().reshape(-1, 8).numpy()
    atol = 1e-12 if positions == 1 else 1e-6 * len(flat)
    np.testing.assert_allclose(gram.matrix(), flat.T @ flat, rtol=0, atol=atol)
    np.testing.assert_array_equal(gram.matrix(), gram.matrix())


def test_a_kernel_by_layers_needs_no_room_for_rows(monkeypatch):
    """Where a layer's gradients are never formed, they need not fit into memory."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(60, 50), nn.Tanh(), nn.Linear(50, 3)).double()
    data = torch.randn(30, 60, dtype=torch.float64), torch.randint(3, (30,))
    problem = TorchProblem(module, data, "categorical")
    facts, rows = problem.facts(), dual.output_rows(problem)
    assert facts.formed < 0.1 * facts.p
    whole = problem.layer_kernel(np.ones(facts.p), rows)
    every = np.ones(len(rows), bool)
    room = 8 * len(rows) * (facts.p + 2 * len(rows)) - 1  # a byte less than all rows take
    monkeypatch.setattr("noisescale.evidence.occam.kernel.memory_limit", lambda: room)
    narrow = problem.layer_kernel(np.ones(facts.p), rows)
    assert narrow is not None
    np.testing.assert_allclose(narrow.matrix(every), whole.matrix(every), rtol=1e-12)
    monkeypatch.setattr("noisescale.evidence.occam.kernel.memory_limit", lambda: 1_000)
    assert problem.layer_kernel(np.ones(facts.p), rows) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_calls_side_by_side_have_a_thread_each_and_leave_the_number_as_it_was(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        seen = side_by_side([lambda k=k: (k, torch.get_num_threads()) for k in range(5)])
        assert seen == [(k, 1) for k in range(5)]
        with pytest.raises(ZeroDivisionError):
            side_by_side([lambda: 1 / 0, lambda: 2])
        assert torch.get_num_threads() == threads
        noise = nst.gradient_noise(*CASES["dense"])
    finally:
        torch.set_num_threads(before)
    assert noise.trace == pytest.approx(nst.gradient_noise(*CASES["dense"]).trace, rel=1e-6)


def test_what_rows_take_is_found_out_from_one_block(monkeypatch):
    """An example of a sequence has thousands of rows: forming them all to count them took GiB."""
    a = animal("gpt")
    problem = TorchProblem(a.module, a.data, a.likelihood)
    rows = output_rows(problem)
    formed = []

    class Counted(kernel.FactorKernel):
        def __init__(self, gradients, L, rows, size, *, hold=True):
            formed.append(len(rows))
            super().__init__(gradients, L, rows, size, hold=hold)

    monkeypatch.setattr(kernel, "FactorKernel", Counted)
    monkeypatch.setattr(kernel, "rows_fit", lambda n_rows, n_columns: False)
    L = np.ones(len(problem.w))
    of_the_first = int((rows.examples == rows.examples[0]).sum())
    assert of_the_first > 3
    assert kernel.factor_kernel(problem.gradients("float64"), L, rows, 3) is None
    assert formed == [3, 3]  # held, and formed when wanted


@pytest.mark.parametrize("name", ["gpt", "cnn", "resnet", "vit"])
@pytest.mark.parametrize("per_layer", [False, True])
def test_gradients_that_are_formed_when_wanted_give_the_same_kernel(name, per_layer):
    """Whole, some rows, the diagonal, along a direction; whatever the prior."""
    a = animal(name)
    problem = TorchProblem(a.module, a.data, a.likelihood)
    rows, rng = output_rows(problem), np.random.default_rng(0)
    L = rng.uniform(0.5, 2.0, len(problem.w)) if per_layer else np.full(len(problem.w), 0.3)
    gradients = problem.gradients("float64")
    held, late = (kernel.FactorKernel(gradients, L, rows, 7, hold=h) for h in (True, False))
    assert late.late
    assert not held.late
    assert late.A.shape[1] < held.A.shape[1]
    np.testing.assert_allclose(late.diagonal(), held.diagonal(), rtol=1e-9)
    for kept in (np.ones(len(rows), bool), rng.random(len(rows)) < 0.5):
        ours, theirs = (np.tril(k.matrix(kept)) for k in (late, held))
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10 * np.abs(theirs).max())
    direction = rng.normal(size=len(L))
    along = held.along(direction)
    np.testing.assert_allclose(late.along(direction), along, atol=1e-9 * np.abs(along).max())


def test_dual_forms_gradients_when_wanted_where_they_do_not_fit(monkeypatch):
    """The same evidence; forward derivatives, which take far longer, are not asked for."""
    a = animal("gpt")
    settings = {"prior_precision": 0.5, "method": "dual", "likelihood": a.likelihood}
    monkeypatch.setattr(dual, "SMALL", 0)
    expected = nst.log_evidence(a.module, a.data, **settings).log_evidence
    seen = []

    class Seen(kernel.FactorKernel):
        def __init__(self, *args, hold=True):
            seen.append(hold)
            super().__init__(*args, hold=hold)

    monkeypatch.setattr(kernel, "FactorKernel", Seen)
    monkeypatch.setattr(kernel, "rows_fit", lambda n, columns: seen[-1:] == [False])
    monkeypatch.setattr(TorchProblem, "derivatives", None)
    found = nst.log_evidence(a.module, a.data, **settings).log_evidence
    assert seen[-1] is False
    assert found == pytest.approx(expected, rel=1e-9)
