"""A smoke report and a browser that the tests of the report share."""

import shutil
import warnings

import pytest

from browser import Browser
from noisescale.data import DataWarning
from noisescale.jobs.progress import Progress
from noisescale.paper import run_paper


class Lines(Progress):
    """Remembers what it is told."""

    def __init__(self):
        self.lines, self.n_runs = [], 0

    def line(self, text):
        self.lines.append(text)

    def finished(self, run, record):
        self.n_runs += 1


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    told = Lines()
    out = tmp_path_factory.mktemp("report")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        made = run_paper(out, scale="smoke", progress=told)
    return made, out, told


@pytest.fixture(scope="module")
def chromium():
    """A real browser."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("needs Chromium: install Debian's chromium package")
    with Browser(binary) as browser:
        yield browser
