"""Write down what the law predicts, before the runs that test it: results/predictions.csv.

    python tools/write_predictions.py                      # MNIST
    python tools/write_predictions.py STORE [--seeds 3]    # Fashion-MNIST

On MNIST by the law of the paper's network (noisescale.noise.batch_law.PAPER_LAW). On Fashion-MNIST
its a and c come from the calibrating searches in STORE, which is only read; the power stays. Rows
are appended and never changed: a setting that the table has is left as it is, one whose runs are
in STORE already is refused.
"""

import argparse
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from noisescale.errors import InputError
from noisescale.jobs.progress import Progress
from noisescale.jobs.store import RunStore
from noisescale.noise.batch_law import PAPER_LAW, BatchSizeLaw
from noisescale.paper.law import calibrated
from noisescale.paper.law_cases import CASES, FASHION, PREDICTIONS, Case
from noisescale.paper.runs import Runs
from noisescale.paper.scaling import run_until_interior
from noisescale.paper.section import Circumstances
from noisescale.sweep import RunConfig

TABLE = Path(__file__).parent.parent / "results" / PREDICTIONS


class StoredRuns:
    """What a search asks of its context, answered from a store alone: nothing is run."""

    def __init__(self, store: RunStore, data: str, seeds: int) -> None:
        self.data = self
        self.name, self.seeds, self._store = data, seeds, store
        self.at = Circumstances("full", seeds, data, True, "")
        self.progress = Progress()

    def runs(self, plan: Sequence[RunConfig]) -> Runs:
        try:
            return Runs.of(self._store, [run.key for run in plan])
        except KeyError as error:
            raise InputError(
                f"the calibrating searches are not finished ({error.args[0]}): let them end first."
            ) from None


def calibrated_law(store: RunStore, seeds: int) -> BatchSizeLaw:
    """The law of Fashion-MNIST, from searches that have found their peaks inside."""
    cases = [case for case in FASHION if case.role == "calibrating"]
    starts = [case.setting(PAPER_LAW.predict(**case.at).value) for case in cases]
    context = StoredRuns(store, cases[0].data, seeds)
    return calibrated(run_until_interior(context, starts))  # type: ignore[arg-type]


def refuse_measured(store: RunStore, cases: Iterable[Case]) -> None:
    """A prediction of what has been run is none."""
    frame = store.frame()
    for case in cases if len(frame) else ():
        fields = {"data": case.data, "n_train": case.n_train, "steps": case.steps}
        if Runs(frame, pd.DataFrame(columns=["key"])).where(**fields).keys:
            raise InputError(
                f"N = {case.n_train:,} with T = {case.steps:,} on {case.data} has runs in the "
                "store already: they came before their prediction."
            )


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


def main(arguments: Sequence[str] | None = None, *, table: Path = TABLE) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args(arguments)
    judged = [case for case in FASHION if case.role != "calibrating"]
    missing = without_written(CASES if asked.store is None else judged, table)
    if not missing:
        print(f"{table} has them all: nothing was written.")
        return
    law = PAPER_LAW
    if asked.store is not None:
        with RunStore(asked.store) as store:
            refuse_measured(store, missing)
            law = calibrated_law(store, asked.seeds)
    append([row_of(case, law) for case in missing], table)
    print(law if asked.store is None else f"{law}\n  {asked.seeds} seeds a setting")
    for case in missing:
        print(f"N = {case.n_train:,}, T = {case.steps:,}: {law.predict(**case.at)}")
    print(f"{len(missing)} predictions in {table}: commit it before you run them.")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
