"""A browser that the tests of the report share."""

import shutil

import pytest

from browser import Browser


@pytest.fixture(scope="module")
def chromium():
    """A real browser."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("needs Chromium: install Debian's chromium package")
    with Browser(binary) as browser:
        yield browser
