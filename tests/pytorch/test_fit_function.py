"""A PyTorch module's prequential evidence, against the same training by hand."""

import math

import numpy as np
import pytest

import noisescale as ns
from noisescale.errors import InputError

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
pytestmark = [
    pytest.mark.frameworks,
    # PyTorch's own forward derivatives use it.
]

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, size=90)
X = RNG.normal(size=(90, 2)) + 2.5 * np.stack([Y == 1, Y == 2], axis=1)
RECIPE = {"batch_size": 20, "steps": 100, "momentum": 0.9}
OPTIONS = {"blocks": [30, 60], "orders": 1}


def make():
    return torch.nn.Linear(2, 3)


def test_it_pays_what_the_trained_module_predicts():
    from noisescale.evidence.prequential.blocks import fit_seed, order_of

    fit = ns.torch.fit_function(make, learning_rate=0.1, **RECIPE)
    found = ns.prequential_evidence(fit, (X, Y), temperatures=(1.0,), floor=0.0, **OPTIONS)
    order = order_of(0, 0, 90)
    predicted = fit(X[order[:30]], Y[order[:30]], seed=fit_seed(0, 0, 30, 0))(X[order[30:]])
    expected = -np.log(predicted[np.arange(60), Y[order[30:]]]).sum()
    assert found.losses[0, 0, 0] == pytest.approx(expected, rel=1e-12)
    assert found.E < -20


def test_divergence_predicts_all_classes_alike():
    def deep():
        return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    wild = ns.torch.fit_function(deep, learning_rate=1e30, **RECIPE)
    found = ns.prequential_evidence(wild, (X, Y), **OPTIONS)
    np.testing.assert_allclose(found.losses, 60 * math.log(3))


@pytest.mark.parametrize("steps", range(1, 9))
def test_divergence_in_any_update_predicts_all_classes_alike(steps):
    """In the last one too, of which no loss tells."""

    def deep():
        layers = [torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16)]
        return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(16, 3))

    fit = ns.torch.fit_function(deep, batch_size=20, learning_rate=1e9, steps=steps)
    predicted = fit(X, Y, seed=0)(X)
    assert np.isfinite(predicted).all()
    if steps > 1:
        np.testing.assert_allclose(predicted, 1 / 3)


def test_outputs_that_overflow_predict_all_classes_alike():
    def ones():
        module = make()
        torch.nn.init.ones_(module.weight)
        return module

    fits = [
        ns.torch.fit_function(ones, batch_size=20, learning_rate=1e-3, steps=1),
        ns.evidence.fit_function(
            lambda w, x: x @ w,
            lambda seed: np.ones((2, 3)),
            batch_size=20,
            learning_rate=1e-3,
            steps=1,
        ),
    ]
    for fit in fits:
        predicted = fit(X.astype("float32"), Y, seed=0)(np.full((4, 2), 3e38, np.float32))
        np.testing.assert_allclose(predicted, 1 / 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": "x"}, "batch_size must be a whole number, got 'x'"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number above 0"),
        ({"learning_rate": None}, "learning_rate must be a finite number above 0"),
        ({"steps": 10**80}, "steps must be at most"),
        ({"steps": 1e80}, "steps must be a whole number"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"weight_decay": -1}, "weight_decay must be a finite number at least 0, got -1"),
        ({"weight_decay": "x"}, "weight_decay must be a finite number at least 0, got 'x'"),
        ({"loss": 3}, "loss must be a function, got int"),
        ({"device": "moon"}, "device must be one that PyTorch computes on"),
        ({"device": "meta"}, "device must be one that PyTorch computes on"),
        ({"device": 3}, "device must be one that PyTorch computes on"),
    ],
)
def test_a_recipe_is_checked_before_anything_is_trained(change, message):
    with pytest.raises(InputError, match=message):
        ns.torch.fit_function(make, **{"learning_rate": 0.1, **RECIPE} | change)
    pair = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    rest = {name: change[name] for name in change if name in ("weight_decay", "loss", "device")}
    if rest:
        with pytest.raises(InputError, match=message):
            ns.torch.train_function(make, pair, pair, **rest)


def test_what_tunes_checks_its_arguments_too():
    pair = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    with pytest.raises(InputError, match="metric must be a function, got float"):
        ns.torch.train_function(make, pair, pair, metric=0.5)
    train = ns.torch.train_function(make, pair, pair)
    recipe = {"batch_size": 20, "learning_rate": 0.1, "momentum": 0.9, "seed": 0}
    for steps, message in ((10**80, "at most"), (0, "at least 1"), (2.5, "a whole number")):
        with pytest.raises(InputError, match=f"steps must be {message}"):
            train(**recipe, steps=steps)


def test_one_logit_is_of_the_second_class():
    y = (Y > 0).astype(int)

    def loss(outputs, y):
        return torch.nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float())

    fit = ns.torch.fit_function(
        lambda: torch.nn.Linear(2, 1), learning_rate=0.1, loss=loss, **RECIPE
    )
    assert ns.prequential_evidence(fit, (X, y), **OPTIONS).E < -10


def test_a_module_in_place_of_its_maker():
    with pytest.raises(InputError, match="make_module must be a function"):
        ns.torch.fit_function(make(), learning_rate=0.1, **RECIPE)


def test_an_evidence_of_a_module_can_be_refined():
    pytest.importorskip("arviz_stats", reason="arviz-stats is an extra")
    data = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    module = make()
    found = ns.torch.log_evidence(module, data, prior_precision=1.0, at="map").refine(500)
    model = ns.softmax_regression(2, 3)
    twin = ns.log_evidence(model, model.init(0), (X, Y), prior_precision=1.0, at="map").refine(500)
    error = math.hypot(found.log_evidence_std, twin.log_evidence_std)
    assert abs(found.log_evidence - twin.log_evidence) < 4 * error + 0.01
    assert found.trusted


def test_a_function_of_ones_own_may_return_tensors_and_a_module_is_no_fit():
    """Gradients attached and all, as a module gives them."""
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    y = np.arange(20) % 2

    def fit(x, y, *, seed):
        torch.manual_seed(seed)
        module = torch.nn.Linear(3, 2)
        return lambda x: module(torch.from_numpy(x)).softmax(1)

    found = ns.prequential_evidence(fit, (x, y), orders=1, blocks=[10, 10])
    assert np.isfinite(found.losses).all()
    with pytest.raises(ns.InputError, match="Linear is one PyTorch module: use noisescale.torch"):
        ns.prequential_evidence(torch.nn.Linear(3, 2), (x, y))
