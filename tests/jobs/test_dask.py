"""A real Dask cluster, one of whose workers is killed."""

import contextlib
import functools
import os
import signal
import threading
import time

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import noisescale as ns
from compare import results
from noisescale.errors import InputError
from noisescale.jobs.engines import EngineError
from noisescale.jobs.execution import complete
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from oracles.unruly import GATE, WORK, jobs

distributed = pytest.importorskip("distributed")
# Dask closes its sockets and event loops when it likes.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


def test_a_killed_worker_loses_nothing(cluster, pool, tmp_path):
    path = tmp_path / "runs.sqlite"
    killed = []

    def kill_one():
        while not killed:
            time.sleep(0.05)
            if path.exists() and path.stat().st_size:
                with RunStore(path) as store:
                    if len(store.statuses()) >= 2:
                        victim = next(iter(cluster.workers.values()))
                        os.kill(victim.pid, signal.SIGKILL)
                        killed.append(victim.pid)
                        (cluster.folder / GATE).touch()

    watcher = threading.Thread(target=kill_one)
    watcher.start()
    with distributed.Client(cluster) as client:
        frame = complete(jobs("gated", 8), path, WORK, client)
    watcher.join()
    assert killed
    whole = complete(jobs("gated", 8), tmp_path / "whole.sqlite", WORK, pool)
    assert results(frame).equals(results(whole))


def test_a_cluster_by_its_address(cluster, tmp_path):
    frame = complete(jobs("good", 2), tmp_path, WORK, cluster.scheduler_address)
    assert list(frame["status"]) == ["done", "done"]


def test_bets_are_made_on_a_cluster(cluster, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 2))
    data, options = (x, (x[:, 0] > 0).astype(int)), {"blocks": [10, 10, 20], "orders": 2}
    with distributed.Client(cluster) as client:
        found = ns.prequential_evidence(
            GaussianNB(), data, **options, store=tmp_path, executor=client
        )
    here = ns.prequential_evidence(GaussianNB(), data, **options)
    np.testing.assert_allclose(found.losses, here.losses, rtol=1e-12)


def test_no_cluster_there(tmp_path, monkeypatch):
    impatient = functools.partial(distributed.Client, timeout=0.5)
    monkeypatch.setattr(distributed, "Client", lambda address, timeout: impatient(address))
    with pytest.raises(InputError, match="there is no Dask scheduler at 'tcp://127.0.0.1:9'"):
        complete(jobs("good", 1), tmp_path, WORK, "tcp://127.0.0.1:9")


@pytest.mark.parametrize("by_address", [False, True], ids=["client", "address"])
def test_a_cluster_that_goes_away_is_told_with_what_is_stored(pool, tmp_path, by_address):
    path = tmp_path / "runs.sqlite"
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
    )

    class Close(Progress):
        def finished(self, run, record):
            cluster.close()

    with contextlib.ExitStack() as closing:
        closing.enter_context(cluster)
        executor = cluster.scheduler_address
        if not by_address:
            executor = closing.enter_context(distributed.Client(executor, timeout=3))
        with pytest.raises(
            EngineError, match="the Dask .*: what had finished is stored, start the"
        ):
            complete(jobs("good", 40), path, WORK, executor, progress=Close())
    with RunStore(path) as store:
        assert 1 <= len(store.statuses()) < 40
    assert len(complete(jobs("good", 40), path, WORK, pool)) == 40
