"""Pages of the site get their pictures, drawn by the build from what ships."""

import pytest
from site_figures import PICTURES, figures, gallery, with_picture

from noisescale.paper.section import Picture


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
