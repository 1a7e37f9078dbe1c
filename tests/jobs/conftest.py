import pytest

from noisescale.jobs.engines import open_engine
from oracles.unruly import GATE


@pytest.fixture(scope="session")
def pool_folder(tmp_path_factory):
    """What $UNRULY is to the pool's workers; its gate is open."""
    folder = tmp_path_factory.mktemp("pool")
    (folder / GATE).touch()
    return folder


@pytest.fixture(scope="session")
def pool(pool_folder):
    """Two worker processes for all runs that kill none: to start them is most of a test's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNRULY", str(pool_folder))
        engine = open_engine(workers=2)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Dask cluster of two processes. What $UNRULY is to them says ``cluster.folder``."""
    distributed = pytest.importorskip("distributed")
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cluster")
        patch.setenv("UNRULY", str(folder))
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster:
            cluster.folder = folder
            yield cluster
