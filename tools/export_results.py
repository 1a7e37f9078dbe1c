"""Write what is behind each section at full scale to results/.

    python tools/export_results.py FOLDER SEEDS SECTION [SECTION ...]

FOLDER is what `noisescale paper --scale full --seeds SEEDS --out FOLDER` left; nothing is run. A
section that is drawn from runs gives a table, one row a run (and curves, where it draws them);
figure 10 its measured minima; any other its outcome as it was recorded.
"""

import json
import sys
from pathlib import Path

import pandas as pd

from noisescale.data import load_mnist
from noisescale.paper.outcomes import outcome_path, read_outcome
from noisescale.paper.run import SECTIONS
from noisescale.paper.section import Context
from noisescale.sweep import RunStore
from noisescale.sweep.listing import export_frame

RESULTS = Path(__file__).parent.parent / "results"
COLUMNS = [
    "learning_rate",
    "batch_size",
    "momentum",
    "n_train",
    "steps",
    "prior_precision",
    "cost_convention",
    "hidden_widths",
    "seed",
    "status",
    "n_classes",
    "test_accuracy",
    "test_cross_entropy",
    "train_accuracy",
    "train_cross_entropy",
    "duration",
    "key",
]
ORDER = ["learning_rate", "n_train", "momentum", "batch_size", "seed"]


class Recorder(Context):
    """Remembers which runs a section asks for, and makes none."""

    def runs(self, plan):
        missing = {run.key for run in plan} - set(self.store.statuses([run.key for run in plan]))
        if missing:
            raise SystemExit(f"{len(missing)} runs are not in the store: finish the sweep first.")
        self._known.setdefault("keys", set()).update(run.key for run in plan)
        return super().runs(plan)


def export_runs(store: RunStore, seeds: int, section: str) -> Path:
    recorder = Recorder(load_mnist(), "full", seeds, store, engine=None)
    SECTIONS[section].measure(recorder)
    frame = store.frame(recorder._known["keys"]).sort_values(ORDER)
    path = RESULTS / f"figure{section}.csv"
    export_frame(frame[COLUMNS].round({"duration": 3}), path)
    curves = store.curves(frame["key"])
    curves = curves[curves.groupby("key")["step"].transform("size") > 2]  # else the end alone
    if len(curves):
        add_curves(curves)
    return path


def add_curves(new: pd.DataFrame) -> None:
    path = RESULTS / "curves.csv"
    old = [pd.read_csv(path)] if path.exists() else []
    curves = pd.concat([*old, new]).drop_duplicates(["key", "step"], keep="last")
    curves.sort_values(["key", "step"]).to_csv(path, index=False, float_format="%.7g")


def export_measured(folder: Path) -> Path:
    rows = {}
    for path in sorted((folder / "measured").glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("settings", {}).get("what") in ("minimum", "rescaling"):
            rows[path.stem] = content
    path = RESULTS / "figure10.json"
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return path


def export_recorded(folder: Path, seeds: int, section: str) -> Path:
    content = read_outcome(outcome_path(folder, section, "full", seeds))
    if content is None:
        raise SystemExit(f"section {section} was not measured in {folder} with {seeds} seeds.")
    path = RESULTS / "recorded" / f"{section}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"seeds": seeds, "outcome": content["outcome"]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> None:
    folder, seeds = Path(sys.argv[1]), int(sys.argv[2])
    RESULTS.mkdir(exist_ok=True)
    with RunStore(folder) as store:
        for section in sys.argv[3:]:
            if section == "10":
                path = export_measured(folder)
            elif SECTIONS[section].from_runs:
                path = export_runs(store, seeds, section)
            else:
                path = export_recorded(folder, seeds, section)
            print(f"{path}: {path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
