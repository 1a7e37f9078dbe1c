import csv
from pathlib import Path

from noisescale.jobs.store import RunSource
from noisescale.sweep import RunConfig
from noisescale.sweep.tables import TableSource

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
