"""Whatever public functions are given: a sentence, or numbers none of which is NaN."""

import math
import warnings
from dataclasses import fields, is_dataclass

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import noisescale as ns

MANY = settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])

numbers = st.one_of(
    st.floats(),
    st.floats(0.01, 100),
    st.integers(-(2**70), 2**70),
    st.integers(1, 5),
    st.just(10**5000),
    st.sampled_from([1e308, 5e-324, 1e-308]),
)
odd = st.one_of(
    numbers, st.none(), st.text(max_size=4), st.booleans(), st.lists(numbers, max_size=3)
)
matrices = st.builds(
    lambda n, scale, seed, symmetric: _matrix(n, scale, seed, symmetric),
    st.integers(0, 4),
    st.sampled_from([0.0, 1.0, -1.0, 1e-300, 1e160, 1e308, math.inf, math.nan]),
    st.integers(0, 9),
    st.booleans(),
)


def _matrix(n, scale, seed, symmetric):
    A = np.random.default_rng(seed).normal(size=(n, n))
    with np.errstate(all="ignore"):
        return scale * (A @ A.T if symmetric else A)


def reals(value):
    """Every number in a result, however deep."""
    if isinstance(value, (float, np.floating)):
        yield float(value)
    elif isinstance(value, np.ndarray):
        yield from value.ravel().astype(float)
    elif isinstance(value, dict):
        for part in value.values():
            yield from reals(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from reals(part)
    elif is_dataclass(value):
        for part in fields(value):
            yield from reals(getattr(value, part.name))


def call(function, *args, **kwargs):
    """The result if there is one; no exception but a sentence, no NaN without a word."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ns.NotAMinimumWarning)
        try:
            result = function(*args, **kwargs)
        except ns.InputError as refused:
            assert str(refused).endswith(".")
            assert "\n" not in str(refused)
            return None
    assert not any(map(math.isnan, reals(result)))
    repr(result)
    return result


@MANY
@given(
    st.one_of(matrices, odd),
    st.fixed_dictionaries(
        {"nll": odd, "penalty": odd, "prior_precision": odd, "n_train": odd},
        optional={
            "n_classes": odd,
            "gradient": odd,
            "log_null": odd,
            "log_degeneracy": odd,
            "tolerance": odd,
            "seed": odd,
            "method": st.sampled_from(["dense", "lanczos", "auto", "dual", 3]),
        },
    ),
)
def test_operators_with_anything(curvature, options):
    call(ns.log_evidence_from_operator, curvature, **options)


@MANY
@given(matrices, st.sampled_from(["dense", "lanczos"]), st.floats(1e-5, 1e5))
def test_operators_with_good_options(curvature, method, prior):
    call(
        ns.log_evidence_from_operator,
        curvature,
        nll=1.0,
        penalty=0.1,
        prior_precision=prior,
        n_train=10,
        method=method,
        max_probes=8,
    )


@MANY
@given(
    st.one_of(st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), odd, max_size=3), odd),
    st.one_of(st.none(), st.dictionaries(st.text(max_size=3), odd, max_size=3), odd),
)
def test_comparisons_of_anything(evidences, prior_odds):
    call(ns.compare, evidences, prior_odds=prior_odds)
    if isinstance(evidences, dict):
        call(ns.compare, evidences, prior_odds=dict.fromkeys(evidences, prior_odds))


@MANY
@given(odd, odd)
def test_small_functions(first, second):
    call(ns.softmax_regression, first, second)
    call(ns.logistic_regression, first)
    call(ns.permutation_degeneracy, first)
    call(ns.permutation_degeneracy, [first, second])
    call(ns.gaussian, first)
    call(ns.DenseNetwork, first)


NETWORK = ns.DenseNetwork((3, 4, 2))


def inputs(kind, scale):
    x = np.random.default_rng(0).normal(size=(12, 3))
    if kind == "uint8":
        return (np.abs(x) * 60).astype(np.uint8)
    with np.errstate(all="ignore"):
        return (x * scale).astype(kind)


points = st.tuples(
    st.sampled_from(["float32", "float64", "uint8"]),
    st.sampled_from([0.0, 1e-30, 1.0, 1e10, 1e30, 1e200, 1e308]),
    st.sampled_from([0.0, 1e-20, 1.0, 1e15, 1e30]),
)


def model_at(point):
    kind, scale, size = point
    params = jax.tree.map(lambda leaf: size * np.asarray(leaf), NETWORK.init(0))
    return NETWORK, params, (inputs(kind, scale), np.arange(12) % 2)


@FEW
@given(
    points,
    st.one_of(odd, st.sampled_from(["auto", "per_layer"])),
    st.sampled_from(["auto", "dense", "dual", "lanczos", "kfac", "diagonal"]),
    st.sampled_from(["ggn", "hessian"]),
)
def test_evidences_at_any_point(point, prior, method, curvature):
    call(
        ns.log_evidence,
        *model_at(point),
        prior_precision=prior,
        method=method,
        curvature=curvature,
        max_probes=8,
    )


@FEW
@given(points, st.lists(odd, max_size=4), st.sampled_from(["dense", "dual", "kfac", "diagonal"]))
def test_curves_at_any_point(point, grid, method):
    call(ns.evidence_curve, *model_at(point), prior_precisions=grid, method=method)
    call(ns.evidence_curve, *model_at(point), method=method)


@FEW
@given(points, odd, st.sampled_from(["ggn", "hessian"]))
def test_spectra_and_noise_at_any_point(point, k, curvature):
    model = model_at(point)
    call(ns.spectrum, *model, top_k=2, n_steps=8, curvature=curvature)
    call(ns.spectrum, *model, top_k=k, n_steps=8, curvature=curvature)
    call(ns.gradient_noise, *model, n_eigenvalues=2, curvature=curvature)
    call(ns.gradient_noise, *model, n_eigenvalues=k, curvature=curvature)


@pytest.mark.parametrize("method", ["dual", "kfac", "diagonal"])
def test_curves_of_inputs_out_of_hand_are_refused(method):
    model = model_at(("float64", 1e200, 0.0))
    assert call(ns.evidence_curve, *model, method=method) is None


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.bool_])
def test_whole_numbers_are_inputs_like_others(dtype):
    x = np.random.default_rng(0).integers(0, 2, (20, 3))
    params, y = NETWORK.init(0), np.arange(20) % 2
    whole = ns.gradient_noise(NETWORK, params, (x.astype(dtype), y), n_eigenvalues=2)
    real = ns.gradient_noise(NETWORK, params, (x.astype(np.float32), y), n_eigenvalues=2)
    assert whole.trace == pytest.approx(real.trace, rel=1e-5)
    np.testing.assert_allclose(whole.spectrum.eigenvalues, real.spectrum.eigenvalues, rtol=1e-4)
