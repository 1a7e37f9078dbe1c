"""Whatever is typed, a command ends with 0, or with 2 and one sentence."""

import hashlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import run
from noisescale.cli import main
from noisescale.jobs.store import RunStore

FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
pytestmark = pytest.mark.filterwarnings("default")

USERS_MODULE = """
import sys
import numpy as np
import noisescale as ns

rng = np.random.default_rng(0)
x = rng.normal(size=(30, 3))
y = (x[:, 0] > 0).astype(int)
model = ns.softmax_regression(3, 2)
params = model.init(0)

def fresh():
    return model, params, (x, y)

def wrong():
    return 3

def raises():
    return {}["absent"]

def exits():
    sys.exit(7)

def apply_raises():
    return (lambda params, x: {}["inside"]), params, (x, y)

def apply_raises_later():
    calls = []

    def apply_fn(params, x):
        calls.append(x)
        if len(calls) > 1:
            raise LookupError("later")
        return model(params, x)

    return apply_fn, params, (x, y)

def apply_exits():
    return (lambda params, x: sys.exit(0)), params, (x, y)

def scores(*, batch_size, learning_rate, momentum, steps, seed):
    return {}["in training"]
"""
DEEP = "[" * 100_000
LONG = "x" * 5_000


def _record(k):
    config = json.dumps({"batch_size": k, "seed": 0, "learning_rate": 0.1, "hidden_widths": [3]})
    return {
        "key": hashlib.sha256(config.encode()).hexdigest(),
        "config": config,
        "status": "done" if k else "diverged",
        "history": {},
        "final": {"test_accuracy": 0.5, "diverged_at": None if k else 3},
        "error": None,
        "duration": 1.0,
        "versions": {},
        "host": "h",
        "finished": "2026-01-01T00:00:00+00:00",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store ``runs``, a plan, a module of the user's; the current folder of this file's tests."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "users_module.py").write_text(USERS_MODULE)
    (folder / "breaks.py").write_text("{}['at import']\n")
    (folder / "leaves.py").write_text("raise SystemExit(7)\n")
    (folder / "plan.toml").write_text('[run]\ndata = "nowhere"\n')
    rest = "learning_rate = 0.1\nbatch_size = 2\nsteps = 3\n"
    for name, where in (
        ("data-exits", 'data = "sys:exit"'),
        ("data-leaves", 'data = "leaves:f"'),
        ("model-leaves", 'data = "digits"\nmodel = "leaves:f"'),
        ("model-breaks", 'data = "digits"\nmodel = "breaks:f"'),
    ):
        (folder / f"{name}.toml").write_text(f"[run]\n{where}\n{rest}")
    (folder / "runs").mkdir()
    with RunStore(folder / "runs", write=True) as store:
        store.add(_record(k) for k in range(5))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setenv("NOISESCALE_DATA", str(folder / "cache"))
        patch.setenv("COLUMNS", "200")
        yield folder


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("runs", "runs", "--where", "diverged_at=[1]"), "diverged_at cannot be compared with"),
        (("runs", "runs", "--where", f"seed={DEEP}"), "seed cannot be compared with '[[["),
        (("runs", LONG), "cannot be used (File name too long): name another path."),
        (("runs", "runs", "--export", f"{LONG}.csv"), "cannot be used (File name too long)"),
        (("report", LONG), "cannot be used (File name too long)"),
        (("sweep", LONG), "cannot be used (File name too long)"),
        (("sweep", "plan.toml", "--out", LONG), "cannot be used (File name too long)"),
        (("paper", "--out", LONG), "cannot be used (File name too long)"),
        (
            ("tune", "users_module:scores", "--epochs", "1", "--out", LONG),
            "cannot be used (File name too long)",
        ),
        (
            ("evidence", "users_module:fresh", "--plot", "out.csv"),
            "--plot must end in .png, .svg, .pdf, got 'out.csv'.",
        ),
        (("evidence", "users_module:fresh", "--plot", "runs"), "--plot must end in"),
        (
            ("evidence", "users_module:fresh", "--plot", "a_folder.png"),
            "--plot must be a file, and 'a_folder.png' is a folder",
        ),
        (
            ("evidence", "users_module:fresh", "--plot", "/no/such/folder/a.png"),
            "--plot cannot be written to '/no/such/folder/a.png'",
        ),
        (
            ("evidence", "users_module:fresh", "--prior-precision", "1e-320", "--method", "dual"),
            "--prior-precision must be a finite number above 0",
        ),
        (
            ("evidence", "users_module:fresh", "--prior-precision", "1e308"),
            "--prior-precision must be a finite number above 0",
        ),
        (("evidence", "users_module:raises"), "users_module:raises raised KeyError: 'absent'."),
        (("evidence", "users_module:exits"), "users_module:exits raised SystemExit: 7."),
        (
            ("evidence", "users_module:apply_raises", "--prior-precision", "1"),
            "apply_fn does not accept these params with x of shape (30, 3): KeyError: 'inside'.",
        ),
        (
            ("evidence", "users_module:apply_raises_later", "--prior-precision", "1"),
            "users_module:apply_raises_later raised LookupError: later (line 33).",
        ),
        (("evidence", "users_module:apply_exits"), "users_module:apply_exits raised SystemExit: 0"),
        (("sweep", "data-exits.toml"), "the data set 'sys:exit' cannot be loaded: SystemExit."),
        (("sweep", "data-leaves.toml"), "data 'leaves:f' cannot be imported: SystemExit: 7."),
        (("sweep", "model-leaves.toml"), "model 'leaves:f' cannot be imported: SystemExit: 7."),
        (("sweep", "model-breaks.toml"), "model 'breaks:f' cannot be imported: KeyError: 'at imp"),
        (("evidence", "json:dumps"), "json:dumps raised TypeError: dumps() missing"),
        (("evidence", "breaks:model"), "cannot be imported: KeyError: 'at import'."),
        (("evidence", "leaves:model"), "cannot be imported: SystemExit: 7."),
        (
            ("tune", "breaks:train", "--epochs", "1", "--n-train", "9"),
            "cannot be imported: KeyError: 'at import'.",
        ),
        (
            ("tune", "users_module:scores", "--epochs", "1", "--n-train", "9", "--plot", "a.csv"),
            "--plot must end in",
        ),
        (("recipe", "--learning-rate", "1\n2"), "Invalid value for '--learning-rate'"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value)[:60],
)
def test_refused_in_a_sentence(folder, arguments, sentence):
    (folder / "a_folder.png").mkdir(exist_ok=True)
    assert sentence in run(*arguments).sentence


def test_pictures_are_refused_before_the_work_begins(folder, monkeypatch):
    monkeypatch.setattr("noisescale.cli.evidence.load_function", lambda *_: pytest.fail("began"))
    assert run("evidence", "users_module:fresh", "--plot", "out.csv").sentence


def test_paths_that_may_not_be_looked_into(monkeypatch):
    from pathlib import Path

    def forbidden(self, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", forbidden)
    assert "'elsewhere' cannot be used (Permission denied)" in run("runs", "elsewhere").sentence


def test_debug_shows_where_the_users_function_raised(folder):
    with pytest.raises(Exception, match="raised KeyError") as caught:
        main(["evidence", "users_module:raises", "--debug"])
    assert isinstance(caught.value.__cause__, KeyError)


WORDS = """
0 1 -1 2.5 30 nan inf -inf 1e309 1e-320 1e308 99999999999999999999 [1] [] {} null true
auto per_layer dense dual lanczos kfac diagonal ggn hessian exact linear momentum
batch_size learning_rate n_train finished hidden_widths categorical gaussian bernoulli
runs plan.toml absent.toml out.csv out.parquet a_folder.png out.png /no/such/x.png
/dev/null . .. ~ - -- é☃ users_module:fresh users_module:wrong users_module:raises
users_module:exits breaks:x json:dumps : a: :b a.b:c
"""
_words = st.one_of(
    st.sampled_from(WORDS.split()),
    st.sampled_from(["", " ", "a\nb", "[bold]", LONG, DEEP, f"{LONG}.png", f"{LONG}/x.csv"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6),
)
_tests = st.builds(
    "{}{}{}".format,
    st.sampled_from(
        ["batch_size", "diverged_at", "hidden_widths", "status", "error", "x", "key", "history"]
    ),
    st.sampled_from(["<", "<=", "=", "==", "!=", ">", "~", " and "]),
    st.one_of(_words, st.sampled_from(['"a"', '[["a"]]', '{"a": 1}', "false", "NaN", "Infinity"])),
)
_flags = st.sampled_from(["--json", "--quiet"])


def _options(*names, of=_words):
    return st.tuples(st.sampled_from(names), of)


def _lines(command, fixed, *options, least=0):
    """``command``, words for its arguments, and some of its ``options``."""
    return st.tuples(
        st.just(command),
        fixed,
        st.lists(st.one_of(*options, _flags.map(lambda flag: (flag,))), min_size=least, max_size=4),
    ).map(lambda parts: [*parts[0], *parts[1], *(word for option in parts[2] for word in option)])


_models = st.sampled_from(
    ["users_module:fresh", "users_module:wrong", "users_module:raises", "breaks:x", "json:dumps"]
)
COMMAND_LINES = {
    "runs": _lines(
        ["runs"],
        st.tuples(st.one_of(st.just("runs"), _words)),
        _options("--where", of=_tests),
        _options("--sort", "--limit", "--export"),
        st.just(("--curves",)),
    ),
    "recipe": _lines(
        ["recipe", "--learning-rate=0.1", "--batch-size=8", "--n-train=1000"],
        st.just(()),
        _options("--learning-rate", "--batch-size", "--n-train", "--momentum", "--epochs"),
        _options("--to-batch-size", "--to-n-train", "--to-learning-rate", "--to-momentum"),
        _options("--via", "--rule", "--beta1", "--beta2", "--eps", "--weight-decay"),
        _options("--unit", "--sequence-length", "--warmup-steps", "--dampening", "--script"),
        _options("--per-device-batch-size", "--world-size", "--gradient-accumulation-steps"),
        _options("--to-world-size", "--to-per-device-batch-size", "--to-epochs", "--to-steps"),
        _options("--max-per-device-batch-size"),
        _options("--optimizer", of=st.sampled_from(["sgd", "adam", "adamw", "lion"])),
        least=1,
    ),
    "evidence": _lines(
        ["evidence"],
        st.tuples(st.one_of(_models, _words)),
        _options("--prior-precision", "--likelihood", "--curvature", "--method", "--tolerance"),
        _options("--plot"),
        st.just(("--explain",)),
    ),
    # Sections, plans, data sets and functions that do not exist: nothing is trained or fetched.
    "paper": _lines(
        ["paper", "--only=absent"], st.just(()), _options("--seeds", "--out", "--workers")
    ),
    "report": _lines(["report"], st.tuples(_words)),
    "sweep": _lines(
        ["sweep"],
        st.tuples(st.one_of(st.just("plan.toml"), _words)),
        _options("--out", "--workers", "--retries"),
    ),
    "tune": _lines(
        ["tune", "users_module:absent"],
        st.just(()),
        _options("--epochs", "--n-train", "--seeds", "--max-runs", "--timeout", "--out", "--plot"),
    ),
    "data": _lines(["data"], st.one_of(st.just(()), st.tuples(st.just("fetch"), _words))),
    "anything": st.lists(_words, max_size=4),
}


@pytest.mark.parametrize("command", COMMAND_LINES)
@FEW
@given(data=st.data())
def test_no_command_line_ends_in_a_raw_exception(folder, command, data):
    arguments = data.draw(COMMAND_LINES[command])
    ended = run(*arguments)
    assert ended.code in (0, 2), ended
    if ended.code == 2 and arguments:  # without arguments, the help
        assert ended.sentence
    if ended.code == 0 and "--json" in arguments and "--export" not in arguments:
        json.loads(ended.out)


@FEW
@given(
    st.lists(
        st.one_of(st.floats(), st.integers(-(10**20), 10**20), st.text(max_size=5)),
        min_size=4,
        max_size=4,
    ),
    st.sampled_from(["--to-batch-size", "--to-n-train", "--to-momentum"]),
    st.one_of(st.floats(), st.integers(-10, 10**6)),
)
def test_recipe_takes_any_numbers(values, option, target):
    names = ("--learning-rate", "--batch-size", "--n-train", "--momentum")
    numbers = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
    ended = run("recipe", *numbers, f"{option}={target}", "--json")
    assert json.loads(ended.out) if ended.code == 0 else ended.sentence


@pytest.mark.parametrize(
    "args",
    [
        ["paper", "--seeds", "0", "--scale", "smoke"],
        ["paper", "--only", "Z"],
        ["paper", "--scale", "huge"],
        ["paper", "--seeds", "two"],
        ["nothing"],
        ["data", "fetch"],
        ["report", "nowhere"],
        ["runs", "nowhere"],
        ["runs", ".", "--limit", "0"],
        ["sweep", "nowhere.toml"],
        ["tune", "json:dumps", "--epochs", "nan", "--n-train", "5"],
        ["evidence", "nowhere:nothing"],
        ["data", "fetch", "nothing"],
        ["recipe", "--learning-rate", "x", "--batch-size", "1", "--n-train", "1"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_leaves_nothing(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*args).sentence
    assert list(tmp_path.iterdir()) == []
