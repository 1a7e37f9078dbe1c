"""``optimizer.step(closure)``, whose backward pass is inside of the step."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from torch.nn.functional import mse_loss  # noqa: E402

from noisescale.torch import watch  # noqa: E402

pytestmark = pytest.mark.frameworks


def readings(how, make, every):
    """The measured updates' readings, the weights afterwards and what was skipped."""
    torch.manual_seed(0)
    x, model = torch.randn(32, 4).double(), torch.nn.Linear(4, 1).double()
    y = x.sum(1, keepdim=True) + torch.randn(32, 1)
    optimizer = make(model.parameters())
    noise = watch(model, optimizer, every=every)

    def closure():
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(4):
        if how == "before":
            closure()
            optimizer.step()
        elif how == "by name":
            optimizer.step(closure=closure)
        else:
            optimizer.step(closure)
    noise.close()
    rows = [(row.update, row.gradient_sq_norm, row.trace) for row in noise.rows]
    return rows, model.weight.tolist(), (noise.whole.n_skipped, noise.n_updates, noise.notes)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("how", ["closure", "by name"])
def test_readings_of_a_closure_are_those_of_the_plain_loop(how, every):
    def sgd(params):
        return torch.optim.SGD(params, lr=0.1, momentum=0.9)

    assert readings(how, sgd, every) == readings("before", sgd, every)


def test_a_closure_that_is_called_several_times_gives_one_reading():
    """LBFGS calls it at other weights too: the reading is of those before the step."""

    def lbfgs(n):
        return lambda params: torch.optim.LBFGS(params, lr=0.01, max_iter=n)

    rows, _, circumstances = readings("closure", lbfgs(5), 1)
    assert circumstances == (0, 4, ())
    assert [row[0] for row in rows] == [0, 1, 2, 3]
    first = readings("before", lambda params: torch.optim.SGD(params, lr=0.1), 1)[0][0]
    assert rows[0] == first


class Sharp(torch.optim.SGD):
    """Steps from a gradient to what its closure finds there, by the step of its base."""

    def step(self, closure):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p += 0.01 * p.grad
        closure()
        return super().step(closure)


def test_the_gradient_that_was_there_before_the_step_is_the_reading():
    """A step inside of a step is the same update."""
    torch.manual_seed(0)
    x, model = torch.randn(32, 4).double(), torch.nn.Linear(4, 1).double()
    optimizer = Sharp(model.parameters(), lr=0.0)
    torch.optim.SGD(model.parameters())  # from now on the base's step calls hooks too
    noise = watch(model, optimizer, every=1)

    def closure():
        optimizer.zero_grad()
        loss = mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        return loss

    weights = model.weight.detach().clone()
    for _ in range(3):
        with torch.no_grad():
            model.weight.copy_(weights)
        closure()
        optimizer.step(closure)
    assert (noise.n_updates, noise.whole.n_skipped, noise.notes) == (3, 0, ())
