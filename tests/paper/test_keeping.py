"""Plain data survive the disk, and what is kept answers for what it depends on alone."""

import json
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from noisescale.noise import AdamRecipe, Recipe
from noisescale.paper import figure1
from noisescale.paper.claims import Verdict
from noisescale.paper.documents import keep, measured_alike, read
from noisescale.paper.keeping import from_plain, read_document, to_plain, write_document
from noisescale.paper.logistic import Curves
from noisescale.paper.runs import Runs
from noisescale.paper.section import Context
from noisescale.uncertainty import Estimate
from paper.circumstances import DECIDING

floats = st.floats(allow_nan=True, allow_infinity=True)
estimates = st.builds(Estimate, floats, floats, n=st.none() | st.integers(0, 9))


@dataclass(frozen=True)
class Everything:
    number: float
    maybe: int | None
    word: str
    verdict: Verdict
    array: NDArray[np.float64]
    whole: NDArray[np.int64]
    pairs: dict[tuple[str, int], Estimate]
    rows: list[list[float]]
    two: tuple[int, str]
    many: tuple[Estimate, ...]


@given(
    st.builds(
        Everything,
        number=floats,
        maybe=st.none() | st.integers(-5, 5),
        word=st.text(),
        verdict=st.sampled_from(Verdict),
        array=st.lists(floats, max_size=4).map(np.array),
        whole=st.lists(st.integers(-9, 9), max_size=4).map(lambda v: np.array(v, np.int64)),
        pairs=st.dictionaries(st.tuples(st.text(), st.integers(0, 9)), estimates, max_size=3),
        rows=st.lists(st.lists(floats, max_size=2), max_size=2),
        two=st.tuples(st.integers(0, 9), st.text()),
        many=st.lists(estimates, max_size=2).map(tuple),
    )
)
def test_what_is_written_is_read(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "document.json"
    write_document(path, {"value": to_plain(value)})
    again = from_plain(Everything, read_document(path, {"value"})["value"])
    assert to_plain(again) == to_plain(value)  # NaN equals itself as null
    for name, before in vars(value).items():
        assert type(getattr(again, name)) is type(before)
    assert all(isinstance(estimate, Estimate) for estimate in (*again.many, *again.pairs.values()))
    assert set(again.pairs) == set(value.pairs)
    np.testing.assert_array_equal(again.array, value.array)


def test_what_is_not_plain_is_refused():
    with pytest.raises(TypeError, match="must be plain, got object"):
        to_plain({"a": object()})


def test_runs_are_kept_by_their_keys():
    frame = pd.DataFrame({"key": ["b", "a"], "status": "done"})
    runs = Runs(frame, pd.DataFrame({"key": ["a"]}))
    source = SimpleNamespace(
        frame=lambda keys: frame[frame["key"].isin(keys)],
        curves=lambda keys: runs.curves,
    )
    assert to_plain(runs) == ["a", "b"]
    assert from_plain(Runs, ["a", "b"], source).keys == ["a", "b"]
    with pytest.raises(KeyError, match="1 of 2 runs are not there"):
        from_plain(Runs, ["a", "c"], source)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"other": 1}'])
def test_a_document_that_is_none(tmp_path, text):
    (tmp_path / "d.json").write_text(text)
    assert read_document(tmp_path / "d.json", {"value"}) is None
    assert read_document(tmp_path / "missing.json", {"value"}) is None


def test_a_sections_data(tmp_path):
    curves = Curves(*np.arange(7.0).repeat(3).reshape(7, 1, 3))
    data = figure1.Data(DECIDING, {("raw pixels", "random"): curves})
    path = tmp_path / "1.json"
    section = figure1.SECTION
    keep(path, section, data)
    kept = read(path, section, None)
    np.testing.assert_equal(vars(kept.data.curves["raw pixels", "random"]), vars(curves))
    assert measured_alike(kept, section, DECIDING)
    assert not measured_alike(kept, section, replace(DECIDING, seeds=4))
    assert not measured_alike(kept, replace(section, version=2), DECIDING)
    assert kept.version == 1
    assert read(path, replace(section, id="7"), None) is None
    document = json.loads(path.read_text())
    unversioned = {"section": "1", "code": "0f", "version": "0.1.0", "data": document["data"]}
    write_document(tmp_path / "old.json", unversioned)  # as it was before sections had versions
    assert not measured_alike(read(tmp_path / "old.json", section, None), section, DECIDING)
    path.write_text(path.read_text().replace("raw_", "").replace('"margin"', '"edge"'))
    assert read(path, section, None) is None  # of another shape


def measure_part(context: Context, seed: int) -> float | None:
    context.data.calls.append(seed)
    return math.nan if seed else None


def test_parts_are_measured_once(tmp_path):
    calls = []
    context = Context(
        SimpleNamespace(name="toy", fingerprint="abc", calls=calls),
        "full",
        3,
        None,
        None,
        folder=tmp_path,
    )
    for _ in range(2):
        assert context.kept(measure_part, seed=0) is None
        assert math.isnan(context.kept(measure_part, seed=1) or math.nan)
    assert calls == [0, 1]
    replace(context, scale="quick").kept(measure_part, seed=0)
    assert calls == [0, 1, 0]
    replace(context, version=2).kept(measure_part, seed=0)
    assert calls == [0, 1, 0, 0]
    assert not list(tmp_path.rglob("*.part"))


def test_recipes_of_either_optimiser_come_back_as_what_they_were():
    kind = Recipe | AdamRecipe
    for recipe in (
        Recipe(learning_rate=0.1, batch_size=8, n_train=100, momentum=0.9, warmup_steps=3),
        AdamRecipe(learning_rate=0.1, batch_size=8, betas=(0.8, 0.9), decoupled=True),
    ):
        back = from_plain(kind, json.loads(json.dumps(to_plain(recipe))))
        assert type(back) is type(recipe)
        assert back == recipe
        assert back.notes == recipe.notes
