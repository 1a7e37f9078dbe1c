"""The throughput of a sweep of short runs, side by side with plain PyTorch loops.

The same runs (the paper's network, N = 1,000, B <= 30, a final evaluation on the test images) are
made by noisescale with one worker and with two, and by PyTorch loops one after the other that may
use every core. All take turns in one process; workers are warm, as in any sweep longer than a
minute. The store's cost is that of writing one run. Ratios are the result.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import torch

import noisescale as ns
from noisescale.data import load_mnist
from noisescale.jobs.engines import LocalEngine

BATCH_SIZES = (1, 5, 10, 30)
LEARNING_RATE, MOMENTUM, N_TRAIN = 0.1, 0.9, 1_000
RESULTS = Path(__file__).parent / "results" / "sweep.json"


def make_plan(steps: int, seeds: range) -> list[ns.RunConfig]:
    return ns.make_plan(
        {
            "n_train": N_TRAIN,
            "learning_rate": LEARNING_RATE,
            "momentum": MOMENTUM,
            "steps": steps,
            "evaluate_at": "final",
        },
        grid={"batch_size": BATCH_SIZES},
        seeds=seeds,
    )


def sweep_seconds(plan: list[ns.RunConfig], engine: LocalEngine) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        frame = ns.run_sweep(plan, folder, engine)
        seconds = time.perf_counter() - began
    assert len(frame) == len(plan)
    return seconds


def torch_run(data: tuple[torch.Tensor, ...], batch_size: int, steps: int) -> float:
    x, y, x_test, y_test = data
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 800), torch.nn.ReLU(), torch.nn.Linear(800, 10)
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    cost = torch.nn.CrossEntropyLoss()
    for _ in range(steps):
        batch = torch.randperm(len(y))[:batch_size]
        optimiser.zero_grad()
        cost(model(x[batch]), y[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        return float((model(x_test).argmax(1) == y_test).float().mean())


def torch_seconds(data: tuple[torch.Tensor, ...], plan: list[ns.RunConfig]) -> float:
    began = time.perf_counter()
    for run in plan:
        torch_run(data, run.batch_size, run.steps)
    return time.perf_counter() - began


def store_seconds(n_runs: int = 300) -> float:
    """To write one run with thirty evaluations, each in a transaction of its own."""
    history = {
        name: list(np.random.default_rng(0).random(31))
        for name in (
            "step",
            "train_accuracy",
            "train_cross_entropy",
            "test_accuracy",
            "test_cross_entropy",
        )
    }
    record = {
        "status": "done",
        "history": history,
        "final": {"steps_done": 1},
        "error": None,
        "duration": 1.0,
        "versions": {"jax": "0"},
        "host": "here",
        "finished": "2026-01-01T00:00:00+00:00",
    }
    plan = make_plan(1_000, range(n_runs // len(BATCH_SIZES)))
    with tempfile.TemporaryDirectory() as folder, ns.RunStore(folder, write=True) as store:
        began = time.perf_counter()
        for run in plan:
            store.statuses([run.key])
            store.add([record | {"key": run.key, "config": run.canonical}])
        return (time.perf_counter() - began) / len(plan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2_000)
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    whole = load_mnist()
    part = whole.subset(n_train=N_TRAIN, seed=0)
    data = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in part)
    data = (data[0], data[1].long(), data[2], data[3].long())
    engines = {n: LocalEngine(n) for n in (1, 2)}
    for engine in engines.values():  # both workers see every shape, likely more than once
        sweep_seconds(make_plan(20, range(4)), engine)
    names = ("one worker", "two workers", "torch loops")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(arguments.rounds):
        plan = make_plan(arguments.steps, range(4 * turn, 4 * turn + 4))
        seconds["one worker"].append(sweep_seconds(plan, engines[1]))
        seconds["torch loops"].append(torch_seconds(data, plan))
        seconds["two workers"].append(sweep_seconds(plan, engines[2]))
        print(f"round {turn}: " + ", ".join(f"{n} {s[-1]:.1f} s" for n, s in seconds.items()))
    for engine in engines.values():
        engine.stop()

    def ratio(slow: str, fast: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))

    written = store_seconds()
    document = {
        "what": f"runs of {arguments.steps} steps at B in {BATCH_SIZES}, {len(plan)} a round",
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "versions": {
            "noisescale": ns.__version__,
            "jax": jax.__version__,
            "torch": torch.__version__,
        },
        "two_workers_over_one": ratio("one worker", "two workers"),
        "sweep_over_torch": ratio("torch loops", "two workers"),
        "store_share_of_a_second": written,
        "seconds": seconds,
    }
    print(f"two workers: {document['two_workers_over_one']:.2f} x the throughput of one")
    print(f"the sweep:   {document['sweep_over_torch']:.2f} x the throughput of PyTorch loops")
    print(f"the store:   {100 * written:.2f} % of a run of one second")
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(f"Written to {RESULTS}")


if __name__ == "__main__":
    main()
