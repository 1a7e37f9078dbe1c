import numpy as np
import pytest
import scipy.linalg

from noisescale.evidence.occam import cholesky
from noisescale.evidence.occam.cholesky import cholesky_of_lower


def positive(n):
    A = np.random.default_rng(0).normal(size=(n, n))
    return A @ A.T + n * np.eye(n)


@pytest.mark.parametrize("n", [1, 4, 5, 23])
def test_panels_give_the_factor_of_the_whole(monkeypatch, n):
    K = positive(n)
    expected = scipy.linalg.cholesky(K, lower=False)
    lower = np.where(np.tri(n, dtype=bool), K, np.nan)  # what is above is never read
    np.testing.assert_allclose(cholesky_of_lower(np.where(np.tri(n), K, 0)), expected, rtol=1e-12)
    monkeypatch.setattr(cholesky, "_WHOLE", 3)
    monkeypatch.setattr(cholesky, "_PANEL", 4)
    found = cholesky_of_lower(lower)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_panels_refuse_what_is_not_positive(monkeypatch):
    monkeypatch.setattr(cholesky, "_WHOLE", 3)
    monkeypatch.setattr(cholesky, "_PANEL", 4)
    K = positive(11)
    K[9, 9] = -1
    with pytest.raises(np.linalg.LinAlgError):
        cholesky_of_lower(K)
