import os
import platform
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

# Few cores and small matrices: hypothesis must not call a compile a flaky deadline.
from hypothesis import settings

from noisescale.data import Dataset, DataWarning, load_mnist
from noisescale.jobs.progress import Progress
from oracles.here import Here

TESTS = Path(__file__).parent

settings.register_profile("noisescale", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("noisescale")
os.environ.setdefault("MPLBACKEND", "agg")
# Compiled programs are kept for the next process and the next run: most of a test's time is XLA's.
# A folder for each machine, because they are made for its CPU.
_COMPILED = TESTS.parent / ".pytest_cache" / f"jax-{platform.node()}"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


# What needs the smoke report, or what ships judged: made once a run, so it shares a worker.
_DEAR = (
    "tests/golden/test_golden.py::test_claims_are_judged_as_before",
    "tests/golden/test_golden.py::test_the_smoke_report_measures_as_before",
    "tests/paper/test_readings.py",
    "tests/paper/test_recomputed.py",
    "tests/paper/test_report.py",
    "tests/test_documented_numbers.py",
    "tests/test_results.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile`` a file's tests go to one worker, and to one all that is dear.

    xdist has groups of its own, but their marks do not reach the newest pytest.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "dear" if nodeid.startswith(_DEAR) else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items):
    """What is dear comes first: the other workers go on with the files meanwhile."""
    items.sort(key=lambda item: not item.nodeid.startswith(_DEAR))


@pytest.fixture(scope="session")
def mnist() -> Dataset:
    """MNIST, whole if it can be had, else its embedded part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load_mnist()


@pytest.fixture(scope="session")
def full_mnist(mnist: Dataset) -> Dataset:
    """All of MNIST, or a skip that says why."""
    if not mnist.complete:
        pytest.skip("full MNIST is out of reach on this machine")
    return mnist


class _Lines(Progress):
    """Remembers what it is told."""

    def __init__(self):
        self.lines, self.n_runs = [], 0

    def line(self, text):
        self.lines.append(text)

    def finished(self, run, record):
        self.n_runs += 1


@pytest.fixture(scope="session")
def full_scale():
    """What ships, judged and drawn once: the findings of a section by its id."""
    from judged import findings

    return findings


@pytest.fixture(scope="session")
def report(tmp_path_factory, full_scale):
    """A report at smoke scale: what it returned, its folder, what it said on the way.

    Measured in this process: workers would start Python and JAX anew.
    """
    from noisescale.paper import run_paper

    told = _Lines()
    out = tmp_path_factory.mktemp("report")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        made = run_paper(out, scale="smoke", executor=Here(), progress=told)
    return made, out, told


@pytest.fixture
def unruly(tmp_path, monkeypatch):
    """Where the models of oracles/unruly.py leave their marks."""
    folder = tmp_path / "unruly"
    folder.mkdir()
    monkeypatch.setenv("UNRULY", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    return folder


@pytest.fixture
def gate(unruly):
    """The gate of oracles/unruly.py: ``gate.touch()`` opens it."""
    return unruly / "gate"


# A shell's background jobs, and so the tests in one, are deaf to it.
_HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


@pytest.fixture
def hears_ctrl_c():
    """As in a terminal, wherever the tests run."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def start_python(tmp_path):
    """Run code in a process group of its own, as a terminal would."""
    started = []

    def start(code, *args):
        process = subprocess.Popen(
            [sys.executable, "-c", _HEARS_CTRL_C + textwrap.dedent(code), *map(str, args)],
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
