"""Stages through the store: kept when a fit fails, and resumed. On a cluster: jobs/test_dask.py."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import noisescale as ns
from noisescale.errors import InputError
from noisescale.jobs.store import RunStore

X = np.random.default_rng(0).normal(size=(40, 2))
Y = (X[:, 0] > 0).astype(int)
OPTIONS = {"blocks": [10, 10, 20], "orders": 2}


@pytest.fixture(scope="module")
def pool():
    """One worker process for all tests here: starting one takes longer than its work."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def marking(folder, fails_at=(), instead=None):
    """A fit that leaves a mark for each training, and fails on prefixes of some lengths.

    Or there it predicts what ``instead`` of the number of examples is. Its identity is its own: a
    marker is what it always was.
    """

    class Fit:
        identity = "marking"

        def __call__(self, x, y, *, seed):
            if len(y) in fails_at:
                if instead is None:
                    raise RuntimeError("out of luck")
                return lambda x: instead(len(x))
            (folder / f"{len(y)}-{seed}").touch()
            return GaussianNB().fit(x, y).predict_proba

    return Fit()


@pytest.mark.parametrize(
    ("instead", "sentence"),
    [
        (None, "out of luck"),
        (lambda n: np.full((n, 2), np.nan), "hold nan"),
        (lambda n: np.full((n, 3), 1 / 3), r"shape \(20, 2\)"),
        (lambda n: np.ones((n, 2)), "sums to 2"),
    ],
    ids=["raises", "NaN", "shape", "unnormalised"],
)
def test_what_was_measured_is_kept_when_a_fit_fails(tmp_path, pool, instead, sentence):
    marks = tmp_path / "marks"
    marks.mkdir()
    options = {**OPTIONS, "store": tmp_path / "store", "executor": pool, "workers": 1}
    failing = marking(marks, fails_at={20}, instead=instead)
    with pytest.raises(InputError, match=f"{sentence}.*2 of 4 stages have finished") as caught:
        ns.prequential_evidence(failing, (X, Y), **options)
    assert "fit on the first 20 examples of order 0 failed" in str(caught.value)
    assert "\n" not in str(caught.value)
    before = {path.name: path.stat().st_mtime_ns for path in marks.iterdir()}
    assert len(before) == 2
    found = ns.prequential_evidence(marking(marks), (X, Y), **options)
    after = {path.name: path.stat().st_mtime_ns for path in marks.iterdir()}
    assert len(after) == 4
    assert before.items() <= after.items()  # none was made twice
    here = ns.prequential_evidence(marking(marks), (X, Y), **OPTIONS)
    np.testing.assert_allclose(found.losses, here.losses, rtol=1e-12)
    with RunStore(tmp_path / "store") as store:
        assert set(store.statuses().values()) == {"done"}


def test_other_data_and_other_settings_are_other_stages(tmp_path, pool):
    fit = GaussianNB()
    options = {**OPTIONS, "store": tmp_path, "executor": pool, "workers": 1}
    ns.prequential_evidence(fit, (X, Y), **options)
    for data, changed, n in (
        ((X, Y), {}, 4),
        ((X, 1 - Y), {}, 8),
        ((X, Y), {"temperatures": (1.0,)}, 12),
    ):
        ns.prequential_evidence(fit, data, **options | changed)
        with RunStore(tmp_path) as store:
            assert len(store.statuses()) == n


def test_a_killed_call_goes_on_from_its_store(tmp_path, start_python, pool):
    """Killed hard after its first stages; the second call makes the others alone."""
    code = """
        import os, signal, sys
        import numpy as np
        import noisescale as ns
        from noisescale.jobs.progress import Progress
        from sklearn.naive_bayes import GaussianNB

        class Kill(Progress):
            def finished(self, run, record):
                os.kill(os.getpid(), signal.SIGKILL)

        x = np.random.default_rng(0).normal(size=(40, 2))
        y = (x[:, 0] > 0).astype(int)
        ns.prequential_evidence(
            GaussianNB(), (x, y), blocks=[10, 10, 20], orders=2, store=sys.argv[1], workers=1,
            progress=Kill(),
        )
    """
    process = start_python(code, tmp_path)
    process.communicate()
    assert process.returncode == -9
    with RunStore(tmp_path) as store:
        kept = store.frame()
    assert 1 <= len(kept) < 4
    options = {**OPTIONS, "store": tmp_path, "executor": pool, "workers": 1}
    found = ns.prequential_evidence(GaussianNB(), (X, Y), **options)
    with RunStore(tmp_path) as store:
        whole = store.frame().set_index("key")
    assert (whole.loc[kept["key"], "finished"].to_numpy() == kept["finished"].to_numpy()).all()
    assert len(whole) == 4
    assert (
        found.log_evidence == ns.prequential_evidence(GaussianNB(), (X, Y), **OPTIONS).log_evidence
    )
