"""The examples in docstrings run, and every public name of ``noisescale.noise`` has one."""

import doctest
import importlib
from pathlib import Path

import pytest

import noisescale as ns

PACKAGE = Path(ns.__file__).parent
WITH_EXAMPLES = sorted(
    ".".join(("noisescale", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
NOISE = [
    name
    for name in ns.__all__
    if getattr(getattr(ns, name), "__module__", "").startswith("noisescale.noise")
]


EXTRAS = ("torch", "lightning", "transformers", "skorch", "optax")


def _param(name):
    marks = [pytest.mark.frameworks] if name.split(".")[1] in EXTRAS else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*map(_param, WITH_EXAMPLES)])
@pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning")
def test_examples_run(name):
    if (extra := name.split(".")[1]) in EXTRAS:
        pytest.importorskip(extra, reason="PyTorch and its kin are extras: make torch adds them")
    tried = doctest.testmod(importlib.import_module(name))
    assert tried.attempted > 0
    assert tried.failed == 0  # what differs is printed


@pytest.mark.parametrize("name", NOISE)
def test_public_names_of_noise_have_an_example(name):
    assert ">>> " in getattr(ns, name).__doc__
