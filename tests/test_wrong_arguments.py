"""One wrong argument to each public function: refused in one sentence that names it.

A row is a function, the argument, wrong values for it, and what the sentence must say.
"""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import noisescale as ns
import noisescale.evidence as evidence
from noisescale.noise.batch_law import PAPER_LAW
from noisescale.sklearn import EvidenceLogisticRegression, EvidenceRidge
from noisescale.tune.jax_function import train_function

X = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
NOISY = X[:, 0] + np.sin(np.arange(24))
HUGE = X.astype(np.float64) * 1e299
LONG, NULL = "x" * 5_000, "\x00"
NO_PATHS = (None, 3, math.nan, True, b"x", "", [], LONG, NULL)
NO_WHOLE = (None, "3", b"3", True, 2.5, math.nan, -1, [3], 2**70)
NO_NUMBERS = (None, "1", b"1", True, math.nan, math.inf, -1.0, [1.0], 1 + 2j, 10**400)
NO_FLAGS = (None, "yes", "", 1, 0.0, math.nan, [], np.array([True, False]))
NO_LISTS = (None, 3, "12", b"12", {1: 2}, math.nan)
NO_FUNCTIONS = (None, 3, "f", [])


def linear(w, x):
    return x @ w["w"]


def rowless(w, x):
    return jnp.ones((len(X), 2)) * w["w"].sum()


def raises(w, x):
    return 1 / 0


def fit(x, y, *, seed):
    return lambda x: np.full(len(x), 0.5)


def init(seed):
    return {"w": np.zeros((3, 2), np.float32)}


def train_from(checkpoint, *, batch_size, learning_rate, n_examples, seed):
    raise AssertionError("nothing is trained")


MODEL = {"apply_fn": linear, "params": init(0)}
RECIPE = {"learning_rate": 0.1, "batch_size": 8, "steps": 3}
SGD = {"learning_rate": 0.1, "batch_size": 8, "n_train": 100}
SMALL = {"n_temperatures": 8, "n_chains": 4, "prior_precision": 1.0}
PREQUENTIAL = {"fit": fit, "data": (X, Y), "orders": 1}
ENDED = {"apply_fn": linear, "init": init, "train_data": (X, Y), "validation_data": (X, Y)}


def logistic(X=X, y=Y, **settings):
    return EvidenceLogisticRegression(**settings).fit(X, y)


def ridge(X=X, y=NOISY, **settings):
    return EvidenceRidge(**settings).fit(X, y)


def law_ratio(before):
    return PAPER_LAW.ratio(before, before)


def sweep(tmp, **changes):
    plan = ns.make_plan({**RECIPE, "data": "digits", "n_train": 50, "hidden_widths": ()})
    return ns.run_sweep(**({"plan": plan, "store": tmp, "workers": 1} | changes))


TABLE = [
    # Recipes and the noise scale.
    (ns.noise_scale, SGD, "learning_rate", NO_NUMBERS, "learning_rate must be"),
    (ns.noise_scale, SGD, "batch_size", NO_WHOLE, "batch_size must be"),
    (ns.noise_scale, SGD, "approximate", NO_FLAGS, "approximate must be True or False"),
    (ns.Recipe, SGD, "momentum", (*NO_NUMBERS, False), "momentum must be"),
    (ns.Recipe, SGD, "nesterov", NO_FLAGS, "nesterov must be True or False"),
    (ns.Recipe(**SGD).kept, {}, "rule", (None, "", LONG, 3), "rule must be one of linear, exact"),
    (ns.AdamRecipe, SGD, "decoupled", NO_FLAGS, "decoupled must be True or False"),
    (ns.AdamRecipe, SGD, "betas", (0.9, LONG, (0.9, True), (0.9, 1)), "betas"),
    (law_ratio, {}, "before", (None, 3, {}, {"learning_rate": 1, "n_train": 9, 3: 1}), "mapping"),
    (
        ns.NoiseScaleMonitor().update,
        {"large_sq_norm": 1.0, "n_small": 4, "n_large": 8},
        "small_sq_norm",
        (None, "1", True, -1.0, 10**400),
        "small_sq_norm must be a number that is at least 0",
    ),
    # Plans, stores, data.
    (ns.load_plan, {}, "path", NO_PATHS, "plan must be"),
    (ns.RunStore, {}, "path", NO_PATHS, "store must be"),
    (sweep, {}, "store", NO_PATHS, "store must be"),
    (sweep, {}, "executor", (3, math.nan, [], type), "executor must be None"),
    (sweep, {}, "workers", ("1", True, 0, math.nan), "workers must be"),
    (sweep, {}, "retry_failed", NO_FLAGS, "retry_failed must be True or False"),
    (sweep, {}, "progress", NO_FLAGS, "progress must be True or False"),
    (ns.make_plan, {"run": RECIPE}, "grid", tuple({"momentum": v} for v in NO_LISTS), "momentum"),
    (ns.RunConfig, {**RECIPE, "data": "digits"}, "hidden_widths", NO_LISTS, "hidden_widths must"),
    (ns.RunConfig, {**RECIPE, "data": "digits"}, "evaluate_at", (None, 3, {}), "evaluate_at must"),
    (ns.data.load_dataset, {}, "name", (None, 3, math.nan, b"digits", [], {}, LONG), "no data set"),
    (ns.data.facts, {}, "name", (None, 3, [], ""), "no data set"),
    (ns.data.fetch, {}, "name", (None, 3, [], ""), "must be one of mnist"),
    (
        ns.data.balanced_binary,
        {"first": 0, "second": 1, "n_train": 2, "n_test": 2},
        "data",
        (3, "digits", (X, Y, X, Y)),
        "data must be a Dataset",
    ),
    *(
        (
            ns.data.Dataset,
            {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y},
            name,
            wrong,
            f"{name} of the data set must be",
        )
        for name, wrong in (
            ("x_train", (None, X.tolist(), X[0], np.where(X > 0, X, np.nan), X.astype(str))),
            ("y_test", (None, 3, Y - 5, Y.astype(float), np.full(24, np.nan))),
        )
    ),
    (ns.DenseNetwork, {}, "widths", NO_LISTS, "widths must be two or more"),
    (ns.DenseNetwork((3, 2)).input_weights, {}, "params", (None, 3, (), [{}]), "params must be"),
    # Evidence and predictions.
    *(
        (function, {**MODEL, "data": (X, Y), **more}, name, wrong, words)
        for function, more in (
            (ns.log_evidence, {"prior_precision": 1.0}),
            (ns.gradient_noise, {}),
            (ns.spectrum, {"top_k": 2}),
            (ns.annealed_evidence, SMALL),
        )
        for name, wrong, words in (
            ("apply_fn", (None, 3, rowless, raises, lambda: 1), "apply_fn"),
            ("params", (None, {"w": "a"}, {"w": init(0)["w"], 3: init(0)["w"]}), "params"),
            ("data", ((HUGE, Y), (X, Y, Y), 3, None, (X, Y + 0.5)), "data"),
        )
    ),
    (ns.log_evidence, {**MODEL, "data": (X, Y)}, "prior_precision", (True, "1", -1.0), "prior_pre"),
    (ns.gradient_noise, {**MODEL, "data": (X, Y)}, "curvature", (None, 3, ""), "curvature must be"),
    (
        ns.posterior_predict,
        {**MODEL, "data": (X, Y), "prior_precision": 1.0, "x_new": X[:2]},
        "seed",
        NO_WHOLE,
        "seed must be",
    ),
    (
        ns.posterior_predict,
        {**MODEL, "data": (X, Y), "prior_precision": 1.0},
        "x_new",
        (HUGE[:2], X[0], 3, "x"),
        "x_new",
    ),
    (
        ns.annealed_evidence,
        {**MODEL, **SMALL, "data": (X, Y)},
        "log_null",
        ("x", math.nan, [], 10**400),
        "log_null must be",
    ),
    (
        ns.log_evidence_from_operator,
        {"nll": 1.0, "penalty": 0.1, "prior_precision": 1.0, "n_train": 3},
        "curvature",
        (np.eye(2, dtype=complex), np.eye(2).astype(str), np.eye(2, dtype=bool)),
        "curvature must be numbers",
    ),
    (
        ns.evidence_curve,
        {**MODEL, "data": (X, Y)},
        "prior_precisions",
        ("123", 3, [0.1, 1, True], [0.1, 1]),
        "prior",
    ),
    (ns.permutation_degeneracy, {}, "hidden_units", NO_LISTS, "hidden_units must be"),
    # Training and tuning.
    (ns.train, {**MODEL, **RECIPE, "train_data": (X, Y)}, "callback", NO_FUNCTIONS[1:], "callback"),
    (ns.train, {**MODEL, **RECIPE, "train_data": (X, Y)}, "n_evaluations", NO_WHOLE, "n_evaluat"),
    *(
        (ns.fit_function, {"apply_fn": linear, "init": init, **RECIPE}, name, wrong, f"{name} must")
        for name, wrong in (
            ("apply_fn", NO_FUNCTIONS),
            ("init", NO_FUNCTIONS),
            ("batch_size", NO_WHOLE),
            ("learning_rate", NO_NUMBERS),
            ("steps", NO_WHOLE),
            ("momentum", NO_NUMBERS),
        )
    ),
    (train_function, ENDED, "apply_fn", NO_FUNCTIONS, "apply_fn must be"),
    (train_function, ENDED, "train_data", (None, 3, X, (X,), (X, Y[:3])), "train_data"),
    (train_function, ENDED, "sampler", (None, 3, "", LONG), "sampler must be one of"),
    *(
        (
            ns.measure_critical_batch,
            {
                "train_from": train_from,
                "checkpoint": 0,
                "batch_sizes": [10, 20],
                "learning_rate": 0.1,
                "n_examples": 100,
            },
            name,
            wrong,
            f"{name} must be",
        )
        for name, wrong in (
            ("train_from", NO_FUNCTIONS),
            ("batch_sizes", NO_LISTS),
            ("store", NO_PATHS[1:]),
        )
    ),
    (ns.prequential_evidence, PREQUENTIAL, "temperatures", ((), "12", 3, [True]), "temperature"),
    (ns.prequential_evidence, PREQUENTIAL, "blocks", NO_LISTS[1:], "blocks must be"),
    (ns.prequential_evidence, PREQUENTIAL, "null_expert", NO_FLAGS, "null_expert must be"),
    (ns.prequential_evidence, PREQUENTIAL, "store", NO_PATHS[1:], "store must be"),
    # scikit-learn's estimators.
    (logistic, {}, "fit_intercept", NO_FLAGS, "fit_intercept must be True or False"),
    (logistic, {}, "n_samples", NO_WHOLE, "n_samples must be"),
    (logistic, {}, "prior_precision", (*NO_NUMBERS, 1e-320), "prior_precision must be"),
    (logistic, {}, "bounds", (None, 3, (1,), "12", (True, 2)), "bounds must be"),
    (logistic, {}, "X", (HUGE,), "divide them by their standard deviation"),
    (ridge, {}, "fit_intercept", NO_FLAGS, "fit_intercept must be True or False"),
    (ridge, {}, "weight_precision", (*NO_NUMBERS, 1e-320), "weight_precision must be"),
    (ridge, {}, "X", (HUGE,), "divide them by their standard deviation"),
    (ridge().predict, {}, "X", (HUGE,), "divide them by their standard"),
]


def name_of(row):
    function, _, argument, _, _ = row
    return f"{getattr(function, '__qualname__', function)}-{argument}"


@pytest.mark.parametrize(
    ("function", "others", "argument", "wrong", "words"), TABLE, ids=map(name_of, TABLE)
)
def test_a_wrong_argument_is_refused_in_one_sentence(
    function, others, argument, wrong, words, tmp_path
):
    settings = {"tmp": tmp_path / "runs.sqlite"} if function is sweep else {}
    for value in wrong:
        with pytest.raises(ns.InputError) as refused:
            function(**(settings | others | {argument: value}))
        sentence = str(refused.value)
        assert words in sentence, (value, sentence)
        assert len(sentence) < 600, value
        assert "\n" not in sentence, value


def test_numbers_of_numpy_and_flags_of_numpy_are_taken():
    assert ns.noise_scale(np.float32(0.5), np.int64(4), np.int32(8)) == 0.5
    assert ridge(fit_intercept=np.True_).intercept_ != 0


def test_a_data_set_that_was_made_by_hand_knows_its_classes():
    made = ns.data.Dataset(X, Y, X, Y)
    assert made.n_classes == 2
    assert "2 classes" in repr(made)


@pytest.mark.parametrize("where", [3, "", "nowhere/picture.png", "picture.odd"])
def test_a_picture_that_cannot_be_written_is_told(where):
    with pytest.raises(ns.InputError, match=r"must be the path|cannot be written|must end in"):
        PAPER_LAW.plot(where)


def test_temperatures_in_any_order_are_the_same():
    downwards, upwards = (
        evidence.prequential_evidence(**PREQUENTIAL, temperatures=order).to_dict()
        for order in ((2.0, 1.0), (1.0, 2.0))
    )
    assert downwards == upwards
