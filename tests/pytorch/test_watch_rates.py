"""``watch.noise_scale`` is of plain SGD alone, and counts what its groups say."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from torch.nn.functional import mse_loss  # noqa: E402

import noisescale as ns  # noqa: E402
from noisescale.noise.watch.saved import load  # noqa: E402
from noisescale.torch import watch  # noqa: E402

pytestmark = pytest.mark.frameworks


class Ours(torch.optim.SGD):
    """Another name, the same step."""


class Sharp(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def watched(make, steps=4):
    torch.manual_seed(0)
    x, model = torch.randn(64, 4).double(), torch.nn.Linear(4, 1).double()
    y = x.sum(1, keepdim=True) + torch.randn(64, 1)
    optimizer = make(model)
    with watch(model, optimizer, n_train=1024, every=1) as noise:
        for _ in range(steps):
            model.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
    return noise


def recipe(**others):
    return ns.Recipe(learning_rate=0.01, batch_size=64, n_train=1024, **others).noise_scale


SGD = torch.optim.SGD


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SGD, {}),
        (SGD, {"momentum": 0.9}),
        (SGD, {"momentum": 0.9, "dampening": 0.9}),
        (SGD, {"dampening": 0.9}),  # which PyTorch ignores
        (SGD, {"momentum": 0.9, "nesterov": True}),
        (Ours, {"momentum": 0.5}),
    ],
)
def test_the_noise_scale_is_that_of_the_recipe(kind, options, tmp_path):
    noise = watched(lambda model: kind(model.parameters(), lr=0.01, **options))
    g = pytest.approx(recipe(**options), rel=1e-12)
    assert (noise.noise_scale, noise.advice().noise_scale) == (g, g)
    for name in ("run.json", "run.csv"):
        noise.save(tmp_path / name)
        assert load(tmp_path / name).noise_scale == g


@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.9),
        lambda params: torch.optim.Adagrad(params, lr=1e-3),
        lambda params: torch.optim.Adam(params, lr=1e-3),
        lambda params: torch.optim.ASGD(params, lr=1e-3),
        lambda params: torch.optim.Rprop(params, lr=1e-3),
        lambda params: torch.optim.Muon([p for p in params if p.ndim == 2], lr=1e-3),
        lambda params: Sharp(params, lr=1e-3, momentum=0.9),
    ],
)
def test_other_optimisers_have_no_noise_scale(make):
    noise = watched(lambda model: make(list(model.parameters())))
    assert len(noise.rows) == 4
    assert noise.noise_scale is None
    assert noise.advice().noise_scale is None
    assert math.isnan(noise.rows[-1].momentum)


@pytest.mark.parametrize(
    ("weight", "bias", "scale", "said"),
    [
        ({"momentum": 0.9}, {}, None, "different momenta"),
        ({"momentum": 0.9, "dampening": 0.5}, {"momentum": 0.9}, None, "different momenta"),
        ({"lr": 0.01}, {"lr": 0.1}, recipe(), "different learning rates"),
        ({"weight_decay": 0.1}, {}, recipe(), None),
    ],
)
def test_groups_that_differ(weight, bias, scale, said):
    noise = watched(
        lambda model: SGD(
            [{"params": [model.weight], **weight}, {"params": [model.bias], **bias}], lr=0.01
        )
    )
    assert noise.noise_scale == (None if scale is None else pytest.approx(scale))
    assert noise.advice().noise_scale == noise.noise_scale
    assert [said in note for note in noise.notes] == ([] if said is None else [True])
