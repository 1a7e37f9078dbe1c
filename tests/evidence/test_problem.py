"""The boundary between the estimators and the frameworks."""

import ast
from pathlib import Path

import pytest

import noisescale

HOME = Path(noisescale.__file__).parent
# What PyTorch's problem and every estimator are made of: no JAX at import.
NEUTRAL = [
    "evidence.refine",
    "arrays",
    "checks",
    "uncertainty",
    "likelihood",
    "evidence.pace",
    "evidence.problem",
    "evidence.rows",
    "drawing",
    "files",
    "notebook",
    "text",
    "evidence.prior",
    "evidence.select",
    "evidence.targets",
    "evidence.null",
    "evidence.constant",
    "evidence.averaging",
    "evidence.predict",
    "evidence.prior_choice",
    "evidence.preflight",
    "evidence.kind",
    "evidence.null",
    "evidence.descent",
    "evidence.lbfgs",
    "evidence.map",
    "evidence.conditional",
    "evidence.laplace",
    "evidence.from_operator",
    "evidence.result",
    "evidence.comparison",
    "evidence.curvature.roots",
    "evidence.curvature.spectrum",
    *(
        f"evidence.occam.{name}"
        for name in (
            "term",
            "cholesky",
            "krylov",
            "quadrature",
            "kernel",
            "dense",
            "dual",
            "lanczos",
            "rounding",
            "kfac",
            "diagonal",
            "semidefinite",
        )
    ),
    *(
        f"evidence.linear.{name}"
        for name in (
            "chord",
            "design",
            "families",
            "newton",
            "packed",
            "path",
            "regression",
            "search",
        )
    ),
    "torch.batches",
    "torch.by_examples",
    "torch.capture",
    "torch.convolved",
    "torch.derivatives",
    "torch.factors",
    "torch.first_pass",
    "torch.kernel",
    "torch.kronecker",
    "torch.layer_rules",
    "torch.model",
    "torch.packed",
    "torch.problem",
    "torch.rows",
    "torch.sums",
    "torch.likelihood",
    "torch.tensors",
    "torch.normalisation",
]


def imported(path):
    """Modules that a file imports when it is imported itself."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", NEUTRAL)
def test_estimators_need_no_framework(name):
    allowed = {f"noisescale.{module}" for module in NEUTRAL}
    allowed |= {f"noisescale.{module}" for module in ("errors", "seeds")}
    for module in imported(HOME / f"{name.replace('.', '/')}.py"):
        assert not module.startswith("jax"), module
        path = HOME.parent / f"{module.replace('.', '/')}.py"
        if module.startswith("noisescale") and path.exists():
            assert module in allowed, f"{name} imports {module}"


def test_every_method_has_the_same_names_in_the_same_order():
    for name in ("dense", "dual", "lanczos", "kfac", "diagonal"):
        tree = ast.parse((HOME / f"evidence/occam/{name}.py").read_text(encoding="utf-8"))
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert functions[:4] == ["refusal", "cost", "term", "curve"], name


def test_one_place_asks_for_a_dense_network():
    asking = [
        path.relative_to(HOME).as_posix()
        for path in HOME.rglob("*.py")
        if "is DenseNetwork" in path.read_text(encoding="utf-8")
        or "is not DenseNetwork" in path.read_text(encoding="utf-8")
    ]
    assert asking == ["training/dense.py"]
