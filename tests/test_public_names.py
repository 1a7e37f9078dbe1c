import ast
import dataclasses
import importlib
import subprocess
import sys
from enum import Enum
from importlib import resources
from pathlib import Path

import pytest
from site_pages import documented

import noisescale as ns

API = Path(__file__).parent.parent / "docs" / "api"
# Models, likelihoods and stores are what users hand over; histories have rows.
GIVEN = {"DenseNetwork", "Likelihood", "RunStore", "NoiseScaleMonitor", "Progress"}
ROWS = {"Evaluation", "Waypoint"}
EXTRAS = ("torch", "lightning", "transformers", "skorch", "optax")
RESULTS = sorted(
    name
    for name in ns.__all__
    if isinstance(getattr(ns, name), type) and name not in GIVEN | ROWS
    if not issubclass(getattr(ns, name), (Exception, Enum))
)


def listed():
    """Each name of the stub, and the module it stands in."""
    stub = resources.files("noisescale") / "__init__.pyi"
    lines = ast.parse(stub.read_text(encoding="utf-8")).body
    return [
        (alias, line.module)
        for line in lines
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    ]


def extra_names(extra):
    """The public names of ``noisescale.torch`` or its kin, read without importing them."""
    folder = resources.files("noisescale")
    file = folder / "torch" / "__init__.py" if extra == "torch" else folder / f"{extra}.py"
    for line in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and line.targets[0].id == "__all__":
            return ast.literal_eval(line.value)


def test_every_public_name_resolves():
    assert all(getattr(ns, name) is not None for name in ns.__all__)
    assert set(ns.__all__) <= set(dir(ns))


def test_the_stub_is_the_list():
    names = [alias.name for alias, _ in listed()]
    assert len(set(names)) == len(names)
    assert all(alias.asname == alias.name for alias, _ in listed())  # or it exports nothing
    assert sorted(names) == dir(ns)


def test_no_function_shares_its_name_with_a_subpackage():
    folders = {path.name for path in resources.files("noisescale").iterdir() if path.is_dir()}
    assert not folders & set(ns.__all__)


def test_unknown_names_say_so():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ns.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "name", ["sklearn", *(pytest.param(name, marks=pytest.mark.frameworks) for name in EXTRAS)]
)
def test_ecosystems_are_attributes(name):
    pytest.importorskip(name, reason="PyTorch and its kin are extras: make torch adds them")
    code = f"import noisescale as ns; print(ns.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"noisescale.{name}\n", done.stderr


def test_without_an_ecosystem_the_error_says_what_to_install():
    code = f"""
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named '{{name}}'")

sys.meta_path.insert(0, Without())
import noisescale as ns
for name in {EXTRAS}:
    try:
        getattr(ns, name)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    for name in EXTRAS:
        assert f"pip install 'noisescale[{name}]'" in done.stdout, done.stderr


def test_every_public_name_is_documented_once():
    names = [name for page in API.glob("*.md") for name in documented(page.read_text("utf-8"))]
    assert len(set(names)) == len(names)
    public = {
        f"{module}.{alias.name}"
        for alias, module in listed()
        if module != "noisescale" and alias.name != "__version__"
    }
    assert public - set(names) == set()
    for extra in EXTRAS:
        assert {f"noisescale.{extra}.{name}" for name in extra_names(extra)} <= set(names)
    for path in names:
        module, _, name = path.rpartition(".")
        if module.split(".")[1] not in EXTRAS:
            assert hasattr(importlib.import_module(module), name), path


def test_what_public_functions_return_is_public():
    for name in ns.__all__:
        function = getattr(ns, name)
        if isinstance(function, type) or not callable(function):
            continue
        returned = function.__annotations__["return"]
        if getattr(returned, "__module__", "").startswith("noisescale"):
            assert returned.__name__ in ns.__all__, name


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_frozen_print_readably_and_have_to_dict(name):
    result = getattr(ns, name)
    assert dataclasses.is_dataclass(result)
    assert result.__dataclass_params__.frozen
    assert "__repr__" in vars(result)
    assert callable(result.to_dict)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_rows_are_named_tuples(name):
    assert issubclass(getattr(ns, name), tuple)
