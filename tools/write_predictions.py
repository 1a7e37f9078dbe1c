"""Write down what the law predicts, before the runs that test it: results/predictions.csv.

    python tools/write_predictions.py

By the law of the paper's network (noisescale.noise.batch_law.PAPER_LAW). Rows are appended and
never changed: a setting that the table has is left as it is.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from noisescale.errors import InputError
from noisescale.noise.batch_law import PAPER_LAW, BatchSizeLaw
from noisescale.paper.law_cases import CASES, PREDICTIONS, Case

TABLE = Path(__file__).parent.parent / "results" / PREDICTIONS


def row_of(case: Case, law: BatchSizeLaw) -> dict[str, object]:
    best = law.predict(**case.at)
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
        "scale": float(f"{law.scale.value:.4g}"),
        "power": law.power.value,
        "epochs": float(f"{law.epochs.value:.4g}"),
        "sharpness": law.sharpness,
        "fixed_on": datetime.now(UTC).date().isoformat(),
    }


def without_written(cases: Iterable[Case], table: Path) -> list[Case]:
    """Those that the table lacks."""
    if not table.exists():
        return list(cases)
    names = ["data", "learning_rate", "momentum", "n_train", "steps", "hidden_widths"]
    written = {tuple(row) for row in pd.read_csv(table)[names].itertuples(index=False)}
    return [
        case
        for case in cases
        if (*(getattr(case, name) for name in names[:-1]), str(list(case.hidden_widths)))
        not in written
    ]


def append(rows: Sequence[dict[str, object]], table: Path) -> None:
    """Add rows below those that are there, which keep every byte."""
    frame = pd.DataFrame(rows)
    header = list(pd.read_csv(table, nrows=0).columns) if table.exists() else None
    if header not in (None, list(frame.columns)):
        raise InputError(f"{table} has other columns: it was left as it is.")
    with table.open("a", encoding="utf-8", newline="") as file:
        frame.to_csv(file, index=False, header=header is None, lineterminator="\n")


def main(*, table: Path = TABLE) -> None:
    missing = without_written(CASES, table)
    if not missing:
        print(f"{table} has them all: nothing was written.")
        return
    append([row_of(case, PAPER_LAW) for case in missing], table)
    print(PAPER_LAW)
    for case in missing:
        print(f"N = {case.n_train:,}, T = {case.steps:,}: {PAPER_LAW.predict(**case.at)}")
    print(f"{len(missing)} predictions in {table}: commit it before you run them.")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
