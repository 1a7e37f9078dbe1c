"""The callback in skorch's own nets, against gradients of single examples by definition."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
pytest.importorskip("skorch", reason="an extra: make torch adds it")
from skorch import NeuralNetClassifier  # noqa: E402

from noisescale.noise.watch.record import NoiseRecord  # noqa: E402
from noisescale.skorch import NoiseScaleCallback  # noqa: E402
from oracles.example_gradients import contributions, noise_of  # noqa: E402

pytestmark = pytest.mark.frameworks
F = torch.nn.functional
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 4)).astype(np.float32), RNG.integers(3, size=40)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())


class Accumulating(NeuralNetClassifier):
    """As skorch's documentation accumulates gradients: four batches an update."""

    def get_loss(self, *args, **kwargs):
        return super().get_loss(*args, **kwargs) / 4

    def train_step(self, batch, **fit_params):
        step = self.train_step_single(batch, **fit_params)
        if len(self.history[-1, "batches"]) % 4 == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
        return step


def net(callbacks, kind=NeuralNetClassifier, size=10, **others):
    torch.manual_seed(0)
    return kind(
        Module,
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=0.1,
        batch_size=size,
        train_split=None,
        callbacks=callbacks,
        verbose=0,
        **others,
    )


def first_reading(start, x, y):
    losses = F.cross_entropy(start(torch.tensor(x)), torch.tensor(y), reduction="none")
    return noise_of(contributions(losses, list(start.parameters())))


@pytest.mark.parametrize(("kind", "size"), [(NeuralNetClassifier, 20), (Accumulating, 5)])
def test_readings_are_by_definition_and_weights_the_same(kind, size):
    watched, plain = net([NoiseScaleCallback(every=1)], kind, size), net([], kind, size)
    torch.manual_seed(3)
    start = Module()
    for one in (watched, plain):
        one.initialize()
        one.module_.load_state_dict(start.state_dict())
        one.partial_fit(X, Y, epochs=3)
    for one, other in zip(watched.module_.parameters(), plain.module_.parameters(), strict=True):
        assert torch.equal(one, other)
    record = dict(watched.callbacks_)["NoiseScaleCallback"].watch_
    assert len(record.rows) == record.n_updates == 6
    assert not record.notes
    got = record.rows[0].gradient_sq_norm, record.rows[0].trace
    assert got == pytest.approx(first_reading(start, X[:20], Y[:20]), rel=1e-4)  # float32
    assert record.noise_scale == pytest.approx(0.1 * (40 / 20 - 1))


def test_the_history_holds_the_answer():
    fitted = net([NoiseScaleCallback(every=1, decay=0.0)]).set_params(max_epochs=4).fit(X, Y)
    record = dict(fitted.callbacks_)["NoiseScaleCallback"].watch_
    assert fitted.history[-1, "trace"] == pytest.approx(record.trace.value)
    assert fitted.history[-1, "noise_scale"] == pytest.approx(record.noise_scale)


def test_it_goes_on_after_partial_fit_and_pickling():
    torch.manual_seed(0)
    fitted = net([NoiseScaleCallback(every=1)]).set_params(max_epochs=2).fit(X, Y)
    again = pickle.loads(pickle.dumps(fitted))
    ends = []
    for one in (fitted, again):
        kept = dict(one.callbacks_)["NoiseScaleCallback"].watch_
        assert isinstance(kept, NoiseRecord)
        assert len(kept.rows) == 8
        one.partial_fit(X, Y, epochs=1)
        ends.append(dict(one.callbacks_)["NoiseScaleCallback"].watch_.state_dict())
    assert ends[0]["n_updates"] == ends[1]["n_updates"] == 12
    assert ends[0]["whole"] == ends[1]["whole"]
    fitted.set_params(max_epochs=1).fit(X, Y)  # from the start again
    assert len(dict(fitted.callbacks_)["NoiseScaleCallback"].watch_.rows) == 4


def test_clones_have_its_settings():
    again = clone(net([NoiseScaleCallback(every=7, unit="token")]))
    assert again.callbacks[0].get_params()["every"] == 7
    assert again.callbacks[0].get_params()["unit"] == "token"
