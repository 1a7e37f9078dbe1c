"""Priors that users give."""

import numpy as np
import pytest

import noisescale as ns
from oracles.models import affine


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
