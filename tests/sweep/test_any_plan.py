"""Any text, values or bytes as a plan: refused in a sentence, or a plan."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import noisescale as ns

FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

_numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.booleans(),
    st.lists(st.integers(-3, 40), max_size=3),
)
_fields = st.sampled_from(
    [
        "learning_rate",
        "batch_size",
        "steps",
        "momentum",
        "seed",
        "data",
        "n_train",
        "hidden_widths",
        "model",
        "sampler",
        "evaluate_at",
        "nonsense",
    ]
)


def _toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return {"nan": "nan", "inf": "inf", "-inf": "-inf"}.get(repr(value), repr(value))
    return json.dumps(value)


@FEW
@given(st.text(max_size=200))
def test_any_text(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(ns.InputError) as caught:  # no text this short is a whole plan
        ns.load_plan(path)
    assert str(caught.value).endswith(".")


@FEW
@given(
    st.dictionaries(_fields, _numbers, max_size=6),
    st.dictionaries(_fields, st.lists(_numbers, max_size=3), max_size=3),
)
def test_any_values(tmp_path, run, grid):
    lines = [
        "[run]",
        *(f"{name} = {_toml(value)}" for name, value in run.items()),
        "[grid]",
        *(f"{name} = [{', '.join(map(_toml, values))}]" for name, values in grid.items()),
    ]
    path = tmp_path / "plan.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        plan = ns.load_plan(path)
    except ns.InputError as refused:
        assert "\n" not in str(refused)
    else:
        assert plan
        assert len({run.key for run in plan}) == len(plan)


@FEW
@given(st.binary(max_size=100))
def test_any_bytes(tmp_path, content):
    path = tmp_path / "plan.toml"
    path.write_bytes(content)
    with pytest.raises(ns.InputError):
        ns.load_plan(path)
