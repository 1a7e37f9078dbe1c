"""Progress that speaks in time, and native code that can be interrupted."""

import _thread
import signal
import threading

import numpy as np
import pytest

import noisescale as ns
from noisescale.evidence import pace
from noisescale.evidence.pace import Pace, advance, attended, spoken, stage, tick
from oracles.models import NETWORK, as_function, data, params_of


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_it_speaks_when_a_second_has_passed():
    heard, clock = [], Clock()
    told = Pace(heard.append, clock)
    told.begin("rows", 100)
    told.advance(10)
    assert heard == []
    clock.now = 1.0
    told.advance(10)
    clock.now = 1.5
    told.advance(10)
    clock.now = 2.5
    told.tick()
    assert heard == ["rows: 20%, about 4 s left", "rows: 30%, about 5.8 s left"]
    told.begin("factorisation", 5)
    clock.now = 6.5
    told.tick()
    assert heard[-1] == "factorisation: 4 s so far"


def test_nobody_listens_outside():
    heard = []
    with spoken(heard.append):
        stage("rows", 1)
    for call in (lambda: stage("rows", 1), lambda: advance(1), tick):
        call()
    assert heard == []


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize("method", ["dense", "dual", "lanczos", "kfac", "diagonal"])
@pytest.mark.parametrize("model", [NETWORK, as_function], ids=["layers", "function"])
def test_every_method_is_heard(monkeypatch, method, model):
    if method == "kfac" and model is as_function:
        pytest.skip("a function has no layers")
    monkeypatch.setattr(pace, "EVERY", 0.0)  # every block speaks
    heard = []
    ns.log_evidence(
        model,
        params_of(NETWORK),
        data(),
        prior_precision=1.0,
        method=method,
        max_probes=2,
        progress=heard.append,
    )
    assert any("left" in text for text in heard)


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (ns.log_evidence, {"prior_precision": 1.0, "at": "map"}),
        (ns.log_evidence, {"prior_precision": "auto", "at": "map"}),
        (ns.map_estimate, {"prior_precision": 1.0}),
        (ns.evidence_curve, {}),
    ],
)
def test_there_is_one_channel_and_it_is_paced(monkeypatch, function, settings):
    """Whatever speaks waits for its turn: with every second it is heard, else it is not."""
    heard = []
    for every, said in ((1e9, False), (0.0, True)):
        monkeypatch.setattr(pace, "EVERY", every)
        function(NETWORK, params_of(NETWORK), data(), progress=heard.append, **settings)
        assert bool(heard) is said


def test_what_must_be_heard_is_said_at_once_and_once(monkeypatch):
    monkeypatch.setattr(pace, "EVERY", 1e9)
    heard = []
    with spoken(heard.append):
        for text in ("a", "a", "b"):
            pace.say(text)
    pace.say("c")
    assert heard == ["a", "b"]


def test_a_descent_tells_its_cost(monkeypatch):
    monkeypatch.setattr(pace, "EVERY", 0.0)
    heard = []
    ns.map_estimate(NETWORK, params_of(NETWORK), data(), prior_precision=1.0, progress=heard.append)
    assert any(text.startswith("step 25: cost ") for text in heard)


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_function_that_is_merely_made_is_no_stage(monkeypatch, framework):
    monkeypatch.setattr(pace, "EVERY", 0.0)
    x, y = np.ones((4, 2)), np.array([0, 1, 0, 1])
    if framework == "jax":
        from noisescale.evidence.jax_problem import jax_problem

        problem = jax_problem(lambda w, x: x @ w, np.ones((2, 2)), (x, y), "categorical")
    else:
        torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
        from noisescale.torch.problem import TorchProblem

        problem = TorchProblem(torch.nn.Linear(2, 2), (torch.ones(4, 2), y), "categorical")
    heard = []
    with spoken(heard.append):
        stage("before", 1)
        problem.nll_function("float64")
        problem.operator("ggn", "float64")
        problem.operator("hessian", "float64")
        tick()
    assert {text.split(":")[0] for text in heard} == {"before"}


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dense", {}),
        ("dense", {"curvature": "hessian"}),
        ("dual", {}),
        ("lanczos", {}),
        ("lanczos", {"curvature": "hessian"}),
        ("kfac", {}),
        ("diagonal", {}),
        ("dual", {"at": "map"}),
    ],
)
@pytest.mark.parametrize("heard_before", [0, 1])
@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_ends_every_method(monkeypatch, method, settings, heard_before):
    """What interrupts is neither kept back nor swallowed: nothing more is heard."""
    monkeypatch.setattr(pace, "EVERY", 0.0)
    heard = []

    def tell(text):
        heard.append(text)
        if len(heard) > heard_before:
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        ns.log_evidence(
            NETWORK,
            params_of(NETWORK),
            data(),
            prior_precision=1.0,
            method=method,
            progress=tell,
            **settings,
        )
    assert len(heard) == heard_before + 1


@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
def test_time_left_is_told_of_every_doubling_of_probes(monkeypatch):
    """More probes than a first estimate has are a stage of their own."""
    monkeypatch.setattr(pace, "EVERY", 0.0)
    heard = []
    ns.log_evidence(
        NETWORK,
        params_of(NETWORK),
        data(),
        prior_precision=1.0,
        method="lanczos",
        tolerance=1e-3,
        max_probes=16,
        at="point",
        progress=heard.append,
    )
    later = heard[heard.index("probe 8 of at most 16") :]
    for stage_ in ("products", "decrement"):
        assert any(text.startswith(stage_) and "left" in text for text in later)


def test_native_code_is_attended(monkeypatch):
    """The main thread goes on ticking while another works, and hears what went wrong in it."""
    monkeypatch.setattr(pace, "EVERY", 0.0)
    heard, gate = [], threading.Event()

    def tell(text):
        heard.append(text)
        gate.set()  # the work ends when progress was heard

    with spoken(tell):
        assert attended(1e12, lambda: gate.wait() and threading.current_thread()) is not (
            threading.main_thread()
        )
    assert heard
    with pytest.raises(np.linalg.LinAlgError):
        attended(1e12, np.linalg.cholesky, -np.eye(2))
    assert attended(1.0, threading.current_thread) is threading.main_thread()  # not worth it


def test_ctrl_c_does_not_wait_for_native_code(start_python):
    """The interrupt arrives while the thread's work never ends; the process does."""
    code = """
        import threading
        from noisescale.evidence.pace import attended

        def never_ends():
            print("ready", flush=True)  # from within: the main thread is inside the try
            threading.Event().wait()

        try:
            attended(1e12, never_ends)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = start_python(code)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "under a second"),
        (3.14, "about 3.1 s"),
        (110, "about 110 s"),
        (600, "about 10 min"),
        (7200 * 10, "about 20 h"),
        (86400 * 140, "about 140 days"),
        (86400 * 25_000, "about 25,000 days"),
    ],
)
def test_times_are_readable(seconds, shown):
    assert pace.shown_seconds(seconds) == shown
