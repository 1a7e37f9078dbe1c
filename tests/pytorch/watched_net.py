"""A small network with a little of everything, and what watching one update of it should give."""

import pytest
import torch
from torch import nn

from oracles.example_gradients import contributions, noise_of

F = nn.functional


class Net(nn.Module):
    """A little of everything, with dropout and an operation in place."""

    def __init__(self, dropout=0.0, batch_norm=False):
        super().__init__()
        self.table = nn.Embedding(9, 6)
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.batch_norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(6, 3)

    def body(self, h):
        return self.norm(h + self.drop(self.inner(h).relu_()))

    def forward(self, x):
        return self.out(self.batch_norm(self.body(self.table(x)).mean(1)))


def data(n=12, seed=1, length=4):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(9, (n, length), generator=generator)
    return x, torch.randint(3, (n,), generator=generator)


def made(dropout=0.0, dtype=torch.float64, **others):
    torch.manual_seed(0)
    model = Net(dropout, **others).to(dtype)
    for p in model.parameters():
        nn.init.normal_(p, std=0.6)
    return model


def wanted(model, x, y, params=None):
    losses = F.cross_entropy(model(x), y, reduction="none")
    return noise_of(contributions(losses, list(params or model.parameters())))


def sgd(model, lr=0.1, **others):
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr, **others)


def last(noise):
    row = noise.history.iloc[-1]
    return row.gradient_sq_norm, row.trace


def close(reading, truth, rel=1e-8):
    assert reading == pytest.approx(truth, rel=rel)


def update(model, optimizer, x, y, reduction="mean"):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y, reduction=reduction).backward()
    optimizer.step()
