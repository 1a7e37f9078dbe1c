"""Where runs are executed: local processes, any ``concurrent.futures.Executor``, or Dask.

An engine submits tasks, tells how many may be in flight, and can be started again when it broke.
What to do about failures is decided in ``execution.py``, the same for all engines.
"""

import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from noisescale._version import __version__
from noisescale.checks import check_whole, shown
from noisescale.errors import InputError
from noisescale.jobs import isolation
from noisescale.jobs.isolation import AS_SET, ONE_THREAD, START, WorkerDiedError

_START_AGAIN = "what had finished is stored, start the sweep again to go on"


class EngineError(RuntimeError):
    """The workers cannot be used at all; what had finished is in the store."""


@runtime_checkable
class Engine(Protocol):
    """What a sweep needs of the machinery that executes it; any object with these four will do."""

    def submit(self, work: str, *args: Any) -> Future[list[dict[str, Any]]]:
        """Have ``work``, a ``module:function``, called; the future gives its records."""
        ...

    def capacity(self) -> int:
        """How many tasks may be in flight."""
        ...

    def restart(self) -> None:
        """Start again after a broken pool."""
        ...

    def stop(self) -> None:
        """Give up what is in flight, within seconds, and free what the engine started."""
        ...


def open_engine(
    executor: Any = None, *, workers: int | None = None, one_thread: bool = True
) -> Engine:
    """The engine for ``executor``.

    That is None, an :class:`Engine`, an Executor, a Dask client or its scheduler's address. Local
    processes have one thread each and the CPU alone, unless ``one_thread`` is False.
    """
    workers = check_executor(executor, workers)
    if isinstance(executor, Engine):
        return executor
    if executor is None:
        return LocalEngine(workers or cores(), one_thread=one_thread)
    if isinstance(executor, Executor):
        return ExecutorEngine(executor, workers or cores())
    return DaskEngine(executor)


def check_executor(executor: Any, workers: int | None) -> int | None:
    """The number of workers; refuses an executor for which there is no engine."""
    known = executor is None or isinstance(executor, (Engine, Executor, str))
    if isinstance(executor, type) or not (known or hasattr(executor, "get_executor")):
        raise InputError(
            "executor must be None, a concurrent.futures.Executor, a dask.distributed.Client, the "
            f"address of a Dask scheduler or an engine, got {shown(executor)}."
        )
    return None if workers is None else check_whole("workers", workers, at_least=1)


@contextmanager
def engine_for(
    executor: Any, *, workers: int | None = None, one_thread: bool = True
) -> Iterator[Engine]:
    """An engine that the first task starts and the end stops; a caller's own is left running."""
    if isinstance(executor, Engine):
        yield executor
        return
    check_executor(executor, workers)
    engine = LazyEngine(lambda: open_engine(executor, workers=workers, one_thread=one_thread))
    try:
        yield engine
    finally:
        engine.stop()


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_death(error: BaseException) -> bool:
    """Whether ``error`` says that a worker went away, rather than that a run failed."""
    if isinstance(error, (BrokenExecutor, WorkerDiedError, CancelledError)):
        return True
    # Dask's, known by name so that Dask need not be installed.
    return type(error).__name__ in ("KilledWorker", "FutureCancelledError", "LostWorkerError")


class LazyEngine:
    """An engine that ``open`` makes for the first task: none at all, if every run is stored."""

    def __init__(self, open: Callable[[], Engine]) -> None:
        self._open = open
        self._started: Engine | None = None

    def _engine(self) -> Engine:
        if self._started is None:
            self._started = self._open()
        return self._started

    def submit(self, work: str, *args: Any) -> Future[list[dict[str, Any]]]:
        """Have the runs executed, by an engine that is started now if there is none."""
        return self._engine().submit(work, *args)

    def capacity(self) -> int:
        """As the engine says, which is started to be asked."""
        return self._engine().capacity()

    def restart(self) -> None:
        """Start it again after a broken pool."""
        self._engine().restart()

    def stop(self) -> None:
        """Stop what was started, if anything was."""
        if self._started is not None:
            self._started.stop()
            self._started = None


class LocalEngine:
    """Worker processes on this machine, one thread each unless ``one_thread`` is False."""

    def __init__(self, workers: int, *, one_thread: bool = True) -> None:
        self._workers = workers
        self._threads = ONE_THREAD if one_thread else AS_SET
        self._pool = self._start()

    def _start(self) -> Executor:
        from loky import ProcessPoolExecutor as LokyPool

        # loky takes loaded data for a leak and restarts the worker, compiled programs and all.
        env = self._threads | {"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"}
        pool: Executor = LokyPool(
            self._workers,
            initializer=isolation.start_worker,
            initargs=(os.getpid(),),
            env=env,
        )
        _greet(pool, patient=False)
        return pool

    def submit(self, work: str, *args: Any) -> Future[list[dict[str, Any]]]:
        """Have the runs executed by a worker process."""
        future = _submit(self._pool, work, *args)
        # loky's own thread trips over a cancelled future when it kills the pool.
        future.ends_with_pool = True  # type: ignore[attr-defined]
        return future

    def capacity(self) -> int:
        """A task a worker."""
        return self._workers

    def restart(self) -> None:
        """A new pool in place of the broken one."""
        self.stop()
        self._pool = self._start()

    def stop(self) -> None:
        """End the worker processes."""
        self._pool.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg]


class ExecutorEngine:
    """A pool that the caller owns. One that breaks is replaced by local processes."""

    def __init__(self, executor: Executor, workers: int) -> None:
        self._executor = executor
        self._workers = workers
        self._substitute: LocalEngine | None = None
        self._owner = uuid.uuid4().hex
        _greet(executor, patient=True)

    def submit(self, work: str, *args: Any) -> Future[list[dict[str, Any]]]:
        """Have the runs executed by the pool."""
        if self._substitute is not None:
            return self._substitute.submit(work, *args)
        return _submit(self._executor, work, *args, owner=self._owner)

    def capacity(self) -> int:
        """A task a worker."""
        return self._workers

    def restart(self) -> None:
        """Go on with processes of our own: how the caller's pool was made is not known."""
        if self._substitute is not None:
            return self._substitute.restart()
        warnings.warn(
            f"the {type(self._executor).__name__} broke because a worker died: the sweep goes on "
            "with local processes.",
            RuntimeWarning,
            stacklevel=2,
        )
        self._substitute = LocalEngine(self._workers)
        return None

    def stop(self) -> None:
        """End what was started for the pool, not the pool itself."""
        isolation.stop_children(self._owner)
        if self._substitute is not None:
            self._substitute.stop()


class DaskEngine:
    """A Dask cluster. Workers return results; only the client writes them."""

    def __init__(self, client: Any) -> None:
        self._owns_client = isinstance(client, str)
        self._client = _connect(client) if self._owns_client else client
        self._executor: Executor = self._client.get_executor(retries=0)
        if not self._threads():
            self._wait_for_workers()
        _greet(self._executor, patient=True)

    def submit(self, work: str, *args: Any) -> Future[list[dict[str, Any]]]:
        """Have the runs executed by a worker of the cluster."""
        self._check()
        return _submit(self._executor, work, *args)

    def capacity(self) -> int:
        """Two tasks a thread, so that none waits for the network; workers may come and go."""
        return max(1, 2 * sum(self._threads().values()))

    def restart(self) -> None:
        """Nothing to do: the scheduler replaces dead workers itself."""

    def stop(self) -> None:
        """Forget what is in flight; the cluster stays up."""
        self._executor.shutdown(wait=False)
        if self._owns_client:
            self._client.close()

    def _check(self) -> None:
        if self._client.status != "running":
            raise EngineError(f"the Dask cluster is {self._client.status}: {_START_AGAIN}.")

    def _threads(self) -> dict[str, int]:
        """How many each worker has; the scheduler is asked, and waited for if it went away."""
        if self._client.status in ("closing", "closed"):
            self._check()
        try:
            threads: dict[str, int] = self._client.nthreads()
        except OSError as error:
            raise EngineError(f"the Dask scheduler is gone: {_START_AGAIN}.") from error
        return threads

    def _wait_for_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=START)
        except TimeoutError:
            raise InputError(
                f"the Dask cluster has no workers after {START:g} s: start some, `dask worker`."
            ) from None


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise InputError("a cluster needs Dask: install noisescale[dask].") from None
    try:
        return Client(address, timeout=5)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"there is no Dask scheduler at {address!r}: {reason}.") from None


def _submit(pool: Executor, work: str, *args: Any, owner: str = "") -> Future[list[dict[str, Any]]]:
    return pool.submit(isolation.call, work, *args, home=os.getpid(), owner=owner)


def _greet(pool: Executor, *, patient: bool) -> None:
    """Make sure that a worker starts and runs this version, before any run is blamed for it.

    Workers that may be busy with other people's tasks get ``patient`` treatment: no answer in time
    is no reason to give up.
    """
    try:
        version = pool.submit(isolation.ping).result(timeout=START)
    except ModuleNotFoundError as error:
        raise InputError(
            f"the workers cannot import noisescale ({error}): install it where they run."
        ) from None
    except TimeoutError as error:
        if patient:
            return
        raise EngineError(f"the workers do not start within {START:g} s.") from error
    except Exception as error:
        raise EngineError(f"the workers do not start: {type(error).__name__}: {error}") from error
    if version != __version__:
        raise InputError(
            f"the workers run noisescale {version}, this is {__version__}: install the same."
        )
