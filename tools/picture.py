"""Draw docs/rule.png, the picture in README, from results/figure5.csv.

    python tools/picture.py

The picture carries the sha256 of the table, so that a test sees when it is of other runs.
"""

import hashlib
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import noisescale as ns

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "results" / "figure5.csv"
PICTURE = ROOT / "docs" / "rule.png"


def source() -> str:
    return f"results/{TABLE.name} sha256 {hashlib.sha256(TABLE.read_bytes()).hexdigest()}"


def main() -> None:
    runs = pd.read_csv(TABLE)
    runs = runs[(runs.n_train == 1000) & (runs.momentum == 0.9)]
    runs = runs.drop(columns="cost_convention")  # learning rates stay in the paper's unit
    rule = ns.fit_scaling_rule(runs, "learning_rate")
    points = [point for point in rule.points if point.peak.low is not None]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    for rate in (0.3, 1.0, 3.0):
        seeds = runs[runs.learning_rate == rate].groupby("batch_size").test_accuracy
        left.errorbar(
            seeds.mean().index, seeds.mean(), seeds.sem(), marker="o", ms=3, label=f"ε = {rate:g}"
        )
    left.set(xscale="log", xlabel="batch size B", ylabel="test accuracy", ylim=(0.84, 0.925))
    left.set_title("There is a best batch size ...")
    left.legend(frameon=False)
    rates = [point.value for point in points]
    best = [point.peak.fitted for point in points]
    reach = [
        [point.peak.fitted - point.peak.low for point in points],
        [point.peak.high - point.peak.fitted for point in points],
    ]
    right.errorbar(rates, best, reach, fmt="o", label="measured, 95 %")
    scale = best[rates.index(1.0)]
    right.plot(rates, [scale * rate for rate in rates], "--", color="gray", label="B ∝ ε")
    right.set(xscale="log", yscale="log", xlabel="learning rate ε", ylabel="best batch size")
    right.set_title(f"... in proportion to ε: log-log slope {rule.slope.value:.2f}")
    right.legend(frameon=False)
    figure.savefig(PICTURE, dpi=100, metadata={"Source": source()})


if __name__ == "__main__":
    main()
