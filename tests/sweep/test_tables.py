import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

from noisescale.jobs.store import RunSource
from noisescale.sweep import RunConfig
from noisescale.sweep.tables import TableSource, config_of

RESULTS = Path(__file__).parents[2] / "results"
SHIPPED = RunConfig(
    learning_rate=1.0,
    batch_size=30,
    momentum=0.9,
    n_train=1000,
    steps=10_000,
    cost_convention="per_class",
)


def test_shipped_runs_are_read_like_a_store():
    source: RunSource = TableSource(RESULTS)
    keys = [SHIPPED.key, "no such run"]
    assert source.statuses(keys) == {SHIPPED.key: "done"}
    (row,) = source.frame(keys).to_dict(orient="records")
    assert (row["key"], row["batch_size"], row["hidden_widths"]) == (SHIPPED.key, 30, [800])
    curves = source.curves(keys)
    assert set(curves["key"]) == {SHIPPED.key}
    assert curves["step"].is_monotonic_increasing
    assert curves["step"].iloc[-1] == 10_000
    assert source.frame([]).empty


def test_numbers_are_those_of_the_file():
    with (RESULTS / "figure4.csv").open(newline="") as file:
        written = {row["key"]: float(row["test_cross_entropy"]) for row in csv.DictReader(file)}
    read = TableSource(RESULTS).frame(written)
    assert dict(zip(read["key"], read["test_cross_entropy"], strict=True)) == written
    assert list(read["key"]) == sorted(written)


def test_runs_of_other_data_keep_their_name(tmp_path):
    elsewhere = replace(SHIPPED, data="fashion-mnist", data_fingerprint=None, evaluate_at="final")
    frame = TableSource(RESULTS).frame([SHIPPED.key])
    frame["hidden_widths"] = frame["hidden_widths"].map(json.dumps)
    frame.drop(columns="data").to_csv(tmp_path / "figure3.csv", index=False)  # names no data
    told = frame.assign(key=elsewhere.key, data=elsewhere.data)
    told.to_csv(tmp_path / "figure-other.csv", index=False)
    shutil.copy(RESULTS / "curves.csv", tmp_path)
    both = TableSource(tmp_path).frame([SHIPPED.key, elsewhere.key]).set_index("key")
    assert both["data"].to_dict() == {SHIPPED.key: "mnist", elsewhere.key: "fashion-mnist"}
    assert (
        config_of(both.reset_index().set_index("key", drop=False).loc[elsewhere.key]) == elsewhere
    )
