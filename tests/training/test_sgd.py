import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import noisescale as ns
from noisescale.data import load_digits
from noisescale.seeds import random_stream
from noisescale.training import SAMPLERS, BatchStream
from noisescale.training.features import live_features
from oracles import sgd as oracle

MODEL = ns.DenseNetwork((50, 16, 3))
# Float32 after some fifty updates. Each rounds a weight, below 1, by 2^-24 = 6e-8, and a gradient
# of about 50 terms below 3 by some 1e-6, of which the learning rate takes 0.1 and momentum ten
# times that: fifty of them, all in one direction, make 5e-5; in random directions, 7e-6. A hidden
# unit on the other side of its kink would make 1e-3: none may come as near to it as rounding.
ROUNDING = {"rtol": 2e-5, "atol": 1e-5}
SAFE_MARGIN = 5e-5


@pytest.fixture(scope="module")
def toy():
    """Three noisy classes in 50 features, of which 30 are zero in the training set alone."""
    rng = np.random.default_rng(3)
    y = rng.integers(3, size=80)
    x = rng.normal(size=(80, 50)) + 1.5 * np.eye(3, 50)[y]
    x[:, 10:40] = 0
    x_test = rng.normal(size=(50, 50)) + 1.5 * np.eye(3, 50)[rng.integers(3, size=50)]
    assert len(live_features(x)) == 32  # the engine leaves some features out
    return x.astype(np.float32), y, x_test.astype(np.float32), rng.integers(3, size=50)


def as_layers(params):
    return [(np.asarray(layer["w"]), np.asarray(layer["b"])) for layer in params]


def opaque(params, x):
    """The same network as a plain function: the engine cannot see its input layer."""
    return MODEL(params, x)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("apply_fn", [MODEL, opaque], ids=["model", "function"])
@pytest.mark.parametrize(
    ("momentum", "prior_precision", "convention"),
    [(0.0, 0.0, "per_example"), (0.9, 3.0, "per_example"), (0.9, 3.0, "per_class")],
)
def test_agrees_with_the_naive_twin(toy, sampler, apply_fn, momentum, prior_precision, convention):
    x, y, x_test, y_test = toy
    start = MODEL.init(5)
    result = ns.train(
        apply_fn,
        start,
        (x, y),
        learning_rate=0.1,
        batch_size=7,
        steps=50,
        momentum=momentum,
        prior_precision=prior_precision,
        sampler=sampler,
        cost_convention=convention,
        seed=23,
        test_data=(x_test, y_test),
        evaluate_at=[0, 50],
    )
    batches = BatchStream(
        sampler, n_train=len(y), batch_size=7, rng=random_stream(23, "batches")
    ).take(50)
    twin, margin = oracle.train(
        as_layers(start),
        x,
        y,
        batches,
        learning_rate=0.1,
        momentum=momentum,
        prior_precision=prior_precision,
        n_classes_in_unit=3 if convention == "per_class" else 1,
    )
    assert margin > SAFE_MARGIN
    for ours, theirs in zip(as_layers(result.params), twin, strict=True):
        for mine, reference in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, reference, **ROUNDING)
    for row, params in zip(result.history, (as_layers(start), twin), strict=True):
        expected = [
            *oracle.accuracy_and_cross_entropy(params, x, y),
            *oracle.accuracy_and_cross_entropy(params, x_test, y_test),
        ]
        np.testing.assert_allclose(row[1:], expected, **ROUNDING)


@pytest.mark.frameworks
def test_agrees_with_pytorch(toy):
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
    x, y, *_ = toy
    start = MODEL.init(5)
    ours = ns.train(
        MODEL,
        start,
        (x, y),
        learning_rate=0.05,
        batch_size=9,
        steps=60,
        momentum=0.8,
        prior_precision=2.0,
        seed=1,
        evaluate_at="final",
    )
    network = torch.nn.Sequential(
        torch.nn.Linear(50, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    ).double()
    with torch.no_grad():
        for linear, layer in zip((network[0], network[2]), start, strict=True):
            linear.weight.copy_(torch.tensor(np.asarray(layer["w"]).T))
            linear.bias.copy_(torch.tensor(np.asarray(layer["b"])))
    optimiser = torch.optim.SGD(
        network.parameters(), lr=0.05, momentum=0.8, weight_decay=2.0 / len(y)
    )
    stream = BatchStream(
        "without_replacement", n_train=len(y), batch_size=9, rng=random_stream(1, "batches")
    )
    for batch in stream.take(60):
        optimiser.zero_grad()
        logits = network(torch.tensor(x[batch]).double())
        torch.nn.functional.cross_entropy(logits, torch.tensor(y[batch])).backward()
        optimiser.step()
    for linear, layer in zip((network[0], network[2]), ours.params, strict=True):
        np.testing.assert_allclose(layer["w"], linear.weight.detach().numpy().T, **ROUNDING)


def logistic_optimum(x, y, prior_precision):
    """The minimum of sum of nll + lambda/2 |w|^2 by Newton's method in float64, to the last digits.

    With it a bound on |w - w*| for a full-batch descent in float32. Where such a descent stands
    still, its own gradient is zero; the true one differs from that by rounding alone, and the cost
    is lambda-convex, so |w - w*| <= |rounding of the gradient|/lambda. Of the summed gradient's
    parts x_ij (p_i - y_i), p_i is off by a quarter of its logit's error at the most, and sums of n
    terms by n u of their absolute values (u = 2^-24).
    """
    x = x.astype(np.float64)
    n, d = x.shape
    w = np.zeros(d)
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ w))
        gradient = x.T @ (p - y) + prior_precision * w
        hessian = (x * (p * (1 - p))[:, None]).T @ x + prior_precision * np.eye(d)
        w -= np.linalg.solve(hessian, gradient)
    assert np.linalg.norm(gradient) < 1e-11
    u = 2.0**-24
    off = 0.25 * d * u * (np.abs(x) @ np.abs(w)) + 8 * u  # of p, whose own formula takes a few u
    rounding = np.abs(x).T @ (off + n * u * np.abs(p - y)) + d * u * prior_precision * np.abs(w)
    return w, np.linalg.norm(rounding) / prior_precision


@pytest.mark.parametrize("likelihood", ["bernoulli", "categorical"])
def test_full_batch_reaches_the_regularised_optimum(likelihood):
    """The penalty's convention: C = sum of nll + lambda/2 |w|^2, here lambda = 4."""
    data = load_digits()
    keep = data.y_train < 2
    x, y = data.x_train[keep], data.y_train[keep]
    # Two softmax logits with a prior on each are one logit with twice the variance.
    two = likelihood == "categorical"
    result = ns.train(
        lambda w, x: x @ w,
        jnp.zeros((x.shape[1], 2) if two else x.shape[1]),
        (x, y),
        learning_rate=0.5,
        batch_size=len(y),
        steps=4000,
        momentum=0.9,
        prior_precision=8.0 if two else 4.0,
        likelihood=likelihood,
        evaluate_at="final",
    )
    trained = np.asarray(result.params, np.float64)
    weights = trained[:, 1] - trained[:, 0] if two else trained
    optimum, tolerance = logistic_optimum(x, y, 4.0)
    assert np.linalg.norm(weights - optimum) < tolerance
    # The bound has power: a penalty that is a twentieth off is far outside of it.
    assert np.linalg.norm(logistic_optimum(x, y, 4.2)[0] - optimum) > 3 * tolerance


def run(toy, **changes):
    x, y, x_test, y_test = toy
    settings = {
        "learning_rate": 0.1,
        "batch_size": 8,
        "steps": 300,
        "momentum": 0.9,
        "seed": 2,
        "test_data": (x_test, y_test),
    }
    return ns.train(MODEL, MODEL.init(0), (x, y), **(settings | changes))


def test_same_settings_give_the_same_bits(toy):
    first, second = run(toy), run(toy)
    assert first.history == second.history
    assert first.to_dict() == second.to_dict()


def test_evaluations_and_callbacks_leave_the_trajectory_alone(toy):
    calls = []
    plain = run(toy, evaluate_at="final")
    watched = run(toy, evaluate_at=[1, 2, 77], callback=calls.append)
    for a, b in zip(jax.tree.leaves(plain.params), jax.tree.leaves(watched.params), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [row.step for row in watched.history] == [1, 2, 77, 300]
    assert calls[-1].step == calls[-1].steps == 300
    assert calls[-1].latest == watched.history[-1]


def test_another_seed_gives_other_batches(toy):
    assert run(toy).history != run(toy, seed=3).history


def test_params_of_the_caller_stay(toy):
    x, y, *_ = toy
    start = MODEL.init(0)
    before = [np.array(leaf) for leaf in jax.tree.leaves(start)]
    ns.train(MODEL, start, (x, y), learning_rate=0.1, batch_size=8, steps=5)
    for kept, leaf in zip(before, jax.tree.leaves(start), strict=True):
        np.testing.assert_array_equal(kept, leaf)


def test_one_program_serves_runs_of_the_same_shape(toy):
    x, y, *_ = toy
    traced = 0

    def counting(params, x):
        nonlocal traced
        traced += 1
        return MODEL(params, x)

    def go(**changes):
        settings = {"learning_rate": 0.1, "batch_size": 8, "steps": 40} | changes
        ns.train(counting, MODEL.init(0), (x, y), **settings)

    go()
    after_first = traced
    go(learning_rate=0.2, momentum=0.5, steps=25, seed=4, prior_precision=1.0, sampler="shuffle")
    # The check of the outputs' shape may look at the function again; nothing is compiled again.
    assert traced <= after_first + 1


def test_divergence_is_a_status_not_an_error(toy):
    result = run(toy, learning_rate=1e30, evaluate_at=[0, 100])
    assert result.status == "diverged"
    assert result.final is None
    # Known within a few steps, not only when the next evaluation comes round.
    assert 0 < result.diverged_at == result.steps_done < 10
    assert result.history[0].step == 0
    assert all(np.isfinite(row).all() for row in result.history)
    assert "diverged" in repr(result)


@pytest.mark.parametrize("apply_fn", [MODEL, opaque], ids=["model", "function"])
def test_divergence_by_the_penalty_alone(toy, apply_fn):
    x, y, *_ = toy
    result = ns.train(
        apply_fn,
        MODEL.init(0),
        (x, y),
        learning_rate=1.0,
        momentum=0.9,
        batch_size=8,
        steps=3000,
        prior_precision=3e3,
    )
    assert result.status == "diverged"


def test_divergence_in_the_very_last_step_is_seen():
    """Nothing follows the last update, and no example uses the parameter that it blew up."""
    result = ns.train(
        lambda p, x: x @ p["w"],
        {"w": np.zeros((2, 2)), "unused": np.ones(3)},
        (np.ones((4, 2)), np.array([0, 1, 0, 1])),
        learning_rate=1e38,
        batch_size=4,
        steps=1,
        prior_precision=1e10,
        evaluate_at="final",
    )
    assert result.status == "diverged"
    assert result.history == ()


def test_a_subclass_that_computes_otherwise_is_not_short_cut(toy):
    class Centred(ns.DenseNetwork):
        def __call__(self, params, x):
            return super().__call__(params, x - 0.5)

    x, y, *_ = toy
    settings = {"learning_rate": 0.1, "batch_size": 8, "steps": 30}
    model = Centred((50, 3))  # smooth: rounding stays small
    short = ns.train(model, model.init(0), (x, y), **settings)
    plain = ns.train(lambda p, x: model(p, x), model.init(0), (x, y), **settings)
    assert short.final.train_cross_entropy == pytest.approx(plain.final.train_cross_entropy, 1e-4)


def test_a_bad_accuracy_is_not_divergence(toy):
    result = run(toy, learning_rate=1e-9, steps=3)
    assert result.status == "done"
    assert result.final.train_accuracy < 0.7


def test_zero_steps_evaluate_the_start(toy):
    result = run(toy, steps=0)
    assert [row.step for row in result.history] == [0]


def test_the_result_is_plain_data(toy):
    document = run(toy).to_dict()
    assert document["settings"]["batch_size"] == 8
    assert document["history"]["step"][-1] == 300
    assert len(document["history"]["test_accuracy"]) == len(document["history"]["step"])


def test_numpy_numbers_become_plain_ones(toy):
    x, y, *_ = toy
    result = ns.train(
        MODEL,
        MODEL.init(0),
        (x, y),
        learning_rate=np.float32(0.1),
        batch_size=np.uint8(8),
        steps=np.int16(5),
        seed=np.int64(3),
        momentum=np.float64(0.5),
    )
    document = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert document["settings"]["seed"] == 3
    assert document["history"]["test_accuracy"] == [None] * len(result.history)


def test_without_test_data_the_test_columns_are_nan(toy):
    final = run(toy, test_data=None).final
    assert np.isnan([final.test_accuracy, final.test_cross_entropy]).all()
    assert np.isfinite([final.train_accuracy, final.train_cross_entropy]).all()


def test_the_papers_network_trains_at_30_and_not_at_3(mnist):
    """FACTS of the reproduction: epsilon = 1 in the paper's unit, m = 0.9, N = 1000."""
    data = mnist.subset(n_train=1000, seed=0)
    model = ns.paper_network()
    accuracy = {}
    for batch_size in (3, 30):
        result = ns.train(
            model,
            model.init(0),
            (data.x_train, data.y_train),
            learning_rate=1.0,
            momentum=0.9,
            batch_size=batch_size,
            steps=1000,
            cost_convention="per_class",
            test_data=(data.x_test, data.y_test),
            evaluate_at="final",
        )
        accuracy[batch_size] = result.final.test_accuracy if result.final else 0.1
    assert 0.89 < accuracy[30] < 0.93
    assert accuracy[3] < 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 81}, "batch_size must be at most 80, the number of training examples"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number, got 2.5"),
        ({"momentum": 1.0}, r"momentum must be a finite number in \[0, 1\), got 1"),
        ({"momentum": None}, r"momentum must be a finite number in \[0, 1\), got None"),
        ({"momentum": -0.1}, r"momentum must be a finite number in \[0, 1\), got -0.1"),
        ({"learning_rate": 0.0}, r"learning_rate must be a finite number above 0 .*, got 0"),
        ({"learning_rate": 1e-39}, r"learning_rate must be .* \(from 1e-38 to 1e38\), got 1e-39"),
        ({"learning_rate": float("nan")}, r"learning_rate must be .* above 0 .*, got nan"),
        ({"learning_rate": 10**400}, r"learning_rate must be .* above 0 .*, got 1000"),
        ({"learning_rate": "0.1"}, r"learning_rate must be .* above 0 .*, got '0.1'"),
        ({"steps": -1}, "steps must be at least 0, got -1"),
        ({"prior_precision": -1.0}, r"prior_precision must be a finite number in \[0, .*, got -1"),
        ({"prior_precision": 1e300}, r"prior_precision must be a finite number in \[0, .* 1e\+300"),
        ({"steps": 2**70}, "steps must be at most"),
        ({"sampler": "bootstrap"}, "sampler must be one of without_replacement, .*'bootstrap'"),
        ({"likelihood": "poisson"}, "likelihood must be one of categorical, .*'poisson'"),
        (
            {"likelihood": "bernoulli"},
            r"one logit an example, but apply_fn returns shape \(80, 3\)",
        ),
        ({"cost_convention": "sum"}, "cost_convention must be one of per_example, per_class"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"evaluate_at": [301]}, "evaluate_at must lie between 0 and steps = 300, got 301"),
        ({"evaluate_at": "often"}, "evaluate_at must be 'log', 'final' or a sequence"),
        ({"evaluate_at": 5}, "evaluate_at must be 'log', 'final' or a sequence of steps, got 5"),
        ({"evaluate_at": [1.5]}, "a step in evaluate_at must be a whole number, got 1.5"),
        ({"n_evaluations": 2.5}, "n_evaluations must be a whole number, got 2.5"),
        ({"n_evaluations": 0}, "n_evaluations must be at least 1, got 0"),
    ],
)
def test_bad_settings_get_one_sentence(toy, changes, message):
    with pytest.raises(ns.InputError, match=message) as caught:
        run(toy, **changes)
    assert "\n" not in str(caught.value)


def bad_data(toy):
    x, y, *_ = toy
    holed = x.copy()
    holed[4, 2] = np.nan
    high = y.copy()
    high[6] = 3
    return {
        "NaN": ((holed, y), r"train_data x holds nan at \[4, 2\]"),
        "label too high": ((x, high), r"must lie in 0..2 for a model of 3 classes, got 3 at .* 6"),
        "label below 0": ((x, y - 1), "must lie in 0..2"),
        "fractional labels": ((x, y + 0.5), "must be whole numbers, got dtype float64"),
        "mismatched lengths": ((x, y[:-1]), "has 80 examples in x but 79 labels in y"),
        "no examples": ((x[:0], y[:0]), "holds no examples"),
        "no pair": (x, "must be a pair of arrays"),
        "wrong width": ((x[:, :5], y), "apply_fn does not accept these params with x of shape"),
        "text": ((np.full(80, "a"), y), "must be numbers, got dtype"),
        "one-hot labels": ((x, np.eye(3)[y].astype(int)), "must be one-dimensional"),
        "sparse": ((scipy.sparse.csr_matrix(x), y), "is sparse: give dense arrays"),
        "mapping": ({"x": x, "y": y}, "must be a pair of arrays .* got dict"),
        "numbers": ((1.0, 2.0), "got a pair of float and float"),
        "huge integers": ((np.full((80, 50), 2**40), y), "whole numbers beyond 32 bits"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "NaN",
        "label too high",
        "label below 0",
        "fractional labels",
        "mismatched lengths",
        "no examples",
        "no pair",
        "wrong width",
        "text",
        "one-hot labels",
        "sparse",
        "mapping",
        "numbers",
        "huge integers",
    ],
)
@pytest.mark.parametrize("which", ["train_data", "test_data"])
def test_bad_data_get_one_sentence(toy, case, which):
    data, message = bad_data(toy)[case]
    x, y, *_ = toy
    train_data, changes = ((x, y), {"test_data": data}) if which == "test_data" else (data, {})
    with pytest.raises(ns.InputError, match=message.replace("train_data", which)) as caught:
        ns.train(
            MODEL, MODEL.init(0), train_data, learning_rate=0.1, batch_size=8, steps=3, **changes
        )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "params holds no arrays"),
        ({"w": np.zeros(3, int)}, "params must be floating-point arrays, got dtype int64"),
        ({"w": np.array([1.0, np.inf])}, "params holds values that are not finite"),
    ],
)
def test_bad_params_get_one_sentence(toy, params, message):
    x, y, *_ = toy
    with pytest.raises(ns.InputError, match=message):
        ns.train(MODEL, params, (x, y), learning_rate=0.1, batch_size=8, steps=3)


@pytest.mark.parametrize(
    ("apply_fn", "message"),
    [
        (lambda p, x: (x, x), "apply_fn must return one array of outputs, but returns a tuple"),
        (lambda p, x: p["nothing"], "apply_fn does not accept these params"),
        (type("Odd", (), {"__hash__": None, "__call__": lambda s, p, x: x})(), "must be hashable"),
    ],
)
def test_bad_functions_get_one_sentence(toy, apply_fn, message):
    x, y, *_ = toy
    with pytest.raises(ns.InputError, match=message):
        ns.train(apply_fn, {"w": np.ones(2)}, (x, y), learning_rate=0.1, batch_size=8, steps=3)


def test_half_precision_params_are_taken(toy):
    x, y, *_ = toy
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), MODEL.init(0))
    result = ns.train(MODEL, start, (x, y), learning_rate=0.1, batch_size=8, steps=3)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(result.params))


def test_a_model_with_numpy_constants_serves_training_and_evidence():
    """JAX keeps such constants as it first compiled them; both calls have their own precision."""
    shift = np.linspace(0, 1, 3)

    def model(params, x):
        return x @ params["w"] + shift

    rng = np.random.default_rng(0)
    data = (rng.normal(size=(30, 4)), rng.integers(3, size=30))
    params = {"w": np.zeros((4, 3), np.float32)}
    for _ in range(2):
        params = ns.train(
            model, params, data, learning_rate=0.3, batch_size=30, steps=300, prior_precision=1.0
        ).params
        ns.gradient_noise(model, params, data)
        evidence = ns.log_evidence(model, params, data, prior_precision=1.0)
        assert evidence.is_minimum
