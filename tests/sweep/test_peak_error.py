"""The cubic's bias and scatter are known: on curves of the shape that runs have, and of others."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import least_squares

from noisescale.paper import shipped
from noisescale.paper.scaling import LADDER
from noisescale.sweep.peak import find_peak
from noisescale.sweep.peak_error import SHAPE, shape

SIZES = np.array([size for size in LADDER if 10 <= size <= 640], float)


def runs(curve, *, noise, seed, n_seeds=3):
    rng = np.random.default_rng(seed)
    values = (
        curve + rng.normal(0, 0.004, (n_seeds, 1)) + rng.normal(0, noise, (n_seeds, len(SIZES)))
    )
    seeds, sizes = np.meshgrid(range(n_seeds), SIZES, indexing="ij")
    return pd.DataFrame(
        {
            "seed": seeds.ravel(),
            "batch_size": sizes.ravel(),
            "test_accuracy": values.clip(0, 1).ravel(),
            "status": "done",
            "n_classes": 10,
        }
    )


def wall(top, k, depth=0.02):
    u = np.log(SIZES / top)
    return 0.92 - depth * (1 - (1 + k * u) * np.exp(-k * np.maximum(u, -2)))


@pytest.mark.parametrize("trials", [10, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("k", [1.7, SHAPE, 2.8])
def test_corrected_intervals_cover_the_top_wherever_the_sizes_lie(k, trials):
    rng = np.random.default_rng(1)
    tops = 60 * np.exp(rng.uniform(-0.35, 0.35, trials))  # a whole rung: every phase of the grid
    peaks = [
        find_peak(runs(wall(top, k), noise=0.0012, seed=i), n_resamples=1)
        for i, top in enumerate(tops)
    ]
    misses = np.array([np.log(p.corrected.value / t) for p, t in zip(peaks, tops, strict=True)])
    covered = np.mean([t in p.corrected for p, t in zip(peaks, tops, strict=True)])
    assert covered > 0.95 - 3 * np.sqrt(0.95 * 0.05 / len(tops))
    assert abs(misses.mean()) < 0.06


def test_the_cubic_itself_is_biased_and_its_seeds_do_not_know():
    tops = 60 * np.exp(np.linspace(-0.3, 0.3, 13))
    peaks = [find_peak(runs(wall(top, SHAPE), noise=1e-6, seed=0)) for top in tops]
    misses = np.array([np.log(p.fitted / t) for p, t in zip(peaks, tops, strict=True)])
    assert misses.mean() > 0.05
    assert np.mean([p.low <= t <= p.high for p, t in zip(peaks, tops, strict=True)]) < 0.5
    corrected = [np.log(p.corrected.value / t) for p, t in zip(peaks, tops, strict=True)]
    assert abs(np.mean(corrected)) < 0.02


def test_a_single_seed_and_a_flat_curve_have_no_corrected_top():
    assert find_peak(runs(wall(60, SHAPE), noise=0.001, seed=0, n_seeds=1)).corrected is None
    flat = [
        find_peak(runs(np.full(len(SIZES), 0.9), noise=0.003, seed=k), n_resamples=1)
        for k in range(20)
    ]
    assert sum(peak.corrected is None for peak in flat) > 10


def test_the_shape_is_that_of_the_shipped_runs():
    """One k for the best-known curves of figures 5 to 7, fitted again from their runs."""
    curves = []
    for name, fields in (("5", "learning_rate"), ("6", "n_train"), ("7", "momentum")):
        frame = pd.read_csv(shipped.folder() / f"figure{name}.csv")
        frame = frame[(frame["learning_rate"] * frame["steps"] - 10_000).abs() < 20]
        frame = frame[(frame["momentum"] == 0.9) | (name == "7")]
        for _, part in frame.groupby([fields, "n_train", "momentum"]):
            seeds = part.groupby("batch_size")["seed"].transform("nunique")
            peak = find_peak(part[(seeds >= 3) & (part["status"] == "done")], n_resamples=1)
            if peak.corrected is None or peak.undetermined is not None:
                continue
            x, e = np.log(peak.sizes), 1 - np.array(peak.mean)
            near = e <= 1.6 * e.min()
            curves.append((x[near], e[near] / e.min()))
    assert len(curves) >= 10

    def misfit(parameters):
        k, centres = np.exp(parameters[0]), parameters[1:]
        parts = []
        for (x, e), centre in zip(curves, centres, strict=True):
            u = x - centre
            f = 1 - (1 + k * u) * np.exp(-k * u)
            design = np.column_stack([np.ones(len(x)), f])
            parts.append(e - design @ np.linalg.lstsq(design, e, rcond=None)[0])
        return np.concatenate(parts)

    start = [np.log(2.0), *(x[e.argmin()] for x, e in curves)]
    k = np.exp(least_squares(misfit, start, loss="soft_l1", f_scale=0.02).x[0])
    assert pytest.approx(k, rel=0.25) == SHAPE


def test_the_shape_has_its_top_at_zero():
    u = np.linspace(-1, 2, 301)
    assert shape(u).argmin() == np.abs(u).argmin()
    assert shape(np.array([0.0]))[0] == 0
