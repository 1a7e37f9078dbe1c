"""Prior precisions read from PyTorch's own optimisers."""

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
]


def problem():
    torch.manual_seed(0)
    x = torch.randn(60, 3, dtype=torch.float64)
    return torch.nn.Linear(3, 2).double(), x, (x[:, 0] + 0.5 * torch.randn(60) > 0).long()


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_training_ends_at_the_minimum_under_that_prior(kind):
    module, x, y = problem()
    optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.5, weight_decay=0.02)
    # Adam's steps do not shrink by themselves.
    power = -1.5 if kind == "Adam" else 0.0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (1 + t / 50) ** power)
    for _ in range(800):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        schedule.step()
    prior = nst.prior_precision_of(optimizer, module, n_train=60)
    assert prior == pytest.approx({"weight": 1.2, "bias": 1.2})
    found = nst.log_evidence(module, (x, y), prior_precision=prior)
    assert found.newton_decrement < 1e-4
    assert found.notes == ()


def test_adamw_reads_its_own_state():
    module, x, y = problem()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.05, eps=1e-6)
    with pytest.raises(ns.InputError, match="AdamW has not yet updated parameter weight"):
        nst.prior_precision_of(optimizer, module, n_train=60)
    squares = {name: np.zeros(p.shape) for name, p in module.named_parameters()}
    for _ in range(7):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        for name, p in module.named_parameters():
            squares[name] = 0.999 * squares[name] + 0.001 * p.grad.numpy() ** 2
        optimizer.step()
    found = nst.prior_precision_of(optimizer, module, n_train=60)
    for name, v in squares.items():
        expected = 60 * 0.05 * (np.sqrt(v / (1 - 0.999**7)) + 1e-6)
        np.testing.assert_allclose(found[name], expected, rtol=1e-9)


def test_what_has_no_prior():
    module, *_ = problem()
    groups = [{"params": [module.weight], "weight_decay": 0.1}, {"params": [module.bias]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(ns.InputError, match="parameter bias has no weight decay"):
        nst.prior_precision_of(optimizer, module, n_train=10)
    found = nst.prior_precision_of(optimizer, module, n_train=10, undecayed=1e-3)
    assert found == pytest.approx({"weight": 1.0, "bias": 1e-3})
    partly = torch.optim.SGD([module.bias], lr=0.1)
    with pytest.raises(ns.InputError, match="does not train the module's parameter weight"):
        nst.prior_precision_of(partly, module, n_train=10, undecayed=1.0)
    other = torch.optim.Adagrad(module.parameters(), weight_decay=0.1)
    with pytest.raises(ns.InputError, match="weight decay of Adagrad is not known here"):
        nst.prior_precision_of(other, module, n_train=10)
    with pytest.raises(ns.InputError, match="optimizer must be a torch.optim.Optimizer, got int"):
        nst.prior_precision_of(3, module, n_train=10)
    with pytest.raises(ns.InputError, match="module must be a torch.nn.Module, got int"):
        nst.prior_precision_of(optimizer, 3, n_train=10)
    undecayed = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(ns.InputError, match="n_train must be a whole number, got 'many'"):
        nst.prior_precision_of(undecayed, module, n_train="many", undecayed=1.0)
