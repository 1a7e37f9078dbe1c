"""The pages tell the truth: their code runs, prints what they show, and their commands exist."""

import json
import re
from functools import cache

import pytest
from pages import PAGES, ROOT, difference, examples, orphans
from picture import PICTURE, source
from PIL import Image

from command_line import run
from oracles.here import Here


def _text(page):
    return page.read_text(encoding="utf-8")


def _name(page):
    return page.relative_to(ROOT).as_posix()


def _param(page):
    needs_torch = any("import torch" in example.code for example in examples(_text(page)))
    return pytest.param(page, marks=[pytest.mark.frameworks] if needs_torch else [], id=_name(page))


@pytest.mark.parametrize("page", [*map(_param, PAGES)])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_code_prints_what_the_page_shows(page, mnist, monkeypatch):
    # The pages say load_mnist(); here it gives what this machine has, without the warning.
    monkeypatch.setattr("noisescale.data.load_mnist", lambda: mnist)
    # Sweeps and tunings run here: workers would start Python and JAX anew.
    monkeypatch.setattr("noisescale.jobs.engines.LocalEngine", lambda *_, **__: Here())
    namespace, uncomparable = {}, False
    for example in examples(_text(page)):
        if example.runs:
            printed = example.run(namespace)
            uncomparable |= "load_mnist" in example.code and not mnist.complete
            if not uncomparable:
                wrong = example.differs(printed)
                assert wrong is None, f"{_name(page)}:{example.line} shows {wrong}"
    if uncomparable:
        pytest.skip("the code ran; its outputs are of all MNIST, which is out of reach here")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_output_has_its_code(page):
    assert orphans(_text(page)) == []


@pytest.mark.parametrize(
    ("shown", "printed", "mark"),
    [
        ("E = -255.6", "E = -255.5", ""),
        ("p 0.00121621", "p 0.0012162", ""),
        ("a   1,024  x", "a 1,024\nx", ""),
        ("accuracy 0.914", "accuracy 0.921", "within 1 %: SGD"),
        ("40 runs", "41 runs", "within 5 %: SGD"),
        ("took 1.2 s, 3 runs", "took 17 s, 3 runs", "except /took .*? s/: timings"),
    ],
)
def test_outputs_that_agree(shown, printed, mark):
    assert difference(shown, printed, (mark,)) is None


@pytest.mark.parametrize(
    ("shown", "printed", "mark"),
    [
        ("E = -255.6", "E = -256.6", ""),
        ("E = -255.6", "E = 255.6", ""),
        ("40 runs", "41 runs", ""),
        ("reproduced", "not reproduced", ""),
        ("one line", "one line\nand another", ""),
        ("1 2", "1 2 3", ""),
        ("accuracy 0.914", "accuracy 0.931", "within 1 %: SGD"),
        ("took 1.2 s, 3 runs", "took 1.2 s, 4 runs", "except /took .*? s/: timings"),
    ],
)
def test_outputs_that_differ(shown, printed, mark):
    assert difference(shown, printed, (mark,)) is not None


def test_a_mark_must_be_known_and_give_a_reason():
    for mark in ("skip", "not run:", "within 5 %", "except /x/"):
        with pytest.raises(ValueError, match="says nothing"):
            list(examples(f"<!-- {mark} -->\n```python\n1\n```\n"))


def test_code_that_prints_shows_it():
    (silent,) = examples("```python\nprint(6 * 7)\n```\n\nProse.\n")
    assert "'42'" in silent.differs(silent.run({}))


def test_the_readmes_picture_is_of_the_shipped_runs():
    assert "docs/rule.png" in _text(ROOT / "README.md")
    with Image.open(PICTURE) as picture:
        assert picture.text["Source"] == source(), "draw it again: python tools/picture.py"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=_name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", _text(page)):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / ".ci/run"], ids=_name)
def test_make_has_every_target(page):
    targets = re.findall(r"^([\w-]+):", _text(ROOT / "Makefile"), re.MULTILINE)
    asked = re.findall(r"(?:`|^)make ([a-z][\w-]*)", _text(page), re.MULTILINE)
    assert set(asked) <= set(targets)


@cache
def _options(command):
    """The options that a command's help lists."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        return {*re.findall(r"--[a-z][a-z-]*", run(*command, "--help").out)}


def _commands(text):
    """The words after `noisescale`, in blocks of code and between backticks."""
    fences = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0] for block in fences for line in block.splitlines()]
    for line in [*lines, *re.findall(r"`([^`]+)`", prose)]:
        name, *words = line.split() or [""]
        if name == "noisescale" and words:
            yield words


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_and_options_exist(page):
    for words in _commands(_text(page)):
        command = words[: 2 if words[:2] == ["data", "fetch"] else not words[0].startswith("-")]
        options = {word for word in words if word.startswith("--")}
        assert options <= _options(tuple(command)), words


def test_commands_are_found():
    text = "`noisescale recipe --to 3`, `noisescale`\n```\nnoisescale data  # what\nmake x\n```\n"
    assert list(_commands(text)) == [["data"], ["recipe", "--to", "3"]]


def test_the_gallery_shows_what_its_script_measured():
    page = _text(ROOT / "docs" / "gallery.md")
    assert (ROOT / re.search(r"benchmarks/\w+\.py", page)[0]).is_file()
    shown = re.findall(r"!\[[^\]]+\]\((gallery-\w+\.png)\)", page)
    assert len(shown) == 4
    assert all(0 < (ROOT / "docs" / name).stat().st_size < 100_000 for name in shown)
    measured = json.loads(_text(ROOT / "benchmarks" / "results" / "gallery.json"))
    assert {f"gallery-{name}.png" for name in measured} == set(shown)
    words = " ".join(page.split())
    for sentence in measured["text"]["advice"].splitlines()[:2]:
        assert sentence in words
    for line in measured["direct"]["text"].splitlines():
        assert " ".join(line.split()) in words
    for row in (
        *measured["images"]["points"][::4],
        measured["text"]["points"][-1],
        measured["trainer"]["training"]["points"][-1],
        *measured["trainer"]["fine-tuning"]["points"][::4],
        measured["direct"]["proxy"],
    ):
        b, low, high = (_three(row[name]) for name in ("value", "low", "high"))
        assert f"{b} [{low}, {high}]" in words


def _three(value):
    """Three digits, as the page writes them."""
    return f"{float(f'{value:.3g}'):,.0f}"
