"""Watching compiled models: whole ones, parts, and those that compute their loss themselves."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from noisescale.noise.watch.record import WatchWarning  # noqa: E402
from noisescale.torch import watch  # noqa: E402
from oracles.example_gradients import contributions, noise_of  # noqa: E402
from pytorch.watched_net import close, data, last, made, sgd, update, wanted  # noqa: E402

nn = torch.nn
F = nn.functional
pytestmark = pytest.mark.frameworks


@pytest.fixture(autouse=True)
def _fresh():
    yield
    torch._dynamo.reset()


def test_a_compiled_model():
    model, (x, y) = made(), data()
    truth = wanted(model, x, y)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = sgd(model, lr=0.0)
    noise = watch(compiled, optimizer, every=2, per_layer=True)
    for _ in range(3):
        update(compiled, optimizer, x, y)
    assert list(noise.history["update"]) == [0, 2]
    close(last(noise), truth, rel=1e-7)
    assert set(noise.layers.index) == {"table", "inner", "norm", "out"}


def test_a_compiled_model_with_batch_normalisation_gets_a_sentence():
    model, (x, y) = made(batch_norm=True), data()
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    noise = watch(compiled, optimizer, every=1)
    with pytest.warns(WatchWarning, match="watch the model uncompiled"):
        update(compiled, optimizer, x, y)
    assert noise.history.empty


class Language(nn.Module):
    """Returns logits and their loss, as small language models do; its weights are tied."""

    def __init__(self, returns="logits, loss"):
        super().__init__()
        self.table, self.places = nn.Embedding(9, 6), nn.Embedding(5, 6)
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.head, self.returns = nn.Linear(6, 9, bias=False), returns
        self.head.weight = self.table.weight

    def forward(self, x, targets):
        h = self.table(x) + self.places(torch.arange(x.shape[1]))
        logits = self.head(self.norm(h + self.inner(h).relu()))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        every = {"logits": logits, "loss": loss}
        chosen = [every[name] for name in self.returns.split(", ")]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)


def sentences(n=8):
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(9, (n, 5), generator=generator)
    lengths = torch.randint(1, 6, (n, 1), generator=generator)
    return x, torch.where(torch.arange(5) < lengths, x.roll(-1, 1), -1)


def by_tokens(model, x, y):
    """|G|^2 and tr S by definition, sequences weighted by their tokens."""
    logits = model(x, y)[0]
    each = F.cross_entropy(logits.mT, y, reduction="none", ignore_index=-1).sum(1)
    t = (y != -1).sum(1).double()
    c = contributions(each / t.sum(), list(model.parameters()))
    q, total, squares = float(t @ t / t.sum() ** 2), c.sum(0).square().sum(), c.square().sum()
    signal, variance = (total - squares) / (1 - q), (squares - q * total) / (1 - q)
    return float(signal), float(variance * t.sum())


@pytest.mark.parametrize("returns", ["logits, loss", "loss, logits"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_loss_that_the_model_computes(returns, compiled):
    torch.manual_seed(0)
    model, (x, y) = Language().double(), sentences()
    truth, model.returns = by_tokens(model, x, y), returns
    plain, at = copy.deepcopy(model), returns.split(", ").index("loss")

    def train(one, watching):
        called = torch.compile(one, backend="aot_eager") if compiled else one
        optimizer = sgd(one)
        noise = watch(called, optimizer, every=1, unit="token") if watching else None
        for _ in range(2):
            optimizer.zero_grad()
            called(x, y)[at].backward()
            optimizer.step()
        return noise

    noise = train(model, True)
    train(plain, False)
    close((noise.rows[0].gradient_sq_norm, noise.rows[0].trace), truth)
    assert (len(noise.rows), noise.notes) == (2, ())
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


def test_some_examples_of_a_loss_that_the_model_computes():
    """A random part of the batch, on average: as all of it."""
    torch.manual_seed(0)
    model, (x, y) = Language().double(), sentences(4)
    truth, called = by_tokens(model, x, y), torch.compile(model, backend="eager")
    optimizer = sgd(model, lr=0.0)
    noise = watch(called, optimizer, examples=2, unit="token")
    for _ in range(40):
        optimizer.zero_grad()
        called(x, y)[1].backward()
        optimizer.step()
    different = {round(row.trace, 9): row.trace for row in noise.rows}
    assert len(different) == 4  # neighbours, around the end
    assert sum(different.values()) / 4 == pytest.approx(truth[1], rel=1e-8)


def test_a_loss_alone_gets_a_sentence():
    torch.manual_seed(0)
    model, (x, y) = Language(returns="loss").double(), sentences()
    called, optimizer = torch.compile(model, backend="eager"), sgd(model)
    noise = watch(called, optimizer, every=1)
    called(x, y).backward()
    with pytest.warns(WatchWarning, match="let the model return its logits as well"):
        optimizer.step()
    assert (len(noise.rows), noise.whole.n_skipped) == (0, 1)


class Inside(nn.Module):
    """A compiled part, called by a module that is not, or by the training loop itself."""

    def __init__(self, net):
        super().__init__()
        self.net, self.last = torch.compile(net, backend="aot_eager"), nn.Linear(3, 3).double()

    def forward(self, x):
        return self.last(self.net(x).tanh())


@pytest.mark.parametrize("whole", [True, False])
def test_a_part_that_is_compiled(whole):
    model, (x, y) = Inside(made()), data()

    def outputs():
        return model(x) if whole else model.last(model.net(x).tanh())

    losses = F.cross_entropy(outputs(), y, reduction="none")
    truth, optimizer = noise_of(contributions(losses, list(model.parameters()))), sgd(model)
    noise = watch(model, optimizer, every=1, per_layer=True)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(outputs(), y).backward()
        optimizer.step()
    close((noise.rows[0].gradient_sq_norm, noise.rows[0].trace), truth, rel=1e-7)
    assert (len(noise.rows), noise.notes) == (2, ())
