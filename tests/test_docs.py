"""The code in README and docs runs, and README shows the two commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, mnist, monkeypatch, capsys):
    # The pages say load_mnist(); here it gives what this machine has, without the warning.
    monkeypatch.setattr("noisescale.data.load_mnist", lambda: mnist)
    namespace = {}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)


def test_some_page_has_code():
    assert sum(len(blocks(page, "python")) for page in PAGES) >= 3


def test_the_readme_shows_the_two_commands():
    shown = "".join(blocks(ROOT / "README.md", ""))
    assert "make paper" in shown
    assert "make test" in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
