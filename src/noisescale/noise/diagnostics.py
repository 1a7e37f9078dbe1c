"""Whether chains have mixed, and how many independent draws they are worth.

Split R-hat and effective sample size as in Vehtari et al. (2021), without rank normalisation: each
chain is cut in two, R-hat compares the variance between the halves with that within, and the
effective sample size divides by the autocorrelation time (Geyer's initial monotone sequence).
"""

import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError

Array = NDArray[np.float64]


def split_r_hat(draws: Array) -> Array:
    """R-hat of draws (chains, draws, ...), one value a quantity; NaN where nothing varies."""
    halves = _split(draws)
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = n * halves.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(((n - 1) / n * within + between / n) / within))


def effective_sample_size(draws: Array) -> Array:
    """How many independent draws (chains, draws, ...) are worth, one value a quantity."""
    halves = _split(draws)
    m, n = halves.shape[:2]
    shape = halves.shape[2:]
    flat = halves.reshape(m, n, -1)
    centred = flat - flat.mean(axis=1, keepdims=True)
    # Autocovariances by FFT, padded so that nothing wraps around.
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n] / n  # (m, n, k)
    within = covariance[:, 0].mean(axis=0) * n / (n - 1)
    total = within * (n - 1) / n + flat.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1 - (within - covariance.mean(axis=0) * n / (n - 1)) / total  # (n, k)
    rho[0] = 1
    pairs = rho[: n // 2 * 2].reshape(n // 2, 2, -1).sum(axis=1)
    # Up to the first pair that is not positive, and never rising.
    positive = np.minimum.accumulate(pairs > 0, axis=0)
    kept = np.where(positive, np.minimum.accumulate(np.maximum(pairs, 0), axis=0), 0)
    time = np.maximum(-1 + 2 * kept.sum(axis=0), 1 / np.log10(max(m * n, 10)))
    worth = np.where(np.isfinite(total) & (total > 0), m * n / time, np.nan)
    return np.asarray(worth.reshape(shape))


def _split(draws: Array) -> Array:
    """Each chain as two."""
    draws = np.asarray(draws, float)
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise InputError(
            f"diagnostics need draws (chains, draws, ...) with at least 4 draws, got shape "
            f"{draws.shape}."
        )
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])
