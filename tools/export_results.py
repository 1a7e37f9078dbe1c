"""Ship what a full-scale report measured: copy its sections' data and runs to results/.

    python tools/export_results.py FOLDER SEEDS SECTION [SECTION ...]

FOLDER is what `noisescale paper --scale full --seeds SEEDS --out FOLDER` left; nothing is run. A
section's data become `results/sections/ID.json`, and the runs that they name rows of
`results/figureID.csv` (with curves, where they are more than an end, in `results/curves.csv`).
"""

import shutil
import sys
from pathlib import Path

import pandas as pd

from noisescale.jobs.store import RunStore
from noisescale.paper.documents import read, report_path
from noisescale.paper.section import Measured, Section
from noisescale.paper.sections import SECTIONS
from noisescale.paper.shipped import runs_of, shipped_path
from noisescale.sweep.listing import export_frame
from noisescale.sweep.tables import CONFIGURED

RESULTS = Path(__file__).parent.parent / "results"
COLUMNS = [
    *CONFIGURED,
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


def export(folder: Path, seeds: int, section: Section, store: RunStore) -> Path:
    path = report_path(folder, section, "full", seeds)
    kept = read(path, section, store)
    if kept is None:
        raise SystemExit(f"section {section.id} was not measured in {folder} with {seeds} seeds.")
    target = shipped_path(RESULTS, section)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)
    table = RESULTS / f"figure{'' if section.id.isdigit() else '-'}{section.id}.csv"
    if keys := sorted(keys_of(kept.data)):  # a table is whole, whatever others have of it
        frame = store.frame(keys).sort_values(ORDER)
        export_frame(frame[COLUMNS].round({"duration": 3}), table)
        add_curves(store.curves(keys))
    return target


def keys_of(data: Measured) -> set[str]:
    """Of all runs that a section's data name."""
    return {key for runs in runs_of(data) for key in runs.keys}


def add_curves(new: pd.DataFrame) -> None:
    new = new[new.groupby("key")["step"].transform("size") > 2]  # else the end alone
    path = RESULTS / "curves.csv"
    curves = pd.concat([pd.read_csv(path), new]).drop_duplicates(["key", "step"], keep="last")
    curves.sort_values(["key", "step"]).to_csv(path, index=False, float_format="%.7g")


def main() -> None:
    folder, seeds = Path(sys.argv[1]), int(sys.argv[2])
    with RunStore(folder) as store:
        for name in sys.argv[3:]:
            path = export(folder, seeds, SECTIONS[name], store)
            print(f"{path}: {path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
