"""Pages of the site get their pictures, drawn by the build from what ships."""

import json
import re

import pytest
from pages import ROOT
from site_figures import PICTURES, figures, gallery, with_picture
from site_pages import NOTEBOOK, api_index, from_notebook

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


def test_a_picture_stands_under_the_first_sentence():
    picture = Picture("name", "<svg></svg>", "What\nit is.", "What [it] shows")
    page = with_picture("# Title\n\nThis is\n\n$$\nx\n$$\n\nFirst\nend.\n\nSecond.\n", picture)
    assert page == (
        "# Title\n\nThis is\n\n$$\nx\n$$\n\nFirst\nend.\n\n"
        "[![What (it) shows](figures/name.svg)](figures/name.svg)"
        "\n\n*What it is.*\n\nSecond.\n"
    )


def test_the_notebook_is_a_page_with_its_outputs():
    outputs = [
        {"output_type": "stream", "text": ["one\n", "two\n"]},
        {"data": {"text/plain": ["Result"], "text/html": ['<svg id="picture-a"></svg>']}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words."]},
        {"cell_type": "code", "source": ["f()"], "outputs": outputs},
    ]
    assert from_notebook({"cells": cells}) == (
        "# Title\nWords.\n\n```python\nf()\n```\n\n```text\none\ntwo\n```\n\n"
        '<div class="output"><svg id="picture-1-a"></svg></div>\n'
    )
    page = from_notebook(json.loads(NOTEBOOK.read_text("utf-8")))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) > 100


def test_the_index_of_the_api_keeps_the_anchor_of_every_name():
    page = api_index("# API\n", {"api/one.md": "# One\n\n::: noisescale.a.b\n::: noisescale.c\n"})
    assert page == (
        "# API\n\n## One\n\n"
        '<a id="noisescale.a.b"></a>[`b`](api/one.md#noisescale.a.b), '
        '<a id="noisescale.c"></a>[`c`](api/one.md#noisescale.c)\n'
    )
    linked = set(re.findall(r"\(api/(\w+)\.md\)", (DOCS / "api.md").read_text("utf-8")))
    assert linked == {path.stem for path in (DOCS / "api").glob("*.md")}


@pytest.mark.long
def test_the_gallery_has_every_figure_of_the_report():
    assert set(PICTURES.values()) <= set(figures())
    page = gallery("# Figures")
    assert page.count("](figures/") == 2 * len(figures()) > 2 * 20
