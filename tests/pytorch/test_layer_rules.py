"""Layer rules against the gradients of single examples, one by one."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from noisescale.torch import layer_rules  # noqa: E402
from noisescale.torch.capture import checked_plan, layers_with_rules, record  # noqa: E402
from noisescale.torch.factors import Formed, Outer  # noqa: E402
from noisescale.torch.sums import compact_numbers, sums  # noqa: E402
from oracles import layers  # noqa: E402

nn = torch.nn
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
]

LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear, no bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "linear on a sequence": (lambda: nn.Linear(5, 4), (3, 5)),
    "linear on two axes": (lambda: nn.Linear(2, 7), (3, 2, 2)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    "conv1d, causal groups": (lambda: nn.Conv1d(4, 4, 2, groups=4, dilation=2), (4, 7)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (3, 6, 5)),
    "conv2d, all of it": (
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        (4, 7, 6),
    ),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, (4, 3), padding="same", bias=False), (2, 5, 5)),
    "conv2d, valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), (2, 4, 5)),
    "conv2d, reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 4, 5)),
    "conv2d, circular": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (3, 5)),
    "layer norm, two axes": (lambda: nn.LayerNorm((3, 5)), (2, 3, 5)),
    "layer norm, no bias": (lambda: nn.LayerNorm(5, bias=False), (5,)),
    "rms norm": (lambda: nn.RMSNorm(5, eps=1e-3), (3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 3, 2)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (3, 4, 2)),
    "batch norm of features": (lambda: nn.BatchNorm1d(5), (5,)),
    "embedding": (lambda: nn.Embedding(7, 3), 7),
    "embedding with padding": (lambda: nn.Embedding(7, 3, padding_idx=2), 7),
}


def prepared(name, n, seed):
    """A layer with weights of its own, n inputs, and three gradients at each output."""
    torch.manual_seed(seed)
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double().eval()
    for p in layer.parameters():
        nn.init.normal_(p)
    if hasattr(layer, "running_mean"):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    torch.manual_seed(seed)
    a = (
        torch.randint(shape, (n, 6))
        if isinstance(shape, int)
        else torch.randn(n, *shape, dtype=torch.float64)
    )
    z = layer(a)
    return layer, a, torch.randn(n, 3, *z.shape[1:], dtype=torch.float64)


def one_by_one(layer, a, b):
    """(n, k, size) by parameter: a backward pass for each."""
    found = {name: [] for name, _ in layer.named_parameters()}
    for i in range(len(a)):
        for c in b[i]:
            z = layer(a[i : i + 1])[0]
            for name, g in zip(
                found, torch.autograd.grad((z * c).sum(), list(layer.parameters())), strict=True
            ):
                found[name].append(g.reshape(-1))
    return {name: torch.stack(g).reshape(len(a), b.shape[1], -1) for name, g in found.items()}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_products_and_sums(name):
    layer, a, b = prepared(name, 4, seed=1)
    _, a2, b2 = prepared(name, 2, seed=2)
    G, G2 = one_by_one(layer, a, b), one_by_one(layer, a2, b2)
    made = layers.per_example(layer, [(a, b)])
    assert made.keys() == G.keys()
    close = {"rtol": 1e-10, "atol": 1e-10}
    for key, g in G.items():
        torch.testing.assert_close(made[key], g, **close)
    rows, rows2 = (torch.cat(list(g.values()), 2).flatten(0, 1) for g in (G, G2))
    torch.testing.assert_close(layers.kernel(layer, [(a, b)], [(a2, b2)]), rows @ rows2.T, **close)
    norms = layers.squared_norms(layer, [(a, b)])
    torch.testing.assert_close(norms.reshape(-1), (rows**2).sum(1), **close)
    for key, factor in layers.factors(layer, [(a, b)]).items():
        g = G[key]
        direction = torch.randn(g.shape[2], dtype=torch.float64)
        torch.testing.assert_close(factor.squares(), (g**2).sum((0, 1)), **close)
        torch.testing.assert_close(factor.along(direction), g @ direction, **close)
        torch.testing.assert_close(factor.squared_norms(), (g**2).sum(2), **close)
        torch.testing.assert_close(factor.chosen(slice(1, 3)).gradients(), g[1:3], **close)
        merged = factor.of_examples(2).gradients()
        torch.testing.assert_close(merged, g.reshape(2, 2, *g.shape[1:]).sum(1), **close)


@pytest.mark.parametrize("name", ["linear", "conv2d, all of it", "embedding", "layer norm"])
def test_several_uses_add_up(name):
    layer, a, b = prepared(name, 4, seed=1)
    _, a2, b2 = prepared(name, 4, seed=2)
    G, G2 = one_by_one(layer, a, b), one_by_one(layer, a2, b2)
    made = layers.per_example(layer, [(a, b), (a2, b2)])
    for key in G:
        torch.testing.assert_close(made[key], G[key] + G2[key], rtol=1e-10, atol=1e-10)
    norms = layers.squared_norms(layer, [(a, b), (a2, b2)])
    wanted = sum(((G[key] + G2[key]) ** 2).sum(2) for key in G)
    torch.testing.assert_close(norms, wanted, rtol=1e-10, atol=1e-10)


def test_long_narrow_sequences_by_either_way():
    """Squared norms from Gram matrices and from gradients are the same numbers."""
    layer = nn.Linear(40, 30).double()
    a = torch.randn(3, 5, 40, dtype=torch.float64)
    b = torch.randn(3, 2, 5, 30, dtype=torch.float64)
    factor = layers.factors(layer, [(a, b)])["weight"]
    assert 5 * (40 + 30) < 40 * 30  # Gram matrices are cheaper here
    torch.testing.assert_close(factor.squared_norms(), (factor.gradients() ** 2).sum(2))


def test_a_transposed_linear_layer():
    """GPT-2's, if transformers is there: its weight is (inputs, outputs)."""
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    layer = pytorch_utils.Conv1D(4, 5).double()
    a = torch.randn(3, 2, 5, dtype=torch.float64)
    b = torch.randn(3, 2, 2, 4, dtype=torch.float64)
    G = one_by_one(layer, a, b)
    factors = layers.factors(layer, [(a, b)])
    rows = G["weight"].flatten(0, 1)
    for key, factor in factors.items():
        torch.testing.assert_close(factor.gradients(), G[key])
        torch.testing.assert_close(factor.squares(), (G[key] ** 2).sum((0, 1)))
        v = torch.randn(G[key].shape[2], dtype=torch.float64)
        torch.testing.assert_close(factor.along(v), G[key] @ v)
    torch.testing.assert_close(factors["weight"].kernel(factors["weight"]), rows @ rows.T)


class Tied(nn.Module):
    """One table looked up and multiplied by, one layer used twice, in-place activations."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.twice = nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        h = torch.relu_(self.twice(self.table(x)))
        h = self.twice(h).relu_() + h
        return self.head(h.mean(1))


class Hidden(nn.Module):
    """Weights that are also used by name, positions that have no axis of examples, time first."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(6, 4), nn.Embedding(5, 4)
        self.mix, self.across = nn.Linear(4, 4), nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.ones(4) * 1.5)

    def forward(self, x):
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        h = self.mix(h.transpose(0, 1)).tanh_().transpose(0, 1) * self.scale
        h = self.across(h.mT).mT
        return h.sum(1) @ self.table.weight.T


def plan_of(model, x):
    """The checked plan with the gradients of every example by plain differentiation."""
    params = {name: p.detach() for name, p in model.named_parameters()}

    def run():
        return torch.func.functional_call(model, params, (x,))

    def plain(i, c):
        free = {name: p.clone().requires_grad_() for name, p in params.items()}
        out = torch.func.functional_call(model, free, (x[i : i + 1],))[0] @ c
        return dict(zip(free, torch.autograd.grad(out, list(free.values())), strict=True))

    plan = checked_plan(layers_with_rules(model, list(params)), run, plain, len(x))
    return plan, run, plain


def test_tied_weights_repeated_layers_and_operations_in_place():
    torch.manual_seed(0)
    model, x = Tied().double(), torch.randint(6, (4, 5))
    plan, run, plain = plan_of(model, x)
    assert plan.followed == {"table.weight", "twice.weight", "twice.bias"}
    recording = record(plan, 4, run)
    c = torch.randn(4, 2, 6, dtype=torch.float64)
    for name, factor in recording.factors(c).items():
        for i in range(4):
            for j in range(2):
                wanted = plain(i, c[i, j])[name].reshape(-1)
                torch.testing.assert_close(factor.gradients()[i, j], wanted)


def test_what_rules_cannot_follow_is_left_out():
    torch.manual_seed(0)
    model, x = Hidden().double(), torch.randint(6, (4, 5))
    plan, run, plain = plan_of(model, x)
    # table is used by name too, scale has no layer, mix sees time first.
    assert plan.followed == {"places.weight", "across.weight", "across.bias"}
    assert plan.shared == {"places": False}  # without an axis of one example
    c = torch.randn(4, 1, 6, dtype=torch.float64)
    for name, factor in record(plan, 4, run).factors(c).items():
        wanted = torch.stack([plain(i, c[i, 0])[name].reshape(-1) for i in range(4)])
        torch.testing.assert_close(factor.gradients()[:, 0], wanted)
    assert not any(module._forward_hooks for module in model.modules())


def test_operations_in_place_behind_layers():
    """On a convolution's output, and on that of a Linear layer, which is a view in a sequence."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3),
        nn.ReLU(inplace=True),
        nn.Linear(5, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 3),
        nn.Hardtanh(inplace=True),
        nn.Flatten(),
    ).double()
    x = torch.randn(4, 2, 7, dtype=torch.float64)
    plan, run, plain = plan_of(model, x)
    assert plan.followed == {name for name, _ in model.named_parameters()}
    c = torch.randn(4, 2, 12, dtype=torch.float64)
    for name, factor in record(plan, 4, run).factors(c).items():
        for i, j in ((0, 0), (1, 1), (3, 0)):
            wanted = plain(i, c[i, j])[name].reshape(-1)
            torch.testing.assert_close(factor.gradients()[i, j], wanted)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(6, 4, 3, stride=2, padding=1),
        lambda: nn.Conv2d(6, 4, 3, padding=1),
        lambda: nn.Conv2d(6, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"),
        lambda: nn.Conv2d(1, 4, 3),
    ],
)
def test_a_convolution_without_its_patches(make):
    """One gradient an example, products with a direction, and sums, against passes one by one."""
    torch.manual_seed(0)
    layer = make().double()
    shape = (layer.in_channels, 9) if isinstance(layer, nn.Conv1d) else (layer.in_channels, 6, 5)
    a = torch.randn(7, *shape, dtype=torch.float64)
    b = torch.randn(7, 1, *layer(a).shape[1:], dtype=torch.float64)
    G = one_by_one(layer, a, b)["weight"]
    direction = torch.randn(G.shape[2], dtype=torch.float64)
    factor = layers.factors(layer, [(a, b)])["weight"]
    torch.testing.assert_close(factor.gradients(), G)
    torch.testing.assert_close(factor.along(direction), G @ direction)
    torch.testing.assert_close(torch.cat(list(factor.inputs(20))), factor.a)
    made = sums(factor, keep=True)
    torch.testing.assert_close(made.compact.along(direction), G @ direction)
    torch.testing.assert_close(made.total, G.sum(dim=(0, 1)))
    torch.testing.assert_close(made.squares, (G**2).sum(dim=(0, 1)))
    torch.testing.assert_close(made.squared_norms, (G**2).sum(dim=2))


def test_layers_without_a_rule():
    assert layer_rules.rule_of(nn.Embedding(3, 2, max_norm=1.0)) is None
    assert layer_rules.rule_of(nn.BatchNorm1d(3, track_running_stats=False)) is None

    class Own(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    assert layer_rules.rule_of(Own(2, 2)) is None
    with pytest.raises(TypeError, match="no rule for a Own"):
        layers.factors(Own(2, 2), [])


@pytest.mark.parametrize(
    ("T", "i", "o", "groups", "transposed"),
    [(2, 5, 40, 1, False), (2, 40, 5, 1, True), (2, 5, 40, 1, True), (50, 3, 2, 2, False)],
)
def test_what_is_kept_is_the_smaller_form(T, i, o, groups, transposed):
    """Gradients and products with a direction follow from it as from the gradients themselves."""
    generator = torch.manual_seed(0)
    a = torch.randn(7, groups, T, i, dtype=torch.float64, generator=generator)
    b = torch.randn(7, 2, groups, T, o, dtype=torch.float64, generator=generator)
    whole = Outer(a, b, transposed)
    made = sums(whole, keep=True)
    G = torch.einsum("ngti,nkgto->nkgio" if transposed else "ngti,nkgto->nkgoi", a, b).flatten(2)
    direction = torch.randn(G.shape[2], dtype=torch.float64, generator=generator)
    assert isinstance(made.compact, Formed if T == 50 else Outer)
    assert compact_numbers(whole) == min(2 * G.shape[2], groups * T * (i + 2 * o))
    torch.testing.assert_close(made.compact.gradients(), G)
    torch.testing.assert_close(made.compact.along(direction), G @ direction)
    torch.testing.assert_close(made.total, G.sum(dim=(0, 1)))
    torch.testing.assert_close(made.squares, (G**2).sum(dim=(0, 1)))
    torch.testing.assert_close(made.squared_norms, (G**2).sum(dim=2))
