"""Write the runs behind each figure to results/, one row a run.

    python tools/export_results.py STORE_FOLDER SEEDS SECTION [SECTION ...]

STORE_FOLDER is what `noisescale paper --scale full --out STORE_FOLDER` left; nothing is run.
"""

import sys
from pathlib import Path

from noisescale.data import load_mnist
from noisescale.paper.run import SECTIONS
from noisescale.paper.section import Context
from noisescale.sweep import RunStore
from noisescale.sweep.listing import export_frame

COLUMNS = [
    "learning_rate", "batch_size", "momentum", "n_train", "steps", "prior_precision",
    "cost_convention", "hidden_widths", "seed", "status", "n_classes", "test_accuracy",
    "test_cross_entropy", "train_accuracy", "train_cross_entropy", "key",
]  # fmt: skip


class Recorder(Context):
    """Remembers which runs a section asks for, and makes none."""

    def runs(self, plan):
        missing = {run.key for run in plan} - set(self.store.statuses([run.key for run in plan]))
        if missing:
            raise SystemExit(f"{len(missing)} runs are not in the store: finish the sweep first.")
        self._known.setdefault("keys", set()).update(run.key for run in plan)
        return super().runs(plan)


def main() -> None:
    folder, seeds, *sections = sys.argv[1:]
    results = Path(__file__).parent.parent / "results"
    results.mkdir(exist_ok=True)
    with RunStore(folder) as store:
        for section in sections:
            recorder = Recorder(load_mnist(), "full", int(seeds), store, engine=None)
            SECTIONS[section].measure(recorder)
            frame = store.frame(recorder._known["keys"])
            frame = frame.sort_values(
                ["learning_rate", "n_train", "momentum", "batch_size", "seed"]
            )
            path = results / f"figure{section}.csv"
            export_frame(frame[COLUMNS], path)
            print(f"{path}: {len(frame)} runs, {path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
