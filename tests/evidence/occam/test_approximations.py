"""kfac and diagonal against their definitions."""

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence.curvature.gauss_newton import dense_ggn
from noisescale.evidence.jax_problem import jax_problem
from oracles.models import NETWORK, as_function, data, params_of

pytestmark = pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")


def test_diagonal_and_kfac_against_their_definitions():
    params, pair = params_of(NETWORK), data()
    model = jax_problem(NETWORK, params, pair, "categorical").model
    H = dense_ggn(model)[0]
    diagonal = ns.log_evidence(NETWORK, params, pair, prior_precision=0.3, method="diagonal")
    assert diagonal.log_occam_factor == pytest.approx(
        -0.5 * np.log1p(np.diag(H) / 0.3).sum(), rel=1e-10
    )
    general = ns.log_evidence(as_function, params, pair, prior_precision=0.3, method="diagonal")
    assert general.log_occam_factor == pytest.approx(diagonal.log_occam_factor, rel=1e-10)
    assert "approximation" in " ".join(diagonal.notes)


def test_kfac_is_exact_where_it_should_be():
    """One example: the factors of every layer are the block itself, exactly."""
    network = ns.softmax_regression(8, 4)
    params, (x, y) = params_of(network), data(1)
    model = jax_problem(network, params, (x, y), "categorical").model
    H = dense_ggn(model)[0]
    found = ns.log_evidence(network, params, (x, y), prior_precision=0.3, method="kfac")
    blocks = [H[:4, :4], H[4:, 4:]]  # bias and weights, which KFAC takes as unrelated
    exact = -0.5 * sum(np.linalg.slogdet(np.eye(len(b)) + b / 0.3)[1] for b in blocks)
    assert found.log_occam_factor == pytest.approx(exact, rel=1e-10)
    with pytest.raises(
        ns.InputError, match="needs layers that multiply: a noisescale.DenseNetwork"
    ):
        ns.log_evidence(as_function, params_of(NETWORK), data(), prior_precision=1.0, method="kfac")
