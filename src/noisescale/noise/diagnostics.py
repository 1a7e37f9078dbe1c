"""Whether chains have mixed, and how many independent draws they are worth.

Split R-hat and effective sample size as in Vehtari et al. (2021), without rank normalisation: each
chain is cut in two, R-hat compares the variance between the halves with that within, and the
effective sample size divides by the autocorrelation time (Geyer's initial monotone sequence).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from noisescale.errors import InputError

Array = NDArray[np.float64]

BLOCK = 1 << 19  # draws, of as many quantities, that are looked at together
BYTES = 200.0  # that a draw takes then: in float64, as halves, centred, as padded spectra


def split_r_hat(draws: NDArray[np.floating]) -> Array:
    """R-hat of draws (chains, draws, ...), one value a quantity; NaN where nothing varies."""
    return _in_blocks(_split_r_hat, draws)


def effective_sample_size(draws: NDArray[np.floating]) -> Array:
    """How many independent draws (chains, draws, ...) are worth, one value a quantity."""
    return _in_blocks(_effective_sample_size, draws)


def _in_blocks(diagnostic: Callable[[Array], Array], draws: NDArray[np.floating]) -> Array:
    """Some quantities at a time: float64, halves and spectra take many times the draws."""
    draws = np.asarray(draws)
    if draws.ndim < 2 or draws.shape[1] < 4:
        raise InputError(
            f"diagnostics need draws (chains, draws, ...) with at least 4 draws, got shape "
            f"{draws.shape}."
        )
    n_chains, n_draws, *shape = draws.shape
    flat, half = draws.reshape(n_chains, n_draws, -1), n_draws // 2
    found, size = np.empty(flat.shape[2]), max(1, BLOCK // (n_chains * n_draws))
    for start in range(0, len(found), size):
        block = flat[:, :, start : start + size].astype(float)
        halves = np.concatenate([block[:, :half], block[:, -half:]])  # each chain as two
        found[start : start + size] = diagnostic(halves)
    return found.reshape(shape)


def _split_r_hat(halves: Array) -> Array:
    n = halves.shape[1]
    within = halves.var(axis=1, ddof=1).mean(axis=0)
    between = n * halves.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(((n - 1) / n * within + between / n) / within))


def _effective_sample_size(halves: Array) -> Array:
    m, n = halves.shape[:2]
    centred = halves - halves.mean(axis=1, keepdims=True)
    # Autocovariances by FFT, padded so that nothing wraps around.
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :n] / n  # (m, n, k)
    within = covariance[:, 0].mean(axis=0) * n / (n - 1)
    total = within * (n - 1) / n + halves.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rho = 1 - (within - covariance.mean(axis=0) * n / (n - 1)) / total  # (n, k)
    rho[0] = 1
    pairs = rho[: n // 2 * 2].reshape(n // 2, 2, -1).sum(axis=1)
    # Up to the first pair that is not positive, and never rising.
    positive = np.minimum.accumulate(pairs > 0, axis=0)
    kept = np.where(positive, np.minimum.accumulate(np.maximum(pairs, 0), axis=0), 0)
    time = np.maximum(-1 + 2 * kept.sum(axis=0), 1 / np.log10(max(m * n, 10)))
    return np.where(np.isfinite(total) & (total > 0), m * n / time, np.nan)
