"""Write down what the law predicts, before the runs that test it: results/predictions.csv.

    python tools/write_predictions.py

On MNIST by the law of the paper's network (noisescale.noise.batch_law.PAPER_LAW).
"""

from pathlib import Path

import pandas as pd

from noisescale.noise.batch_law import PAPER_LAW
from noisescale.paper.law_cases import CASES, Case

RESULTS = Path(__file__).parent.parent / "results"


def row_of(case: Case) -> dict[str, object]:
    best = PAPER_LAW.predict(**case.at)
    return {
        "data": case.data,
        "learning_rate": case.learning_rate,
        "momentum": case.momentum,
        "n_train": case.n_train,
        "steps": case.steps,
        "hidden_widths": list(case.hidden_widths),
        "role": case.role,
        "predicted": round(best.value, 2),
        "low": round(best.low, 2),
        "high": round(best.high, 2),
        "branch": best.branch,
        "scale": PAPER_LAW.scale.value,
        "power": PAPER_LAW.power.value,
        "epochs": PAPER_LAW.epochs.value,
        "sharpness": PAPER_LAW.sharpness,
        "fixed_on": "2026-11-16",
    }


if __name__ == "__main__":
    frame = pd.DataFrame([row_of(case) for case in CASES])
    frame.to_csv(RESULTS / "predictions.csv", index=False)
    print(frame.to_string())
