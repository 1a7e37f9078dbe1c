"""Rounding of matrices that are nearly singular."""

import numpy as np
import pytest

import noisescale as ns
from oracles.models import linear


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize("prior", [1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize(
    ("method", "curvature"), [("dense", "ggn"), ("dual", "ggn"), ("dense", "hessian")]
)
def test_rounding_of_a_singular_curvature_is_not_counted(prior, method, curvature):
    rng = np.random.default_rng(0)
    x = 10 * rng.normal(size=(90, 10)) @ rng.normal(size=(10, 70))  # rank 10 of 70
    result = ns.log_evidence(
        linear,
        np.zeros(70),
        (x, np.arange(90) % 2),
        prior_precision=prior,
        likelihood="bernoulli",
        method=method,
        curvature=curvature,
    )
    s = np.linalg.svd(x, compute_uv=False)[:10]
    exact = -0.5 * np.log1p(s**2 / 4 / prior).sum()
    assert result.log_occam_factor == pytest.approx(exact, rel=1e-7)
    assert result.n_negative == 0
