"""The playground: SGD that the reader runs in the page itself, to find the best batch size.

Everything is one file without any request: the images and the law as JSON, the network in plain
JavaScript (``core.js``) inside a worker, the recipe's rules (``rule.js``), the drawings and the
controls.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

import pandas as pd
from jinja2 import Environment, StrictUndefined

from noisescale.noise.batch_law import REFERENCE_N
from noisescale.paper.report.playground.digits import N_TEST, N_TRAIN, SIDE, packed, small_digits
from noisescale.paper.report.playground.law import HIDDEN, PLAYGROUND_LAW, STEPS

# Off the best size, so that there is something to find.
DEFAULTS = {"learningRate": 0.2, "batchSize": 128, "momentum": 0.9, "nTrain": 1_000}


@dataclass(frozen=True)
class Playground:
    """What a page needs of it: a section with its data, a style sheet, and a script."""

    html: str
    style: str
    script: str


@cache
def playground_parts() -> Playground:
    """The parts for a page that has the report's colours."""
    law = PLAYGROUND_LAW
    html = _environment().from_string(_file("fragment.html"))
    return Playground(
        html=html.render(
            hidden=HIDDEN,
            steps=STEPS,
            n_train=N_TRAIN,
            n_test=N_TEST,
            law=law,
            n_runs=f"{len(calibration()):,}",
            setup=_setup(),
        ),
        style=_file("style.css"),
        script="\n".join(_file(name) for name in ("rule.js", "charts.js", "page.js")),
    )


def playground_page() -> str:
    """The playground as a page of its own.

    >>> playground_page().startswith("<!DOCTYPE html>")
    True
    """
    parts = playground_parts()
    colours = (resources.files("noisescale.paper.report") / "style.css").read_text("utf-8")
    template = _environment().from_string(_file("page.html"))
    return template.render(playground=parts, style=colours + parts.style)


def calibration() -> pd.DataFrame:
    """The library's runs that the law was fitted to."""
    with (resources.files(__package__) / "calibration.csv").open("rb") as file:
        return pd.read_csv(file)


def _setup() -> str:
    """The page's data as JSON that can stand inside a script element."""
    data, law = small_digits(), PLAYGROUND_LAW
    content = {
        "defaults": DEFAULTS,
        "hidden": HIDDEN,
        "steps": STEPS,
        "pixels": SIDE * SIDE,
        "classes": data.n_classes,
        "law": {
            "scale": law.scale.value,
            "power": law.power.value,
            "epochs": law.epochs.value,
            "sharpness": law.sharpness,
            "covariance": law.covariance,
            "scatter": law.scatter,
            "typical_error": law.typical_error,
            "reference_n": REFERENCE_N,
        },
        "train": packed(data.x_train, data.y_train),
        "test": packed(data.x_test, data.y_test),
        "worker": _file("core.js") + _file("worker.js"),
    }
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


def _environment() -> Environment:
    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
