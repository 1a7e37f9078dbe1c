"""Pages of the site get their pictures, drawn by the build from what ships."""

import json
import re

import pytest
from pages import ROOT
from site_figures import PICTURES, figures, gallery, with_picture

from noisescale.paper.section import Picture

DOCS = ROOT / "docs"


def test_the_playground_is_one_file_with_its_images():
    page = (DOCS / "playground-page.html").read_text("utf-8")
    assert re.findall(r"(?:src|href)=", page) == []
    setup, images = (
        json.loads(re.search(rf'id="playground-{name}">(.*?)</script>', page, re.DOTALL)[1])
        for name in ("setup", "images")
    )
    assert setup["law"]["reference_n"] == 1_000
    assert set(images) == {"train", "test"}


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
