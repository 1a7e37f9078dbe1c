"""Watched layers, one update each, against gradients of single examples by definition."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from noisescale.torch import watch  # noqa: E402
from oracles.example_gradients import contributions, noise_of  # noqa: E402

nn = torch.nn
F = nn.functional
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
]
N = 6


def sequential(*layers):
    return nn.Sequential(*layers)


class Heads(nn.Module):
    """Attention's projections, positions, a scale of its own."""

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(7, 8), nn.Embedding(5, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.full((8,), 1.5))

    def forward(self, x):
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        h = h + self.attend(h, h, h, need_weights=False)[0] * self.scale
        return self.out(self.norm(h).mean(1))


class Tied(nn.Module):
    """One table looked up and multiplied by, one layer used twice, in-place activations."""

    def __init__(self):
        super().__init__()
        self.table, self.twice = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight

    def forward(self, x):
        h = torch.relu_(self.twice(self.table(x)))
        h = self.twice(h).relu_() + h
        return self.head(h.mean(1))


class Patches(nn.Module):
    """Positions that were made examples, as in a window of attention."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(4, 5), nn.Linear(15, 3)

    def forward(self, x):
        return self.out(self.inner(x.reshape(-1, 4)).tanh_().reshape(len(x), -1))


class Repeated(nn.Module):
    """A recurrent cell, unrolled."""

    def __init__(self):
        super().__init__()
        self.step, self.out = nn.Linear(4 + 3, 3), nn.Linear(3, 3)

    def forward(self, x):
        h = x.new_zeros(len(x), 3)
        for t in range(x.shape[1]):
            h = torch.tanh(self.step(torch.cat([x[:, t], h], 1)))
        return self.out(h)


class OwnRMSNorm(nn.Module):
    """As language models have it: a weight, and precision of its own."""

    def __init__(self, width, offset=0.0):
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.ones(width)), offset

    def forward(self, hidden_states):
        x = hidden_states.double()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return (self.offset + self.weight) * x.to(hidden_states.dtype)


class LayerNorm(nn.Module):
    """One whose bias may be left out."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class ChannelScale(nn.Module):
    """A number for each channel, and one for everything; ``power`` 2 is no line."""

    def __init__(self, channels, power=1):
        super().__init__()
        self.gamma, self.power = nn.Parameter(torch.ones(channels)), power
        self.heat = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * (self.gamma**self.power)[:, None, None] * self.heat


class GatedNorm(nn.Module):
    """No norm as rules know them: its weights are mixed."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x, gate=None):
        return x * self.weight.cumsum(0)


class Places(nn.Module):
    """Positions that are looked up without examples, and what becomes of them."""

    def __init__(self, shaped, at=lambda T: torch.arange(T)):
        super().__init__()
        self.table, self.places, self.out = nn.Embedding(7, 4), nn.Embedding(9, 4), nn.Linear(4, 3)
        self.shaped, self.at = shaped, at

    def forward(self, x):
        places = self.shaped(self.places(self.at(x.shape[1])), x)
        return self.out((self.table(x) + places).tanh().mean(1))


class Rows(nn.Module):
    """A layer that sees a table of the module's own."""

    def __init__(self):
        super().__init__()
        self.table, self.mix, self.out = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.rows = nn.Parameter(torch.zeros(5, 4))

    def forward(self, x):
        return self.out((self.table(x) + self.mix(self.rows)[None]).tanh().mean(1))


LOOKED_UP = {
    "places": lambda p, x: p,
    "places with an axis": lambda p, x: p[None],
    "places for each": lambda p, x: p[None].expand(len(x), -1, -1),
    "places repeated": lambda p, x: p[None].repeat(len(x), 1, 1),
    "places averaged": lambda p, x: p.mean(0),
}
OWN = {
    "own RMS norm": (
        lambda: sequential(OwnRMSNorm(5), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3)),
        (3, 5),
    ),
    "own RMS norm, offset": (
        lambda: sequential(nn.Linear(5, 4), OwnRMSNorm(4, 1.0), nn.Flatten(), nn.Linear(12, 3)),
        (3, 5),
    ),
    "own layer norm": (
        lambda: sequential(LayerNorm(5, bias=True), LayerNorm(5, bias=False), nn.Linear(5, 3)),
        (5,),
    ),
    "own scale by channel": (
        lambda: sequential(ChannelScale(4), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        (4, 3, 2),
    ),
}
MODELS = {
    **OWN,
    "no line": (
        lambda: sequential(ChannelScale(4, power=2), nn.Flatten(), nn.Linear(24, 3)),
        (4, 3, 2),
    ),
    "no norm at all": (lambda: sequential(GatedNorm(5), nn.Linear(5, 3)), (5,)),
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear, no bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "sequence by Gram matrices": (
        lambda: sequential(nn.Linear(40, 30), nn.Tanh(), nn.Flatten(), nn.Linear(60, 3)),
        (2, 40),
    ),
    "sequence, no bias": (
        lambda: sequential(nn.Linear(40, 30, bias=False), nn.Flatten(), nn.Linear(60, 3)),
        (2, 40),
    ),
    "sequence directly": (
        lambda: sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
        (9, 3),
    ),
    "conv1d": (
        lambda: sequential(nn.Conv1d(4, 6, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(30, 3)),
        (4, 9),
    ),
    "conv2d in place": (
        lambda: sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 3)
        ),
        (2, 6, 5),
    ),
    "conv2d, all of it": (
        lambda: sequential(
            nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
            nn.Flatten(),
            nn.Linear(192, 3),
        ),
        (4, 7, 6),
    ),
    "conv2d, same": (
        lambda: sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.Flatten(), nn.Linear(60, 3)),
        (2, 4, 5),
    ),
    "conv2d, reflected": (
        lambda: sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(60, 3)
        ),
        (2, 4, 5),
    ),
    "layer norm": (lambda: sequential(nn.LayerNorm(5), nn.Flatten(), nn.Linear(15, 3)), (3, 5)),
    "layer norm, two axes": (
        lambda: sequential(nn.LayerNorm((3, 5), bias=False), nn.Flatten(), nn.Linear(30, 3)),
        (2, 3, 5),
    ),
    "rms norm": (lambda: sequential(nn.RMSNorm(5), nn.Flatten(), nn.Linear(15, 3)), (3, 5)),
    "group norm": (
        lambda: sequential(nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
        (6, 3, 2),
    ),
    "embedding": (
        lambda: sequential(nn.Embedding(7, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)),
        7,
    ),
    "embedding of many rows": (
        lambda: sequential(nn.Embedding(50, 4, padding_idx=2), nn.Flatten(), nn.Linear(20, 3)),
        7,
    ),
    "sparse embedding": (
        lambda: sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(20, 3)),
        7,
    ),
    "attention, positions, a parameter": (Heads, 7),
    "encoder layer": (
        lambda: sequential(
            nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (3, 4),
    ),
    "sequence in place": (
        lambda: sequential(
            nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Flatten(), nn.Linear(36, 3)
        ),
        (9, 3),
    ),
    "tied": (Tied, 7),
    **{name: (partial(Places, shaped), 7) for name, shaped in LOOKED_UP.items()},
    "places of one example": (lambda: Places(lambda p, x: p, lambda T: torch.arange(T)[None]), 7),
    "one place": (lambda: Places(lambda p, x: p, lambda T: torch.tensor(2)), 7),
    "rows": (Rows, 7),
    "patches": (Patches, (3, 4)),
    "recurrent cell": (Repeated, (3, 4)),
}


def prepared(name, n=N):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    x = (
        torch.randint(shape, (n, 5))
        if isinstance(shape, int)
        else torch.randn(n, *shape, dtype=torch.float64)
    )
    return model, x, torch.randint(3, (n,))


def close(reading, wanted):
    assert reading == pytest.approx(wanted, rel=1e-8)


CASES = [(name, norm) for name in MODELS for norm in ("l2", "adam")]
CASES.remove(("sparse embedding", "adam"))  # which takes no sparse gradients


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_readings_are_those_of_the_definitions(name, norm):
    model, x, y = prepared(name)
    params = list(model.parameters())
    g = contributions(F.cross_entropy(model(x), y, reduction="none"), params)
    if norm == "adam":
        optimizer = torch.optim.Adam(params, lr=1e-3, eps=1e-3)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        # At the new weights, divided as its step divides.
        g = contributions(F.cross_entropy(model(x), y, reduction="none"), params)
        v = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in params])
        g = g / ((v / (1 - 0.999)).sqrt() + 1e-3)
    else:
        optimizer = torch.optim.SGD(params, lr=0.1)
    noise = watch(model, optimizer, every=1, norm=norm, per_layer=True)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    (row,) = noise.history.itertuples()
    close((row.gradient_sq_norm, row.trace), noise_of(g))
    columns = torch.split(g, [p.numel() for p in params], dim=1)
    by_layer = {}
    for (key, _), part in zip(model.named_parameters(), columns, strict=True):
        by_layer.setdefault(key.rpartition(".")[0] or "(model)", []).append(part)
    assert set(noise.layers.index) == set(by_layer)
    for key, parts in by_layer.items():
        found = noise.layers.loc[key]
        close((found.gradient_sq_norm, found.trace), noise_of(torch.cat(parts, 1)))
    if name in OWN:  # followed by a rule
        assert noise.notes == ()


@pytest.mark.parametrize("name", [*LOOKED_UP, "places of one example"])
@pytest.mark.parametrize(
    "shapes", [((1, 5), (5, 5)), ((1, 3), (6, 3)), ((6, 5), (6, 1)), ((6, 1), (6, 5)), ((3, 3),)]
)
def test_places_as_many_as_examples_or_of_another_number_than_at_first(name, shapes):
    """The last of some updates, after one with a single example, or with one place, or five."""
    model, _, _ = prepared(name)
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)
    noise = watch(model, optimizer, every=1)
    for shape in shapes:
        x, y = torch.randint(7, shape), torch.randint(3, shape[:1])
        g = contributions(F.cross_entropy(model(x), y, reduction="none"), params)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    *_, row = noise.history.itertuples()
    close((row.gradient_sq_norm, row.trace), noise_of(g))
