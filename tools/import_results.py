"""Put the shipped runs into a store, so that a measurement with more seeds makes only the new ones.

    python tools/import_results.py FOLDER

Writes to FOLDER/runs.sqlite. The tables do not name what all runs share (how often metrics are
taken, the sampler); a run's key, the hash of its whole configuration, tells which it was.
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.jobs.record import guarded
from noisescale.jobs.store import RunStore
from noisescale.sweep.tables import TableSource, config_of

RESULTS = Path(__file__).parent.parent / "results"
METRICS = ("train_accuracy", "train_cross_entropy", "test_accuracy", "test_cross_entropy")


def record_of(row: "pd.Series[Any]", curve: pd.DataFrame) -> dict[str, Any]:
    """A shipped run as the store has it; of runs without a curve the last evaluation is kept."""
    config, done = config_of(row, curve["step"].tolist()), row["status"] == "done"
    if config is None:
        raise SystemExit(f"the run {row['key']} has a configuration that its table does not tell.")
    metrics = {name: float(row[name]) for name in METRICS} if done else {}
    if len(curve):
        history = {name: curve[name].tolist() for name in ("step", *METRICS)}
    else:
        history = {"step": [config.steps], **{k: [v] for k, v in metrics.items()}} if done else {}
    final = {"steps_done": config.steps if done else None, "n_classes": int(row["n_classes"])}
    made = guarded(lambda: {"status": row["status"], "error": None})
    return made | {
        "key": config.key,
        "config": config.canonical,
        "history": history,
        "final": final | metrics,
        "duration": float(row["duration"]),
        "host": "shipped",
    }


def main() -> None:
    tables, folder = TableSource(RESULTS), Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    keys = {key for path in RESULTS.glob("figure*.csv") for key in pd.read_csv(path)["key"]}
    curves = dict(list(tables.curves(keys).groupby("key")))
    empty = pd.DataFrame(columns=["step", *METRICS])
    frame = tables.frame(keys)
    with RunStore(folder, write=True) as store:
        store.add(record_of(row, curves.get(row["key"], empty)) for _, row in frame.iterrows())
    print(f"{len(frame)} runs in {folder}")


if __name__ == "__main__":
    main()
