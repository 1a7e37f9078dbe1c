"""A watched run is the run without a watch: weights, attributes, hooks' calls, random numbers."""

import collections
import random
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from noisescale.torch import watch  # noqa: E402
from noisescale.torch.watched import UnwatchableError  # noqa: E402

pytestmark = pytest.mark.frameworks


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.ones(8))  # of no rule: calls are made again for it

    def forward(self, x):
        return self.b(self.change(torch.relu(self.a(x)) * self.scale))


class Counter(Base):
    calls = 0

    def change(self, h):
        self.calls += 1
        return h * (1 + 0.01 * self.calls)


class Buffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def change(self, h):
        self.calls += 1
        return h * (1 + 0.01 * self.calls)


class PythonRandom(Base):
    def change(self, h):
        return h * (1 + 0.01 * random.random())


class NumpyRandom(Base):
    def change(self, h):
        return h * (1 + 0.01 * np.random.rand())  # noqa: NPY002


class OwnGenerators(Base):
    def __init__(self):
        super().__init__()
        self.torch = torch.Generator().manual_seed(0)
        self.numpy = np.random.default_rng(0)

    def change(self, h):
        return h * (1 + 0.01 * torch.rand(8, generator=self.torch) + 0.01 * self.numpy.random())


class Average(Base):
    mean = 0.0

    def change(self, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class Containers(Base):
    def __init__(self):
        super().__init__()
        self.kept = {"means": collections.deque(maxlen=3), "n": [0]}

    def change(self, h):
        self.kept["n"][0] += 1
        self.kept["means"].append(h.mean())  # with its history
        return h - 0.1 * torch.stack([m.detach() for m in self.kept["means"]]).mean()


class InPlace(Base):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def change(self, h):
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.mean


class Hidden(Base):
    state = None

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def change(self, h):
        out, state = self.gru(h[:, None], self.state)
        self.state = state.detach()
        return out[:, -1]


class Locked(Counter):  # which no copy can be made of
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Hooked(Base):
    """Hooks of the user's: they are called by the run alone, and may change what it computes."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()
        self.a.register_forward_pre_hook(self.pre)
        self.a.register_forward_hook(self.post)
        self.b.register_full_backward_hook(lambda *_: self.calls.update(["back"]))

    def pre(self, module, args):
        self.calls["pre"] += 1

    def post(self, module, args, output):
        self.calls["post"] += 1
        return output * (1 + 0.01 * self.calls["post"])

    def change(self, h):
        return h


class Normed(Base):
    """A hook of PyTorch's own makes the weight, and belongs to the module."""

    def __init__(self):
        super().__init__()
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(self.b)

    def change(self, h):
        return h


KINDS = (
    *(Counter, Buffer, PythonRandom, NumpyRandom, OwnGenerators, Average, Containers, InPlace),
    *(Hidden, Locked, Hooked, Normed),
)
SETTINGS = {"every update": {"every": 1}, "rules alone": {"every": 1, "uncovered": "leave_out"}}


def trained(kind, settings):
    """Weights, attributes and random numbers after some updates, and the watch."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    noise = None if settings is None else watch(model, optimizer, **settings)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    for part in x.split(8):
        optimizer.zero_grad()
        cross_entropy(model(part), (part[:, 0] > 0).long()).backward()
        optimizer.step()
    if noise is not None:
        noise.close()
    plain = {
        f"{path}.{name}": str(value)
        for path, part in model.named_modules()
        for name, value in vars(part).items()
        if not name.startswith("_") and name not in ("torch", "numpy", "lock")
    }
    hooks = [len(part._forward_hooks) for part in model.modules()]
    own = (
        (torch.rand(3, generator=model.torch).tolist(), model.numpy.random())
        if kind is OwnGenerators
        else None
    )
    rand = np.random.rand()  # noqa: NPY002
    drawn = torch.rand(3).tolist(), random.random(), rand, own
    return model.state_dict(), plain, hooks, drawn, noise


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_watched_run_is_the_run_without(kind, settings):
    weights, *others, _ = trained(kind, None)
    watched, *same, noise = trained(kind, SETTINGS[settings])
    assert weights.keys() == watched.keys()
    assert all(torch.equal(weights[name], watched[name]) for name in weights)
    assert same == others
    assert len(noise.rows) == 8
    told = any(note.startswith("forward hooks are not called") for note in noise.notes)
    assert told == (kind is Hooked and settings == "every update")


def test_parameters_of_a_module_that_cannot_be_copied_are_left_out():
    *_, noise = trained(Locked, {"every": 1})
    assert noise.notes[0].startswith("layers could not be compared with plain differentiation")
    assert noise.notes[1] == (
        "left out: scale, because their module's call could not be made again: their module cannot "
        "be copied (cannot pickle '_thread.lock' object)"
    )


def test_the_module_is_as_ever_while_a_copy_of_it_is_called():
    """Other threads may call it meanwhile."""
    seen = []

    class Looking(Base):
        def change(self, h):
            seen.append(
                (run[0].training, len(run[0].a._forward_hooks), len(run[0].b._forward_hooks))
            )
            return h

    run = [Looking()]
    optimizer = torch.optim.SGD(run[0].parameters(), lr=0.1)
    with watch(run[0], optimizer, every=1):
        for _ in range(2):
            optimizer.zero_grad()
            run[0](torch.ones(8, 6)).sum().backward()
            optimizer.step()
    assert len(seen) > 4
    assert {training for training, *_ in seen} == {True}
    assert {n for _, *ns in seen for n in ns} == {1, 2}  # around it, and after layers with rules


def test_hooks_on_all_modules_are_not_called_again():
    calls = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        trained(Counter, None)
        once = len(calls)
        trained(Counter, {"every": 1})
        assert len(calls) == 2 * once
    finally:
        handle.remove()


def test_a_script_module_is_refused_and_nothing_is_left_behind():
    model = nn.Sequential(nn.Linear(6, 4), torch.jit.script(nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnwatchableError, match="a ScriptModule takes no hooks"):
        watch(model, optimizer)
    assert not model[0]._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks
    model(torch.ones(3, 6)).sum().backward()
    optimizer.step()


def test_what_was_registered_before_a_failure_is_taken_away_again():
    class Refusing(nn.Linear):
        def register_forward_hook(self, *args, **kwargs):
            raise RuntimeError("no hooks here")

    model = nn.Sequential(nn.Linear(6, 4), Refusing(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="no hooks here"):
        watch(model, optimizer)
    hooks = [h for part in model.modules() for h in (part._forward_hooks, part._forward_pre_hooks)]
    assert not any(hooks)
    assert not optimizer._optimizer_step_pre_hooks
