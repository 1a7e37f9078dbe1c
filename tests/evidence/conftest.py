import numpy as np
import pytest

from noisescale.evidence.linear.regression import fit_map, linear_problem
from noisescale.evidence.occam import dual


@pytest.fixture
def no_small_roots(monkeypatch):
    """Small problems would take the root itself; here they take the kernel."""
    monkeypatch.setattr(dual, "SMALL", 0)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 4)), rng.integers(3, size=60)
    x += 1.2 * np.eye(3, 4)[y]
    fit = fit_map(linear_problem(x, y), prior_precision=0.5)
    return {"w": fit.coef.T, "b": fit.intercept}, (x, y), fit
