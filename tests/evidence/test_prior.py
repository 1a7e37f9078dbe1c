"""Priors that users give: numbers, layers, arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.jax_leaves import leaf_names
from oracles.models import affine, data

IGNORE = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_the_prior_must_be_proper(fitted, value):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match="finite and above 0 .* improper prior has no evidence"):
        ns.log_evidence(affine, params, data, prior_precision=value)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"w": 1.0, "b": None}, "an unpenalised parameter has no evidence"),
        (None, "an unpenalised parameter has no evidence"),
        ({"w": 1.0}, "must be a number, 'auto', 'per_layer', or have"),
        (
            {"w": np.ones(7), "b": 1.0},
            r"\(shape \(7,\)\) does not fit parameters of shape \(4, 3\)",
        ),
    ],
)
def test_bad_priors(fitted, prior, message):
    params, data, _ = fitted
    with pytest.raises(ns.InputError, match=message):
        ns.log_evidence(affine, params, data, prior_precision=prior)


@jax.tree_util.register_pytree_with_keys_class
class Variable:
    """An array in a wrapper, as flax.nnx has it: its path ends in ``value``."""

    def __init__(self, value):
        self.value = value

    def tree_flatten_with_keys(self):
        return ((jax.tree_util.GetAttrKey("value"), self.value),), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def wrapped(params, x):
    hidden = jnp.tanh(x @ params["in"]["kernel"].value + params["in"]["bias"].value)
    return hidden @ params["out"]["kernel"].value + params["out"]["bias"].value


def plain(params, x):
    hidden = jnp.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


@pytest.fixture
def nested():
    rng = np.random.default_rng(0)
    return {
        "in": {"kernel": rng.normal(size=(8, 3)), "bias": np.zeros(3)},
        "out": {"kernel": rng.normal(size=(3, 4)), "bias": np.zeros(4)},
    }


@IGNORE
def test_wrapped_arrays_are_of_their_modules_layer(nested):
    """A bias of zeros has no precision of its own to be found."""
    variables = jax.tree.map(Variable, nested)
    ours = ns.log_evidence(plain, nested, data(), prior_precision="per_layer")
    theirs = ns.log_evidence(wrapped, variables, data(), prior_precision="per_layer")
    assert list(theirs.prior_precision) == ["in", "out"]
    assert theirs.prior_precision == pytest.approx(ours.prior_precision, rel=1e-6)
    assert theirs.log_evidence == pytest.approx(ours.log_evidence, rel=1e-9)


def test_an_attribute_called_value_beside_others_is_an_array_like_them():
    names = leaf_names({"attention": {"key": np.ones(2), "value": np.ones(2)}, "v": np.ones(1)})
    assert names == ["attention/key", "attention/value", "v"]
    assert leaf_names({"w": Variable(np.ones(2))}) == ["w"]
    assert len(set(leaf_names({"a/b": np.ones(1), "a": {"b": np.ones(1)}}))) == 2


@IGNORE
def test_reported_precisions_may_be_given_again(nested):
    chosen = ns.log_evidence(plain, nested, data(), prior_precision="per_layer")
    again = ns.log_evidence(plain, nested, data(), prior_precision=chosen.prior_precision)
    assert again.log_evidence == pytest.approx(chosen.log_evidence, rel=1e-12)
    assert again.prior_precision == pytest.approx(chosen.prior_precision)
    assert "prior precision by layer" in repr(again)
    both = {name: {"kernel": v, "bias": v} for name, v in chosen.prior_precision.items()}
    by_array = ns.log_evidence(plain, nested, data(), prior_precision=both)
    assert by_array.log_evidence == pytest.approx(chosen.log_evidence, rel=1e-12)
    both["in"]["kernel"] = 2.0
    assert ns.log_evidence(plain, nested, data(), prior_precision=both).prior_precision is None


@IGNORE
def test_layers_of_selected_parameters_keep_their_names(nested):
    found = ns.log_evidence(
        plain,
        nested,
        data(),
        prior_precision="per_layer",
        select=lambda path: path != "in/bias",
    )
    assert list(found.prior_precision) == ["in", "out"]


@pytest.mark.parametrize("value", [1e-101, 1e101, 1e308, 5e-324])
def test_absurd_precisions_are_refused(fitted, value):
    params, pair, _ = fitted
    with pytest.raises(ns.InputError, match="must lie between 1e-100 and 1e.100, got"):
        ns.log_evidence(affine, params, pair, prior_precision=value)
