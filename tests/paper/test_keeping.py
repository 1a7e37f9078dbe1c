"""Plain data survive the disk, and what is kept answers for what it depends on alone."""

import json
import math
import os
import re
import shutil
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from noisescale.errors import InputError
from noisescale.noise import AdamRecipe, Recipe
from noisescale.paper import SECTIONS, figure1, figure4, law_cases
from noisescale.paper import shipped as shipping
from noisescale.paper.claims import Verdict
from noisescale.paper.documents import keep, read
from noisescale.paper.keeping import read_document, write_document
from noisescale.paper.logistic import Curves
from noisescale.paper.runs import Runs
from noisescale.paper.section import Context
from noisescale.plain import from_plain, to_plain
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


@dataclass(frozen=True)
class Maybe:
    maybe: float | None
    number: float
    yes: bool | None = None
    array: NDArray[np.float64] | None = None


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
    again = read_document(path, lambda plain: from_plain(Everything, plain["value"]))
    assert to_plain(again) == to_plain(value)  # NaN equals itself as a word
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


@pytest.mark.parametrize(
    "value",
    [
        Maybe(math.nan, math.nan),
        Maybe(None, math.inf),
        Maybe(-math.inf, 1.0, True, np.array([math.nan, math.inf, 0.5])),
        Maybe(2.0, 3.0, False, np.array([[1.0, math.nan]])),
    ],
)
def test_what_is_no_number_comes_back_as_what_it_was(tmp_path, value):
    write_document(tmp_path / "d.json", to_plain(value))
    again = read_document(tmp_path / "d.json", partial(from_plain, Maybe))
    np.testing.assert_equal(vars(again), vars(value))


def test_null_is_nan_where_nothing_is_not_possible():
    """As documents had it."""
    again = from_plain(Maybe, {"maybe": None, "number": None, "array": [None, 1]})
    assert again.maybe is None
    np.testing.assert_array_equal([again.number, *again.array], [math.nan, math.nan, 1.0])


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (int, 1.0),
        (int, True),
        (int, "1"),
        (bool, 1),
        (str, 1),
        (float, "1.5"),
        (float, True),
        (float, [1.0]),
        (int | None, []),
        (Literal["smoke", "full"], -1),
        (Literal[1], True),
        (Verdict, "perhaps"),
        (list[int], {"a": 1}),
        (list[int], "12"),
        (list[float], [1, "x"]),
        (tuple[int, str], [1]),
        (tuple[int, ...], "12"),
        (dict[str, int], {"a": "b"}),
        (dict[int, int], 5),
        (dict[int, int], [[1]]),
        (NDArray[np.float64], 5),
        (NDArray[np.float64], ["1.5"]),
        (NDArray[np.float64], [[1, 2], [3]]),
        (NDArray[np.int64], [1.5]),
        (NDArray[np.bool_], [1]),
        (Estimate, [1.0]),
        (Estimate, {"std": 1.0}),
        (Estimate, {"value": 1.0, "surprise": 1}),
        (Recipe | AdamRecipe, {"learning_rate": 0.1, "surprise": 1}),
        (Recipe | AdamRecipe, 3),
        (Recipe, {"learning_rate": -1.0, "batch_size": 8, "n_train": 100}),
    ],
)
def test_what_is_of_another_type_is_refused(kind, plain):
    with pytest.raises(ValueError, match="."):
        from_plain(kind, plain)


DAMAGED = ["", "{", "[]", "5", '"code"', "null", '{"other": 1}', "[" * 100_000, "\xff"]


def damaged(path):
    return pytest.raises(InputError, match=re.escape(str(path)))


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_a_sentence_that_names_it(tmp_path, text):
    path = tmp_path / "d.json"
    assert read_document(path, partial(from_plain, Maybe)) is None  # there is none
    path.write_text(text, encoding="latin-1")
    with damaged(path):
        read_document(path, partial(from_plain, Maybe))
    assert path.exists()


def test_what_is_no_file_is_not_waited_for(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path in sorted(tmp_path.iterdir()):
        with damaged(path):
            read_document(path, partial(from_plain, Any))


@pytest.fixture
def kept(tmp_path):
    """A section's data in a file."""
    curves = Curves(*np.arange(7.0).repeat(3).reshape(7, 1, 3))
    data = figure1.Data(DECIDING, {("raw pixels", "random"): curves})
    path = tmp_path / "1.json"
    keep(path, figure1.SECTION, data)
    return path, data


def test_a_sections_data(kept):
    path, data = kept
    section = figure1.SECTION
    again = read(path, section, None, at=DECIDING)
    curves = data.curves["raw pixels", "random"]
    np.testing.assert_equal(vars(again.data.curves["raw pixels", "random"]), vars(curves))
    assert again.version == 1
    assert read(path, section, None, at=replace(DECIDING, seeds=4)) is None
    newer = replace(section, version=2)
    assert read(path, newer, None, at=DECIDING) is None
    assert read(path, newer, None).version == 1
    with damaged(path):
        read(path, replace(section, id="7"), None)
    # As it was before sections had versions: which one it was is not known.
    old = {"section": "1", "code": "0f", "version": "0.1.0", "data": to_plain(data)}
    write_document(path, old)
    assert read(path, section, None, at=DECIDING) is None
    assert read(path, section, None).version == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"margin"', '"edge"'),
        ('"margin"', '"surprise":1,"margin"'),
        ('"section"', '"surprise": 1,\n"section"'),
        ('"version": 1', '"version": "1"'),
        ('"scale":"full"', '"scale":-1'),
        ('"seeds":5', '"seeds":5.5'),
        ('"complete":true', '"complete":null'),
        ("[0.0,0.0,0.0]", '[0.0,0.0,"0"]'),
        ('"curves":[', '"curves":[[1,2],'),
    ],
)
def test_a_sections_data_of_another_shape(kept, old, new):
    path, _ = kept
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with damaged(path):
        read(path, figure1.SECTION, None)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_document_of_a_section(kept, text):
    path, _ = kept
    path.write_text(text, encoding="latin-1")
    for at in (None, DECIDING):
        with damaged(path):
            read(path, figure1.SECTION, None, at=at)


def test_data_of_another_shape_and_version(kept):
    path, _ = kept
    path.write_text(path.read_text().replace('"margin"', '"edge"'))
    newer = replace(figure1.SECTION, version=2)
    with pytest.raises(InputError, match="by version 1 of the section, this is version 2"):
        read(path, newer, None)
    assert read(path, newer, None, at=DECIDING) is None  # measured again


def test_runs_that_are_gone(tmp_path):
    nowhere = SimpleNamespace(frame=lambda keys: pd.DataFrame({"key": []}))
    data = figure4.Data(DECIDING, Runs(pd.DataFrame({"key": ["a"]}), pd.DataFrame()))
    path = tmp_path / "4.json"
    keep(path, figure4.SECTION, data)
    with pytest.raises(InputError, match=re.escape(f"{path} is") + ".*1 of 1 runs are not there"):
        read(path, figure4.SECTION, nowhere)
    assert read(path, figure4.SECTION, nowhere, at=DECIDING) is None


def test_shipped_data_that_are_damaged(tmp_path, monkeypatch):
    path = tmp_path / "sections" / "9.json"
    path.parent.mkdir()
    results = shipping.folder()
    for name in ("figure-units.csv", "curves.csv"):
        shutil.copy(results / name, tmp_path)
    monkeypatch.setattr(shipping, "folder", lambda: tmp_path)
    fresh = shipping.shipped.__wrapped__
    assert fresh(SECTIONS["9"]) is None  # none ships
    path.write_text('{"section": "9", "version": 1, "data": {"at"')
    with damaged(path):
        fresh(SECTIONS["9"])


def test_tables_that_are_damaged(tmp_path):
    with pytest.raises(InputError, match=f"the tables of runs in {re.escape(str(tmp_path))}"):
        shipping._tables(tmp_path)  # there are none
    (tmp_path / "figure4.csv").write_text("key,status\n1,2,3\n")
    with pytest.raises(InputError, match="cannot be read"):
        shipping._tables(tmp_path)


def test_predictions_that_are_damaged(tmp_path, monkeypatch):
    path = tmp_path / law_cases.PREDICTIONS
    text = (shipping.folder() / law_cases.PREDICTIONS).read_text()
    monkeypatch.setattr(law_cases, "folder", lambda: tmp_path)
    for damage in ("", text.replace("learning_rate", "rate", 1), text.replace("[", "<")):
        path.write_text(damage)
        with damaged(path):
            law_cases.read_predictions()


def measure_part(context: Context, seed: int) -> float | None:
    context.data.calls.append(seed)
    return math.nan if seed else None


def only_part(folder):
    (path,) = (folder / "measured" / "parts").iterdir()
    return path


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
        assert math.isnan(context.kept(measure_part, seed=1))
    assert calls == [0, 1]
    replace(context, scale="quick").kept(measure_part, seed=0)
    assert calls == [0, 1, 0]
    replace(context, version=2).kept(measure_part, seed=0)
    assert calls == [0, 1, 0, 0]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("text", [*DAMAGED, '{"key": 1, "value": "1"}', '{"key": 1, "value": []}'])
def test_a_part_that_is_damaged(tmp_path, text):
    data = SimpleNamespace(name="toy", fingerprint="abc", calls=[])
    context = Context(data, "full", 3, None, None, folder=tmp_path)
    context.kept(measure_part, seed=1)
    path = only_part(tmp_path)
    path.write_text(text, encoding="latin-1")
    with damaged(path):
        context.kept(measure_part, seed=1)
    assert data.calls == [1]


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
