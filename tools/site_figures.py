"""MkDocs' hook: the report's figures as files of the site, a gallery of them, a picture a page.

They are drawn while the site is built, from the data that ship, so that none can be stale.
"""

import io
from functools import cache
from typing import Any

from noisescale.paper.section import Picture

# The picture of each page; those that show something themselves have none here.
PICTURES = {
    "index.md": "figure5",
    "questions.md": "figure4",
    "evidence.md": "figure2",
    "bets.md": "figure10-labels",
    "noise.md": "figure5",
    "batch-size.md": "law-of-the-best-batch-size",
    "watch.md": "figure9-approach",
    "pytorch.md": "figure10",
    "frameworks.md": "appendixC",
    "tuning.md": "appendixE-mnist",
    "training.md": "figure3",
    "sweeps.md": "figure4",
    "data.md": "digits",
    "paper.md": "figure1",
    "mathematics.md": "appendixA",
    "api.md": "figure7",
    "decisions.md": "units",
}
OWN = ("gallery.md", "playground.md", "figures.md")


@cache
def figures() -> dict[str, Picture]:
    """Every figure of the full-scale report by its name, and some of the images."""
    from noisescale.paper.stages import full_scale

    drawn = [picture for shown in full_scale().values() for picture in shown.pictures]
    return {picture.name: picture for picture in (*drawn, _law(), _digits())}


def with_picture(markdown: str, picture: Picture) -> str:
    """The page with its picture under the first paragraph that ends a sentence."""
    blocks = markdown.rstrip().split("\n\n")
    ends = (place for place, block in enumerate(blocks) if place and block.endswith("."))
    place = next(ends, len(blocks) - 1) + 1
    return "\n\n".join([*blocks[:place], _shown(picture), *blocks[place:]]) + "\n"


def gallery(markdown: str) -> str:
    """The page of figures with every one of them."""
    return "\n\n".join([markdown, *map(_shown, figures().values())])


def _shown(picture: Picture) -> str:
    alt = " ".join(picture.alt.split()).replace("[", "(").replace("]", ")")
    file = f"figures/{picture.name}.svg"
    return f"[![{alt}]({file})]({file})\n\n*{' '.join(picture.caption.split())}*"


def _law() -> Picture:
    """The law of the best batch size."""
    from matplotlib.figure import Figure

    from noisescale import PAPER_LAW
    from noisescale.drawing import house_style, to_svg

    with house_style():
        figure = Figure(figsize=(7.5, 4), layout="constrained")
        PAPER_LAW.plot(figure.add_subplot())
        svg = to_svg(figure)
    return Picture(
        name="law-of-the-best-batch-size",
        svg=svg,
        caption="The best batch size of the paper's network after 10,000 updates, by the law that "
        "was fitted to the shipped runs; bands are 95 % intervals of a measurement.",
        alt="The best batch size against the number of training examples on logarithmic axes, a "
        "rising line for each of four effective learning rates, and the branch of epochs alone.",
    )


def _digits() -> Picture:
    """Some of the images that scikit-learn has."""
    from matplotlib.figure import Figure

    from noisescale.data import load_digits
    from noisescale.drawing import house_style

    images = load_digits()
    with house_style():
        figure = Figure(figsize=(7.5, 1.8), layout="constrained")
        for k, axes in enumerate(figure.subplots(2, 10).flat):
            axes.imshow(images.x_train[k].reshape(8, 8), cmap="gray_r")
            axes.set_axis_off()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return Picture(
        name="digits",
        svg=text.getvalue(),
        caption="Twenty of the images that come with scikit-learn: there is always something to "
        "train on.",
        alt="Twenty handwritten digits of 8 by 8 pixels in two rows.",
    )


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for name, picture in figures().items():
        files.append(File.generated(config, f"figures/{name}.svg", content=picture.svg))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    name = page.file.src_uri
    if name == "figures.md":
        return gallery(markdown)
    return with_picture(markdown, figures()[PICTURES[name]]) if name in PICTURES else markdown
