"""What the wheel carries is where the package looks for it."""

import tomllib
from pathlib import Path

from noisescale.paper import shipped

ROOT = Path(__file__).parent.parent


def test_an_installed_package_finds_the_shipped_results(tmp_path, monkeypatch):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    installed = tmp_path / build["targets"]["wheel"]["force-include"]["results"]
    installed.mkdir(parents=True)
    (installed / "figure4.csv").touch()
    monkeypatch.setattr(shipped, "__file__", str(tmp_path / "noisescale" / "paper" / "shipped.py"))
    assert shipped.folder.__wrapped__() == installed
