"""What a terminal, a disk and others do to the command line."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import run
from noisescale.drawing import drawn
from noisescale.jobs.store import RunStore
from noisescale.sweep import make_plan, run_sweep
from noisescale.text import printable

MODELS = """
import sys
import jax.numpy as jnp
import numpy as np

def exits():
    sys.exit(0)

def model():
    return (lambda p, x: sys.exit(0)), jnp.zeros((2, 2)), (np.ones((4, 2)), np.zeros(4, int))

def raises():
    raise ValueError("\\x1b[31mred " + "x" * 20_000)

def train(*, batch_size, learning_rate, momentum, steps, seed):
    return 0.9
train.n_train = 100
"""
PLAN = """
[run]
data = "{data}"
hidden_widths = []
learning_rate = 0.1
batch_size = 32
steps = {steps}
n_train = 100
"""


def started(*arguments, cwd=None, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "noisescale", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | more,
        start_new_session=True,
    )


def ended(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err.decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A sweep of which one run failed; settings, errors and what was found come from outside."""
    folder = tmp_path_factory.mktemp("outside")
    evil = "$\\ZZQ{$ \x1b[31mred\x00\u202e[/]"
    settings = {"data": "digits", "hidden_widths": (), "learning_rate": 0.5, "steps": 5}
    plan = make_plan(settings, grid={"batch_size": [4, 8, 16]}, seeds=2)
    run_sweep(plan, folder / "one", workers=1)
    with RunStore(folder / "one") as opened:
        records = [dict(row) for row in opened._rows(None)]
    made = []
    for record in records:
        config = json.loads(record["config"])
        failed = config["batch_size"] == 4 and config["seed"] == 0
        config |= {"initialisation": f"{evil} {config['seed']}", evil: config["seed"]}
        text = json.dumps(config, sort_keys=True, separators=(",", ":"))
        key = hashlib.sha256(text.encode()).hexdigest()
        values = {name: json.loads(record[name]) for name in ("history", "final", "versions")}
        error = f"Traceback\nValueError: {evil}" if failed else None
        status = "failed" if failed else record["status"]
        changed = {"key": key, "config": text, "status": status, "error": error}
        made.append({name: record[name] for name in record.keys()} | values | changed)  # noqa: SIM118
    (folder / "two").mkdir()
    with RunStore(folder / "two", write=True) as opened:
        opened.add(made)
    return folder / "two"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("default::noisescale.evidence.NotAMinimumWarning")
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
@pytest.mark.parametrize(
    "arguments",
    [
        "recipe --learning-rate 0.1 --batch-size 8 --n-train 100 --to-batch-size 16",
        "recipe --help",
        "evidence noisescale.examples:digits --at point --prior-precision 1",
    ],
)
def test_a_result_is_written_in_any_encoding(arguments, encoding):
    done = run(*arguments.split(), encoding=encoding)
    assert done.code == 0, done.err
    assert b"\\u03b5" in done.out or b"\\u258" in done.out  # an epsilon, a block of a bar


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "plan.toml", "--workers", "1"),
        ("evidence", "mine:exits"),
        ("evidence", "mine:model"),
        ("evidence", "sys:exit"),
        ("tune", "sys:exit", "--epochs", "1", "--n-train", "9"),
    ],
)
def test_a_users_sys_exit_is_an_error(folder, arguments):
    (folder / "plan.toml").write_text(PLAN.format(data="mine:exits", steps=2))
    assert run(*arguments).sentence


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)]
)
def test_a_signal_ends_a_sweep_with_a_word(folder, number):
    (folder / "plan.toml").write_text(PLAN.format(data="digits", steps=10_000_000))
    process = started("sweep", "plan.toml", "--workers", "2")
    for line in process.stderr:
        if b"1 runs to make" in line:
            break
    whom = process.pid if number == signal.SIGTERM else -process.pid  # a terminal tells the group
    os.kill(whom, number)
    code, _, err = ended(process)
    how = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    last = err.splitlines()[-1]
    assert (code, last[: len(how) + 13]) == (128 + number, f"noisescale: {how}.")
    assert "Traceback" not in err
    assert "leaked" not in err


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_while_modules_are_imported_is_a_word(folder):
    """At the first file that is opened: long before the command has begun."""
    hook = (
        "import signal, os, sys\n"
        "def look(event, arguments):\n"
        "    if event == 'import' and arguments[0] == 'typer':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.addaudithook(look)\n"
    )
    (folder / "sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    code, out, err = ended(started("recipe", "--help", PYTHONPATH=path))
    assert (code, out, err) == (130, b"", "noisescale: interrupted.\n")


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize(
    ("name", "told"), [("SIGINT", "interrupted"), ("SIGHUP", "ended by SIGHUP")]
)
def test_an_import_that_an_interrupt_broke_is_an_interrupt(folder, name, told):
    """Libraries make an ImportError of it."""
    text = (
        "import os, signal\n"
        f"try:\n    os.kill(os.getpid(), signal.{name})\n    import this_is_not_there\n"
        "except KeyboardInterrupt:\n    raise ImportError('numpy failed to import')\n"
    )
    (folder / f"broken_by_{name}.py").write_text(text)
    ended = run("evidence", f"broken_by_{name}:model")
    assert ended[::2] == (128 + signal.Signals[name], f"noisescale: {told}.\n")


def test_what_is_known_of_an_interrupted_command_is_told(folder):
    text = (
        "def model():\n    error = KeyboardInterrupt()\n    error.add_note('3 runs are stored.')\n"
        "    raise error\n"
    )
    (folder / "noted.py").write_text(text)
    told = run("evidence", "noted:model")
    assert (told.code, told.err) == (130, "noisescale: interrupted. 3 runs are stored.\n")


@pytest.mark.parametrize(
    "arguments", ["runs x", "tune a:b --epochs 1", "evidence a:b", "sweep {plan}"]
)
def test_a_folder_that_was_removed_is_a_sentence(folder, arguments):
    (folder / "plan.toml").write_text(PLAN.format(data="digits", steps=2))
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    shutil.rmtree(folder / "gone")
    told = run(*arguments.format(plan=folder / "plan.toml").split()).sentence
    assert told == "the current folder has been removed: change to another, with cd."


def test_nothing_from_a_store_commands_the_terminal_or_a_page(store):
    for command in ("report", "runs", "report --json", "runs --json", "runs --where status=failed"):
        name, *options = command.split()
        done = run(name, store, *options)
        assert done.code == 0, done
        assert done.out + done.err == printable(done.out + done.err)
    page = (store / "report.html").read_text("utf-8")
    assert page == printable(page)
    assert "ZZQ" in page
    assert "no peak" not in page  # each setting is a line in a picture, with its dollar signs
    assert re.search(r"initialisation \$\\ZZQ\{\$", page)


def test_a_message_is_short_and_commands_no_terminal(folder):
    for arguments in (
        ("evidence", "mine:raises"),
        ("evidence", "x" * 20_000),
        ("runs", "x", "y" * 20_000),
        ("recipe", "--learning-rate", "1", "--batch-size", "1", "--rule", "x" * 20_000),
        ("data", "fetch", "x" * 20_000),
    ):
        told = run(*arguments).sentence
        assert len(told) < 600
        assert told == printable(told)


@pytest.mark.parametrize("make", [os.mkfifo, lambda at: Path(at).symlink_to("/dev/zero")])
@pytest.mark.parametrize("command", ["report r.json", "report r.csv", "sweep r.toml", "runs r"])
def test_what_is_no_file_is_not_waited_for(folder, command, make):
    make(command.split()[1])
    assert run(*command.split()).sentence


def test_nothing_of_others_is_overwritten(folder, store):
    shutil.copytree(store, "own")
    (folder / "theirs").write_text("precious")
    for name in ("own/report.html", "own/x.csv", "p.svg"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder / "theirs")
    assert "own/report.html is there and no page of noisescale" in run("report", "own").err
    assert run("runs", "own", "--export", "own/x.csv").code == 0
    drawn(lambda axes: None, "p.svg")
    shutil.copy(store / "runs.sqlite", "my.sqlite")
    (folder / "my.html").write_text("my own page")
    assert "my.html is there and no page of noisescale" in run("report", "my.sqlite").err
    (folder / "report").mkdir()
    (folder / "report" / "index.html").write_text("my own site")
    paper = ("paper", "--only", "units", "--scale", "smoke", "--out", "report")
    assert "index.html is there and no page" in run(*paper).err
    assert (folder / "theirs").read_text() == "precious"
    assert (folder / "my.html").read_text() == "my own page"
    assert (folder / "report" / "index.html").read_text() == "my own site"
    assert not (folder / "report" / "claims.json").exists()


def test_a_loop_of_links_is_a_sentence(folder):
    (folder / "loop").mkdir()
    (folder / "loop" / "runs.sqlite").symlink_to("runs.sqlite")
    (folder / "plan.toml").write_text(PLAN.format(data="digits", steps=2))
    assert "loop/runs.sqlite" in run("runs", "loop").sentence
    assert "loop/runs.sqlite" in run("sweep", "plan.toml", "--out", "loop").sentence
