"""Whatever comes from outside is refused in a sentence or accepted: no traceback, nothing lost."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import noisescale as ns
from noisescale.cli import app
from noisescale.data.idx import parse_idx
from noisescale.jobs.store import RunStore, salvage

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


class TestPlans:
    @FEW
    @given(st.text(max_size=200))
    def test_any_text(self, tmp_path, text):
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
    def test_any_values(self, tmp_path, run, grid):
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
    def test_any_bytes(self, tmp_path, content):
        path = tmp_path / "plan.toml"
        path.write_bytes(content)
        with pytest.raises(ns.InputError):
            ns.load_plan(path)


def _record(k):
    config = json.dumps({"batch_size": k, "seed": 0, "learning_rate": 0.1})
    return {
        "key": hashlib.sha256(config.encode()).hexdigest(),
        "config": config,
        "status": "done",
        "history": {},
        "final": {"test_accuracy": 0.5},
        "error": None,
        "duration": 1.0,
        "versions": {},
        "host": "h",
        "finished": "2026-01-01T00:00:00+00:00",
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "runs.sqlite"
    with RunStore(path, write=True) as store:
        store.add(_record(k) for k in range(200))
    return path.read_bytes()


class TestStores:
    @FEW
    @given(
        st.floats(0, 0.999),
        st.binary(min_size=1, max_size=600),
        st.one_of(st.none(), st.floats(0.001, 0.999)),
    )
    def test_damage_is_told_and_what_is_saved_is_genuine(self, whole, start, new, cut):
        content = bytearray(whole)
        at = int(start * len(content))
        content[at : at + len(new)] = new
        content = content[: len(whole) if cut is None else int(cut * len(whole))]
        with tempfile.TemporaryDirectory() as folder:
            self.look_at(Path(folder) / "damaged.sqlite", bytes(content))

    def look_at(self, path, content):
        path.write_bytes(content)
        genuine = {_record(k)["key"] for k in range(200)}
        try:
            with RunStore(path) as store:
                frame = store.frame()
        except ns.InputError as told:
            assert "\n" not in str(told)
        else:
            assert len(frame) <= 200
        assert path.read_bytes() == content  # looking changes nothing
        try:
            saved = salvage(path)
        except ns.InputError:
            return
        assert {record["key"] for record in saved} <= genuine

    @FEW
    @given(st.binary(max_size=300))
    def test_other_files_are_left_alone(self, tmp_path, content):
        path = tmp_path / "notes.txt"
        path.write_bytes(b"x" + content)
        with pytest.raises(ns.InputError):
            RunStore(path, write=True)
        assert path.read_bytes() == b"x" + content


class TestIdx:
    @FEW
    @given(st.binary(max_size=200))
    def test_any_bytes(self, content):
        try:
            found = parse_idx(content, "file")
        except Exception as refused:
            assert type(refused).__name__ in ("InputError", "DataUnavailableError", "ValueError")
            assert "file" in str(refused)
        else:
            assert found.nbytes <= len(content)

    @FEW
    @given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 3))
    def test_genuine_ones_come_back(self, shape, spare):
        values = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
        header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
        content = header + values.tobytes()
        np.testing.assert_array_equal(parse_idx(content, "file"), values)
        if spare:
            with pytest.raises(Exception, match="file"):
                parse_idx(content + bytes(spare), "file")


class TestCommandLine:
    @FEW
    @given(
        st.lists(
            st.one_of(st.floats(), st.integers(-(10**20), 10**20), st.text(max_size=5)),
            min_size=4,
            max_size=4,
        ),
        st.sampled_from(["--to-batch-size", "--to-n-train", "--to-momentum"]),
        st.one_of(st.floats(), st.integers(-10, 10**6)),
    )
    def test_recipe_takes_any_numbers(self, values, option, target):
        names = ("--learning-rate", "--batch-size", "--n-train", "--momentum")
        args = [
            part for name, value in zip(names, values, strict=True) for part in (f"{name}={value}",)
        ]
        done = CliRunner().invoke(app, ["recipe", *args, f"{option}={target}", "--json"])
        if done.exit_code == 0:
            json.loads(done.stdout)
        else:
            usage = done.exit_code == 2 or isinstance(done.exception, (ns.InputError, SystemExit))
            assert usage, done.exception

    @pytest.mark.parametrize(
        "args",
        [
            ["paper", "--seeds", "0", "--scale", "smoke"],
            ["paper", "--only", "Z"],
            ["report", "nowhere"],
            ["runs", "nowhere"],
            ["runs", ".", "--limit", "0"],
            ["sweep", "nowhere.toml"],
            ["tune", "json:dumps", "--epochs", "nan", "--n-train", "5"],
            ["evidence", "nowhere:nothing"],
            ["data", "fetch", "nothing"],
            ["recipe", "--learning-rate", "x", "--batch-size", "1", "--n-train", "1"],
        ],
        ids=" ".join,
    )
    def test_bad_input_is_one_line_and_leaves_nothing(self, args, tmp_path):
        env = {**os.environ, "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "noisescale", *args],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2, done
        assert done.stdout == ""
        assert done.stderr.startswith("noisescale: ")
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
