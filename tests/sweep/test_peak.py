import numpy as np
import pandas as pd
import pytest

from noisescale.errors import InputError
from noisescale.sweep.peak import find_peak

# A few of a study's trials at every run of the tests, all of them in the long ones.
TRIALS = pytest.mark.parametrize("trials", [10, pytest.param(100, marks=pytest.mark.long)])
SIZES = np.array([5, 7, 10, 12, 15, 20, 25, 30, 45, 70, 100, 150, 200, 300])


def frame_of(curve, *, n_seeds=5, noise=0.003, seed=0, sizes=SIZES):
    """Runs whose accuracies are a curve, an offset for each seed, and noise."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "batch_size": B,
            "seed": s,
            "status": "done",
            "n_classes": 10,
            "test_accuracy": value + offset + rng.normal(0, noise),
        }
        for s, offset in enumerate(rng.normal(0, 0.01, n_seeds))
        for B, value in zip(sizes, curve, strict=True)
    ]
    return pd.DataFrame(rows)


def parabola(top, sizes=SIZES, steepness=0.02):
    return 0.9 - steepness * np.log(sizes / top) ** 2


def test_the_top_of_a_noiseless_curve_is_exact():
    peak = find_peak(frame_of(parabola(22.0), noise=0))
    assert peak.fitted == pytest.approx(22.0, rel=1e-6)
    assert (peak.best, peak.best_low, peak.best_high) == (20, 15, 25)
    assert peak.undetermined is None


@TRIALS
@pytest.mark.parametrize("top", [12.0, 22.0, 60.0])
def test_intervals_cover_the_truth(top, trials):
    peaks = [find_peak(frame_of(parabola(top), seed=k), n_resamples=100) for k in range(trials)]
    found = [peak for peak in peaks if peak.undetermined is None]
    assert len(found) >= 0.8 * trials
    covered = np.mean([peak.low <= top <= peak.high for peak in found])
    # 95 % nominal; three standard errors of a share from this many trials.
    assert covered > 0.95 - 3 * np.sqrt(0.95 * 0.05 / len(found))
    bias = np.mean([np.log(peak.fitted / top) for peak in found])
    assert abs(bias) < 0.05


@TRIALS
def test_noise_alone_has_no_peak(trials):
    flat = [find_peak(frame_of(np.full(14, 0.9), seed=k), n_resamples=100) for k in range(trials)]
    assert np.mean([peak.undetermined is not None for peak in flat]) >= 0.9


@pytest.mark.parametrize(("top", "word"), [(1.0, "smallest"), (3000.0, "largest")])
def test_a_best_size_at_the_edge_is_undetermined(top, word):
    peak = find_peak(frame_of(parabola(top)))
    assert f"the {word} that was tried" in peak.undetermined
    assert peak.fitted is None
    assert "undetermined" in repr(peak)


def test_diverged_runs_bound_the_peak_but_are_not_fitted():
    frame = frame_of(parabola(13.0), noise=0)
    bad = frame["batch_size"] <= 10
    frame.loc[bad, "status"] = "diverged"
    frame.loc[bad, "test_accuracy"] = np.nan
    peak = find_peak(frame)
    assert peak.fitted == pytest.approx(13.0, rel=1e-6)
    assert peak.mean[0] == pytest.approx(0.1)


def test_failed_runs_and_incomplete_sizes_are_left_out():
    frame = frame_of(parabola(22.0), noise=0)
    frame.loc[(frame["batch_size"] == 20) & (frame["seed"] == 1), "status"] = "failed"
    peak = find_peak(frame)
    assert 20 not in peak.sizes
    assert peak.n_seeds == 5
    assert peak.fitted == pytest.approx(22.0, rel=1e-6)


def test_one_seed_gives_no_interval():
    peak = find_peak(frame_of(parabola(22.0), n_seeds=1, noise=0))
    assert peak.fitted == pytest.approx(22.0, rel=1e-6)
    assert peak.low is None
    assert np.isnan(peak.accuracy_std)


def test_the_same_frame_gives_the_same_interval():
    frame = frame_of(parabola(22.0))
    assert find_peak(frame) == find_peak(frame.sample(frac=1, random_state=0))
    assert find_peak(frame).to_dict()["n_seeds"] == 5


def test_what_cannot_be_compared():
    frame = frame_of(parabola(22.0))
    with pytest.raises(InputError, match="has no column 'seed'"):
        find_peak(frame.drop(columns="seed"))
    with pytest.raises(InputError, match="several runs of one seed and batch_size"):
        find_peak(pd.concat([frame, frame]))
    with pytest.raises(InputError, match="no finished runs"):
        find_peak(frame.assign(status="failed"))
    lonely = frame[frame["batch_size"] == 5 + 2 * (frame["seed"] % 2)]
    with pytest.raises(InputError, match="no batch_size was run with every seed"):
        find_peak(lonely)
