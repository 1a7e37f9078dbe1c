"""What every command has: a version, a start without JAX, a help; what a report ends with."""

import subprocess
import sys

import noisescale
from command_line import run

START = """
import runpy, sys
import noisescale.data, noisescale.sweep.listing
from noisescale import AdamRecipe, Recipe, noise_scale
sys.argv = ["noisescale", "--version"]
try:
    runpy.run_module("noisescale", run_name="__main__")
except SystemExit as ended:
    print(ended.code, "jax" in sys.modules)
"""


def test_it_starts_without_jax():
    """In a process of its own, as from a shell."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True)
    assert done.stdout == f"noisescale {noisescale.__version__}\n0 False\n", done.stderr


def test_no_arguments_show_the_help():
    done = run()
    assert done.code == 2
    assert "Usage" in done.out


def test_paper_ends_with_the_path_of_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr("noisescale.paper.stages.full_scale", lambda sections: {})
    done = run("paper", "--scale", "smoke", "--only", "1", "--out", tmp_path / "report")
    assert done.code == 0, done.err
    last = done.out.strip().splitlines()[-1]
    assert last == f"Report: {(tmp_path / 'report' / 'index.html').resolve()}"
    assert (tmp_path / "report" / "claims.json").is_file()
