"""Imports point downwards."""

import pytest
from layers import violations


def test_every_import_points_downwards():
    assert violations() == []


@pytest.mark.parametrize(
    ("module", "text", "complaint"),
    [
        ("noise/scale.py", "from noisescale.sweep import peak", "noise.scale imports sweep"),
        ("data/cache.py", "import noisescale.jobs.store", "data.cache imports jobs"),
        ("sklearn.py", "def fit():\n    from noisescale import torch", "sklearn imports torch"),
        (
            "jobs/store.py",
            "if TYPE_CHECKING:\n    from noisescale.sweep import RunConfig",
            "jobs.store imports sweep",
        ),
        ("evidence/occam/dual.py", "from ...tune import trial", "evidence.occam.dual imports tune"),
        ("checks.py", "from noisescale.data import load_mnist", "checks imports data"),
        (
            "tune/trial.py",
            "from noisescale import train",
            "tune.trial imports train, which is in no layer",
        ),
        ("attic.py", "", "attic is in no layer"),
    ],
)
def test_imports_that_point_elsewhere_are_seen(tmp_path, module, text, complaint):
    _house(tmp_path, {module: text})
    assert violations(tmp_path) == [complaint]


def test_imports_that_point_downwards_are_not(tmp_path):
    _house(
        tmp_path,
        {
            "__init__.py": "from noisescale.tune import trial",
            "__main__.py": "from noisescale.cli import main",
            "cli/__init__.py": "import numpy\nfrom noisescale.torch import problem",
            "evidence/occam/dual.py": "from . import dense\nfrom ..prior import Prior\nimport jax",
            "errors.py": "from noisescale.checks import check_whole",
            "tune/trial.py": "from noisescale.noise import scale\nfrom noisescale import noise",
        },
    )
    assert violations(tmp_path) == []


def _house(folder, modules):
    for module, text in modules.items():
        path = folder / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
