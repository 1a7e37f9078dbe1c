"""Every page of the site has its picture, drawn by the build from what ships."""

import json
import re

import pytest
from pages import ROOT
from site_figures import OWN, PICTURES, figures, gallery, with_picture

from noisescale.paper.section import Picture

DOCS = ROOT / "docs"


def test_every_page_has_a_picture():
    pages = {page.name for page in DOCS.glob("*.md")}
    assert pages == {*PICTURES, *OWN}
    shown = (DOCS / "gallery.md").read_text("utf-8") + (DOCS / "playground.md").read_text("utf-8")
    assert "![" in shown
    assert "<iframe" in shown


def test_the_playground_is_one_file_with_its_images():
    page = (DOCS / "playground-page.html").read_text("utf-8")
    assert re.findall(r"(?:src|href)=", page) == []
    setup, images = (
        json.loads(re.search(rf'id="playground-{name}">(.*?)</script>', page, re.DOTALL)[1])
        for name in ("setup", "images")
    )
    assert setup["law"]["reference_n"] == 1_000
    assert set(images) == {"train", "test"}


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert {page.name for page in DOCS.glob("*.md")} == set(
        re.findall(r": ([\w-]+\.md)$", menu, re.M)
    )


def test_a_picture_stands_under_the_first_paragraph():
    picture = Picture("name", "<svg></svg>", "What\nit is.", "What [it] shows")
    page = with_picture("# Title\n\nFirst\nparagraph.\n\nSecond.\n", picture)
    assert page == (
        "# Title\n\nFirst\nparagraph.\n\n[![What (it) shows](figures/name.svg)](figures/name.svg)"
        "\n\n*What it is.*\n\nSecond.\n"
    )


@pytest.mark.long
def test_the_gallery_has_every_figure_of_the_report():
    assert set(PICTURES.values()) <= set(figures())
    page = gallery("# Figures")
    assert page.count("](figures/") == 2 * len(figures()) > 2 * 20
