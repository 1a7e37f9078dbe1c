"""Put the shipped runs into a store, so that a measurement with more seeds makes only the new ones.

    python tools/import_results.py FOLDER

Writes to FOLDER/runs.sqlite. The tables do not name what all runs share (how often metrics are
taken, the sampler); a run's key, the hash of its whole configuration, tells which it was. Of the
sections that keep what they measure seed by seed (figure 10, appendices A and D) the parts go to
FOLDER/measured/parts, where the present version would still measure them so.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from noisescale.jobs.record import guarded
from noisescale.jobs.store import RunStore
from noisescale.paper import appendix_d, figure10, posterior_draws, visits
from noisescale.paper.batches import PRIOR_PRECISION
from noisescale.paper.keeping import keep_part
from noisescale.paper.minima import find_minimum
from noisescale.paper.parts import Part
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import shipped
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


def parts_of(name: str, data: Any) -> Iterator[tuple[Callable[..., Any], dict[str, Any], Any]]:
    """What a section kept seed by seed: what measured it, with what, and what it was."""
    if name == "10":
        for group, labels, l2 in (
            (data.true, "true", 0.0),
            (data.random, "random", 0.0),
            (data.l2, "true", PRIOR_PRECISION),
        ):
            for B, minima in group.items():
                for seed, minimum in enumerate(minima):
                    at = {"seed": seed, "batch_size": B, "labels": labels, "l2": l2}
                    yield find_minimum, at, minimum
        yield figure10.rescale, {}, data.rescaling
    elif name == "A":
        yield visits.measure_visits, {}, data.visits
        ways = (posterior_draws.draws_of_network, posterior_draws.draws_of_logistic)
        for way, model in zip(ways, posterior_draws.MODELS, strict=True):
            for seed, draws in enumerate(data.draws[model]):
                yield way, {"seed": seed}, draws
    elif name == "D":
        for seed, network in enumerate(data.networks):
            yield appendix_d.fluctuations, {"seed": seed}, network


def import_parts(folder: Path, name: str) -> int:
    """Keep the parts of a section in the folder of a report; how many there are."""
    section = SECTIONS[name]
    kept = shipped(section)
    if kept is None or not kept.by_this_version(section):
        print(f"section {name} was measured by another version: its parts are left out")
        return 0
    at, n = kept.data.at, 0
    for measure, arguments, value in parts_of(name, kept.data):
        part = Part(measure, arguments, at.scale, at.data, at.fingerprint, kept.version)
        keep_part(folder, part.depends_on, value)
        n += 1
    return n


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
    for name in ("10", "A", "D"):
        print(f"{import_parts(folder, name)} parts of section {name}")


if __name__ == "__main__":
    main()
