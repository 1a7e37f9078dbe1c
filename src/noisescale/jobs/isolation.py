"""Calls in a process whose JAX uses one thread.

JAX sizes its thread pool once, when it starts, from the environment. A process that has not
started it yet is told to use one thread; one that has hands the call to a child process of its own.
Nothing here imports JAX, so that unpickling a task in a fresh worker does not start it.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from noisescale._version import __version__

# NPROC is what XLA's own thread pool reads (flags that look right, --xla_cpu_multi_thread_eigen
# and intra_op_parallelism_threads, change nothing in JAX 0.10). The CPU alone, because many
# processes cannot share an accelerator and because a result must not depend on where it ran.
ONE_THREAD = {
    "NPROC": "1",
    "PJRT_NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "NOISESCALE_ONE_THREAD": "1",
}
# A worker that may use the machine as its user has set it, accelerator and all.
AS_SET = {"NOISESCALE_ONE_THREAD": "0"}


START = 120.0  # seconds in which a process must have started
PARENT_CHECK = 0.5  # seconds between a worker's looks at whether its parent is still there


class WorkerDiedError(RuntimeError):
    """A worker process ended before it could answer."""


def call(target: str, *args: Any, home: int, owner: str) -> Any:
    """``module:function`` called with one thread, here or in a child of this process.

    ``home`` is the process id of whoever asks: its own JAX is never limited. ``owner`` names the
    sweep that a child works for.
    """
    if os.getpid() != home and _prepare():
        return _resolve(target)(*args)
    return _child(owner).call(target, *args)


def call_within(seconds: float, target: str, *args: Any, owner: str, ready: tuple[Any, ...]) -> Any:
    """The same in a child process, which is killed if it does not answer in time.

    A new child first makes the call ``ready``, such as imports, which does not count against
    ``seconds``: how long a process takes to start says nothing of the work.
    """
    child = _child(owner)
    if not child.ready:
        _limited(child, max(seconds, START), *ready)
        child.ready = True
    return _limited(child, seconds, target, *args)


def _limited(child: "_Child", seconds: float, target: str, *args: Any) -> Any:
    late = threading.Event()

    def end() -> None:
        late.set()
        child.interrupt()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        return child.call(target, *args)
    except WorkerDiedError:
        if late.is_set():
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise
    finally:
        timer.cancel()


def ping() -> str:
    """This process's version of noisescale, as a sign of life."""
    return __version__


def start_worker(parent: int) -> None:
    """Set up a worker process: one thread, deaf to Ctrl-C, gone when its parent is gone.

    ``parent`` is the process id that the parent itself gives: one that was killed while its workers
    were starting can no longer be asked for, and whoever adopts them lives on. So a worker outlives
    its parent by its own start, if that was still under way, and :data:`PARENT_CHECK` seconds.
    """
    _prepare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def stop_children(owner: str) -> None:
    """End the child processes that work for ``owner`` in this process."""
    for child in [child for child in _children if child.owner == owner]:
        child.kill()


def _prepare() -> bool:
    """Whether JAX has the threads it should in this process, told so now if it has not started."""
    if os.environ.get("NOISESCALE_ONE_THREAD") in ("0", "1"):
        return True
    if "jax" in sys.modules:
        return False
    os.environ.update(ONE_THREAD)
    return True


def _threads() -> dict[str, str]:
    """What a child process of this one is told."""
    return AS_SET if os.environ.get("NOISESCALE_ONE_THREAD") == "0" else ONE_THREAD


def _resolve(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK)
    os._exit(1)


class _Child:
    """A process that answers one call at a time, over pipes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.ready = False
        path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_threads(), "PYTHONPATH": path},
        )
        _children.add(self)

    def call(self, target: str, *args: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((target, args), self._process.stdin)
            self._process.stdin.flush()
            error, answer = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            code = self._process.wait()
            self.kill()
            raise WorkerDiedError(f"a worker process ended with code {code}.") from None
        if error is not None:
            raise error
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """End the process; whoever waits for its answer finds it gone."""
        self._process.kill()

    def kill(self) -> None:
        _children.discard(self)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # what it was to be told no longer matters
                    pipe.close()


_children: set[_Child] = set()
_local = threading.local()


def _child(owner: str) -> _Child:
    """This thread's child for ``owner``, a new one if the last is gone."""
    child: _Child | None = getattr(_local, "child", None)
    if child is not None and child.owner != owner:
        child.kill()
    if child is None or not child.alive:
        child = _local.child = _Child(owner)
    return child


def _serve() -> None:
    """Answer calls on stdin until it closes; what they print goes to stderr."""
    start_worker(int(sys.argv[1]))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            target, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[Exception | None, Any] = (None, _resolve(target)(*args))
        except BaseException as error:
            answer = (RuntimeError(f"{type(error).__name__}: {error}"), None)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
