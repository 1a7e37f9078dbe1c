"""Examples that a newcomer pastes or opens do what they say."""

import re
import shlex
from pathlib import Path

import pytest

from command_line import run
from noisescale.examples import PLAN
from oracles.here import Here

EXAMPLE_FOLDER = Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLE_FOLDER / "ten_minutes.ipynb"


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


def pasted(command):
    """The example as a shell runs it: commands that follow one another, output into files.

    A shell reads on in the next line after ``&&``, and nowhere else.
    """
    outputs = []
    lines = [line.strip() for line in command.splitlines() if line.strip()]
    assert all(line.endswith("&&") for line in lines[:-1]), lines
    for part in " ".join(lines).split("&&"):
        words, _, file = part.partition(">")
        ended = run(*shlex.split(words)[1:])
        assert ended.code == 0, ended
        if file:
            Path(file.strip()).write_text(ended.out, encoding="utf-8")
        outputs.append(ended.out)
    return outputs


def shown(name):
    """The example in the help of a command."""
    text = run(name, "--help").out
    return text[text.index("Example:") + len("Example:") :].strip()


def test_the_plan_to_begin_with_is_run_listed_and_reported(monkeypatch):
    # In this process, where workers would start Python and JAX anew.
    monkeypatch.setattr("noisescale.jobs.engines.LocalEngine", lambda *_, **__: Here())
    *_, listed = pasted(shown("runs"))
    assert "8 runs" in listed
    assert "16 runs: 16 done." in pasted(shown("sweep"))[-1]
    *_, told = pasted(shown("report"))
    assert "Which batch size is best?" in told
    page = Path("plan-runs/report.html").read_text("utf-8")
    assert "16 training runs (16 done)" in page
    assert "learning_rate" in PLAN


def test_the_recipe_to_begin_with():
    (out,) = pasted(shown("recipe"))
    assert "linear rule" in out


def test_the_first_command_that_is_shown_runs():
    first = re.search(r"Begin with: (noisescale .*)", run("--help").out)[1].strip(" │")
    assert first == shown("evidence")
    (out,) = pasted(first)
    assert "Evidence of 650 parameters from 200 examples" in out


@pytest.mark.long
def test_the_tuning_to_begin_with_is_reported():
    (out,) = pasted(shown("tune"))
    told = run("report", "tune-runs").out
    assert "How large a batch costs nothing?" in told
    assert out.splitlines()[0].split(":")[0] in told


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat: pip install nbclient")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient")
    pytest.importorskip("ipykernel", reason="needs ipykernel: pip install ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [_outputs(cell) for cell in cells]
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    for cell, before in zip(cells, kept, strict=True):
        assert _outputs(cell) == before, cell.source


def _outputs(cell):
    """What a cell shows, in kind: of numbers, which depend on the machine, none."""
    return [
        (output.output_type, sorted(output.get("data", {})), output.get("name"))
        for output in cell.outputs
    ]
