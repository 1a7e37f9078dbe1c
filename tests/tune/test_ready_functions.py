"""The ready training functions against the libraries they wrap, and the examples that use them."""

import functools
import importlib.util
import math
import pickle
import warnings
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor

import noisescale as ns
from noisescale.data import load_digits
from noisescale.seeds import random_stream
from noisescale.sklearn import train_function as sklearn_function
from noisescale.training.sampling import BatchStream
from noisescale.tune import train_function
from noisescale.tune.function import Interface, check_function, interface_of
from oracles.here import Here

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = {"batch_size": 16, "learning_rate": 0.05, "momentum": 0.8, "steps": 60, "seed": 3}


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return (data.x_train[:300], data.y_train[:300]), (data.x_train[300:500], data.y_train[300:500])


class TestJax:
    def test_is_the_engine(self, digits):
        network = ns.DenseNetwork((64, 16, 10))
        train = train_function(network, network.init, *digits)
        run = ns.train(
            network,
            network.init(3),
            digits[0],
            learning_rate=0.05,
            momentum=0.8,
            batch_size=16,
            steps=60,
            seed=3,
            test_data=digits[1],
            evaluate_at="final",
        )
        assert train(**SETTINGS) == run.final.test_accuracy
        entropy = train_function(network, network.init, *digits, metric="log_likelihood")
        assert entropy(**SETTINGS) == -run.final.test_cross_entropy

    def test_divergence_is_nan(self, digits):
        network = ns.DenseNetwork((64, 16, 10))
        train = train_function(network, network.init, *digits)
        assert math.isnan(train(**SETTINGS | {"learning_rate": 1e20}))

    def test_is_named_by_its_content(self, digits):
        network = ns.DenseNetwork((64, 16, 10))
        train = train_function(network, network.init, *digits)
        assert train.n_train == 300
        assert train.identity == train_function(network, network.init, *digits).identity
        other = ns.DenseNetwork((64, 17, 10))
        changed = digits[0][0] + 1, digits[0][1]
        assert train.identity != train_function(other, other.init, *digits).identity
        assert train.identity != train_function(network, network.init, changed, digits[1]).identity
        assert check_function(train) == []

    @pytest.mark.parametrize("wrong", [3, None, (1, 2), (np.ones((4, 2)), np.ones(3))])
    @pytest.mark.parametrize("place", [0, 1])
    def test_data_are_pairs(self, digits, wrong, place):
        pairs = [wrong if at == place else pair for at, pair in enumerate(digits)]
        network = ns.DenseNetwork((64, 16, 10))
        with pytest.raises(ns.InputError, match=("train_data", "validation_data")[place]):
            train_function(network, network.init, *pairs)

    def test_travels(self, digits):
        network = ns.DenseNetwork((64, 16, 10))
        train = train_function(network, network.init, *digits)
        assert pickle.loads(cloudpickle.dumps(train))(**SETTINGS) == train(**SETTINGS)

    def test_an_unknown_metric_is_refused(self, digits):
        with pytest.raises(ns.InputError, match="metric must be one of accuracy"):
            train_function(lambda p, x: x, lambda seed: 0, *digits, metric="loss")


class TestSklearn:
    def test_an_update_a_batch(self, digits):
        (x, y), validation = digits
        estimator = MLPClassifier((8,), solver="sgd", nesterovs_momentum=False)
        train = sklearn_function(estimator, (x, y), validation)
        twin = MLPClassifier(
            (8,),
            solver="sgd",
            nesterovs_momentum=False,
            batch_size=16,
            learning_rate_init=0.05,
            momentum=0.8,
            random_state=3,
        )
        rng = random_stream(3, "batches")
        stream = BatchStream("without_replacement", n_train=300, batch_size=16, rng=rng)
        for batch in stream.take(60):
            twin.partial_fit(x[batch], y[batch], classes=np.arange(10))
        assert twin.t_ == 60 * 16
        assert train(**SETTINGS) == twin.score(*validation)
        assert not hasattr(estimator, "coefs_")  # the user's own is left alone

    def test_regression_has_a_score_too(self, digits):
        (x, y), (xv, yv) = digits
        train = sklearn_function(
            MLPRegressor(hidden_layer_sizes=(8,), solver="sgd"), (x, y / 10.0), (xv, yv / 10.0)
        )
        assert -10 < train(**SETTINGS | {"learning_rate": 0.01}) < 1

    def test_is_named_by_its_content(self, digits):
        one = sklearn_function(MLPClassifier((8,), solver="sgd"), *digits).identity
        assert one == sklearn_function(MLPClassifier((8,), solver="sgd"), *digits).identity
        assert one != sklearn_function(MLPClassifier((9,), solver="sgd"), *digits).identity
        assert one.unknown is None

    def test_divergence_is_nan(self, digits):
        train = sklearn_function(MLPClassifier((8,), solver="sgd"), *digits)
        assert math.isnan(train(**SETTINGS | {"learning_rate": 1e30}))

    @pytest.mark.parametrize(
        ("estimator", "told"),
        [
            (LogisticRegression(), "LogisticRegression has no batch_size"),
            (MLPClassifier(solver="adam"), "give the estimator solver='sgd', it has 'adam'"),
        ],
    )
    def test_what_is_no_sgd_network_is_refused(self, digits, estimator, told):
        with pytest.raises(ns.InputError, match=told):
            sklearn_function(estimator, *digits)


@pytest.mark.frameworks
class TestTorch:
    def test_is_torch_sgd(self, digits):
        torch = pytest.importorskip("torch")
        from noisescale.torch import train_function as torch_function

        (x, y), (xv, yv) = digits
        x, y, xv, yv = torch.tensor(x), torch.tensor(y).long(), torch.tensor(xv), torch.tensor(yv)

        def make():
            return torch.nn.Sequential(
                torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
            )

        train = torch_function(make, (x, y), (xv, yv), weight_decay=0.01)
        torch.manual_seed(3)
        module = make()
        optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.8, weight_decay=0.01)
        rng = random_stream(3, "batches")
        stream = BatchStream("without_replacement", n_train=300, batch_size=16, rng=rng)
        for batch in stream.take(60).astype(np.int64):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
        accuracy = float((module(xv).argmax(1) == yv).float().mean())
        assert train(**SETTINGS) == pytest.approx(accuracy, abs=1e-9)
        assert math.isnan(train(**SETTINGS | {"learning_rate": 1e30}))

    def test_is_torch_adamw_and_tuned_as_such(self, digits):
        torch = pytest.importorskip("torch")
        from noisescale.torch import train_function as torch_function

        (x, y), (xv, yv) = digits
        x, y, xv, yv = torch.tensor(x), torch.tensor(y).long(), torch.tensor(xv), torch.tensor(yv)

        def make():
            return torch.nn.Linear(64, 10)

        train = torch_function(make, (x, y), (xv, yv), optimizer="adamw")
        assert interface_of(train) == Interface(adam=True, weight_decay=True)
        given = {"batch_size": 16, "learning_rate": 0.01, "steps": 60, "seed": 3}
        torch.manual_seed(3)
        module = make()
        optimiser = torch.optim.AdamW(
            module.parameters(), lr=0.01, betas=(0.8, 0.99), weight_decay=0.1
        )
        rng = random_stream(3, "batches")
        stream = BatchStream("without_replacement", n_train=300, batch_size=16, rng=rng)
        for batch in stream.take(60).astype(np.int64):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
        accuracy = float((module(xv).argmax(1) == yv).float().mean())
        assert train(**given, betas=(0.8, 0.99), weight_decay=0.1) == pytest.approx(
            accuracy, abs=1e-9
        )
        with pytest.raises(ns.InputError, match="AdamW's weight decay is tuned"):
            torch_function(make, (x, y), (xv, yv), optimizer="adamw", weight_decay=0.1)

    def test_is_named_by_its_content(self, digits):
        torch = pytest.importorskip("torch")
        from noisescale.torch import train_function as torch_function

        class Net(torch.nn.Module):
            def __init__(self, bias=True):
                super().__init__()
                self.layer = torch.nn.Linear(64, 10, bias=bias)

            def forward(self, x):
                return self.layer(x)

        class Squashed(Net):
            def forward(self, x):
                return torch.tanh(self.layer(x))

        class Smaller(Net):
            def __init__(self):
                super().__init__()
                with torch.no_grad():
                    self.layer.weight.mul_(0.1)

        for cls in (Squashed, Smaller):
            cls.__name__, cls.__qualname__ = "Net", Net.__qualname__
        cross_entropy = torch.nn.functional.cross_entropy
        smooth = functools.partial(cross_entropy, label_smoothing=0.1)
        smoother = functools.partial(cross_entropy, label_smoothing=0.2)
        variants = [
            (Net, {}),
            (Squashed, {}),
            (Smaller, {}),
            (Net, {"weight_decay": 0.1}),
            (Net, {"loss": smooth}),
            (Net, {"loss": smoother}),
            (Net, {"loss": lambda outputs, y: cross_entropy(outputs, y)}),
            (Net, {"loss": lambda outputs, y: cross_entropy(2 * outputs, y)}),
            (Net, {"metric": lambda outputs, y: 0.0}),
            (Net, {"metric": lambda outputs, y: 1.0}),
        ]
        state = torch.random.get_rng_state()
        made = [torch_function(make, *digits, **options).identity for make, options in variants]
        assert len({one.name for one in made}) == len(variants)
        assert all(one.unknown is None for one in made)
        assert torch_function(Net, *digits).identity == made[0]
        assert torch.equal(torch.random.get_rng_state(), state)  # the user's own is left alone

    def test_a_module_instead_of_a_maker_is_refused(self, digits):
        torch = pytest.importorskip("torch")
        from noisescale.torch import train_function as torch_function

        with pytest.raises(ns.InputError, match="make_module must be a function"):
            torch_function(torch.nn.Linear(64, 10), *digits)


@pytest.mark.parametrize(
    "name",
    [
        "tune_any",
        "tune_jax",
        "tune_sklearn",
        pytest.param("tune_torch", marks=pytest.mark.frameworks),
    ],
)
def test_examples_tune(name):
    if name == "tune_torch":
        pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = ns.tune_large_batch(
            module.train,
            module.N_TRAIN,
            epochs=4,
            seeds=2,
            max_runs=4,
            executor=Here(),
            batch_sizes=[16, 64],
        )
    settings = {"batch_size": 16, "learning_rate": 0.05, "momentum": 0.9, "steps": 100, "seed": 0}
    assert 0.5 < module.train(**settings) <= 1  # it does train
    assert found.n_runs == 4
    assert not found.complete
    assert found.recipe.batch_size in (16, 64)
