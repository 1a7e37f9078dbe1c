"""The command line: a few times as a process of its own, as a user runs it, else in this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import noisescale
from command_line import run


def process(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "noisescale", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
    )


def test_version():
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"noisescale {noisescale.__version__}\n")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("paper",),
        ("sweep",),
        ("runs",),
        ("recipe",),
        ("report",),
        ("tune",),
        ("evidence",),
        ("data",),
        ("data", "fetch"),
    ],
)
def test_help_reads_well(command):
    done = run(*command, "--help")
    assert done.code == 0
    assert done.err == ""
    assert "Usage" in done.out
    assert "Example" in done.out or "Begin with" in done.out
    words = set(done.out.replace(",", " ").split())
    assert "-h" in words
    assert "<bool>" not in words  # flags take no value
    if command:
        assert {"--json", "--quiet", "--debug"} <= words


def test_the_pages_and_the_help_agree_on_how_long_a_scale_takes(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    root = Path(__file__).parent.parent.parent
    assert "smoke: two minutes, quick: ten, full: hours" in run("paper", "--help").out
    page = " ".join((root / "docs" / "paper.md").read_text("utf-8").split())
    assert "`--scale smoke` takes two minutes, `quick` about ten" in page


def test_cheap_commands_do_not_import_jax():
    code = (
        "import sys, noisescale, noisescale.cli, noisescale.data, noisescale.sweep.listing; "
        "from noisescale import AdamRecipe, Recipe, noise_scale; "
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_paper_ends_with_the_path_of_the_report(tmp_path):
    done = process("paper", "--scale", "smoke", "--only", "1", "--out", str(tmp_path / "report"))
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last == f"Report: {(tmp_path / 'report' / 'index.html').resolve()}"
    assert (tmp_path / "report" / "claims.json").is_file()
    assert "seed 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("paper", "--only", "nonsense"), "there is no section 'nonsense'"),
        (("paper", "--seeds", "0"), "seeds must be at least 1, got 0."),
        (("data", "fetch", "imagenet"), "a data set to fetch must be one of mnist, fashion-mnist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    extra = ("--out", str(tmp_path / "o")) if arguments[0] == "paper" else ()
    assert run(*arguments, *extra).sentence.startswith(message)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "arguments",
    [("paper", "--scale", "huge"), ("paper", "--seeds", "two"), ("nothing",), ("data", "fetch")],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments):
    assert "(--help shows the options)" in run(*arguments).sentence


def test_no_arguments_show_the_help():
    done = process()
    assert done.returncode == 2
    assert "Usage" in done.stdout + done.stderr


def test_tracebacks_only_with_debug(tmp_path):
    plain = process("data", "fetch", "imagenet")
    debug = process("data", "fetch", "imagenet", "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr
