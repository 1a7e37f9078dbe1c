"""Run the playground's network at several settings, keep the accuracies, and print its law.

    python tools/calibrate_playground.py STORE        # some minutes on one core

The runs go to STORE, where an interrupted calibration goes on; the table of accuracies to the
package, beside the page. The constants printed belong into playground/law.py.
"""

import sys
from pathlib import Path

import noisescale as ns
from noisescale.paper.report.playground import law

TABLE = Path(law.__file__).with_name("calibration.csv")
COLUMNS = [
    "learning_rate",
    "momentum",
    "n_train",
    "steps",
    "batch_size",
    "seed",
    "status",
    "test_accuracy",
]


def main(store: str) -> None:
    frame = ns.run_sweep(law.calibration_plan(), store, workers=1, progress=True)
    table = frame[COLUMNS].sort_values(COLUMNS).reset_index(drop=True)
    table.to_csv(TABLE, index=False, float_format="%.6g")
    fitted = ns.fit_batch_size_law(table)
    print(fitted)
    print(fitted.to_dict())


if __name__ == "__main__":
    main(sys.argv[1])
