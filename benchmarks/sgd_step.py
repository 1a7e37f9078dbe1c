"""The cost of one SGD step of the paper's network, side by side with PyTorch.

Three implementations of the same update (784-800-10 network, momentum, batches drawn without
replacement, sampling included) take turns in one run on the same images:

- noisescale: ``ns.train`` as users call it;
- torch: a plain loop, ``nn.Sequential`` and ``optim.SGD``;
- torch fused: the same step written out by hand, without autograd, gradients accumulated straight
  into the momentum buffer.

The floor is what the arithmetic and the memory traffic of a dense step cost at the rates this
machine reached in the same run. Ratios are the result; times depend on the machine and its mood.
noisescale leaves out pixels that are zero in every training image, so the floor is given for all
784 pixels and for those that are left.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch

import noisescale as ns
from noisescale.data import load_mnist
from noisescale.training import BatchStream
from noisescale.training.features import live_features
from noisescale.training.sampling import block_length

HIDDEN, CLASSES, PIXELS = 800, 10, 784
LEARNING_RATE, MOMENTUM = 0.1, 0.9
CASES = [(1, 1_000), (10, 1_000), (30, 1_000), (100, 1_000), (300, 1_000), (1_000, 1_000)]
CASES.append((30, 60_000))
RESULTS = Path(__file__).parent / "results" / "sgd_step.json"

# (x, y, batch size, seconds to spend) -> seconds per step
Step = Callable[[np.ndarray, np.ndarray, int, float], float]


def noisescale_step(x: np.ndarray, y: np.ndarray, batch_size: int, budget: float) -> float:
    """From the progress reports of one ``ns.train``, the first of which includes compilation.

    Batches are drawn a block of many steps at a time, seldom within a short turn, so the cost of
    drawing is measured apart and added in full.
    """
    model = ns.paper_network()
    marks: list[tuple[int, float]] = []

    class EnoughError(Exception):
        pass

    def note(progress: ns.Progress) -> None:
        marks.append((progress.step, time.perf_counter()))
        if len(marks) > 1 and marks[-1][1] - marks[0][1] > budget:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        ns.train(
            model,
            model.init(0),
            (x, y),
            learning_rate=LEARNING_RATE,
            momentum=MOMENTUM,
            batch_size=batch_size,
            steps=10**9,
            evaluate_at="final",
            callback=note,
        )
    (first, began), (last, ended) = marks[0], marks[-1]
    stream = BatchStream(
        "without_replacement", n_train=len(y), batch_size=batch_size, rng=np.random.default_rng(0)
    )
    drawing = timed_loop(lambda: stream.take(block_length(batch_size)), 0.05)
    return (ended - began) / (last - first) + drawing / block_length(batch_size)


def timed_loop(step: Callable[[], None], budget: float) -> float:
    """Mean seconds per call over about ``budget`` seconds, after a warm-up."""
    for _ in range(3):
        step()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < budget:
        for _ in range(5):
            step()
        steps += 5
    return (time.perf_counter() - began) / steps


def torch_batches(n_train: int, batch_size: int) -> Callable[[], torch.Tensor]:
    rng = np.random.default_rng(0)
    return lambda: torch.from_numpy(
        rng.choice(n_train, batch_size, replace=False, shuffle=False).astype(np.int64)
    )


def torch_step(x: np.ndarray, y: np.ndarray, batch_size: int, budget: float) -> float:
    torch.manual_seed(0)
    x_all, y_all = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    network = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    )
    loss = torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    draw = torch_batches(len(y), batch_size)

    def step() -> None:
        batch = draw()
        optimiser.zero_grad()
        loss(network(x_all[batch]), y_all[batch]).backward()
        optimiser.step()

    return timed_loop(step, budget)


@torch.no_grad()
def torch_fused_step(x: np.ndarray, y: np.ndarray, batch_size: int, budget: float) -> float:
    torch.manual_seed(0)
    x_all, y_all = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    shapes = [(PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,)]
    w1, b1, w2, b2 = params = [torch.randn(shape) * 0.03 for shape in shapes]
    a1, c1, a2, c2 = accumulators = [torch.zeros(shape) for shape in shapes]
    xb = torch.empty(batch_size, PIXELS)
    hidden = torch.empty(batch_size, HIDDEN)
    back = torch.empty(batch_size, HIDDEN)
    rows = torch.arange(batch_size)
    draw = torch_batches(len(y), batch_size)

    def step() -> None:
        batch = draw()
        torch.index_select(x_all, 0, batch, out=xb)
        torch.addmm(b1, xb, w1, out=hidden).relu_()
        error = torch.softmax(torch.addmm(b2, hidden, w2), dim=1)  # becomes d cost / d logits
        error[rows, y_all[batch]] -= 1
        error /= batch_size
        torch.mm(error, w2.T, out=back)
        back.mul_(hidden > 0)
        a2.addmm_(hidden.T, error, beta=MOMENTUM)
        c2.mul_(MOMENTUM).add_(error.sum(0))
        a1.addmm_(xb.T, back, beta=MOMENTUM)
        c1.mul_(MOMENTUM).add_(back.sum(0))
        torch._foreach_add_(params, accumulators, alpha=-LEARNING_RATE)

    return timed_loop(step, budget)


IMPLEMENTATIONS: dict[str, Step] = {
    "noisescale": noisescale_step,
    "torch": torch_step,
    "torch_fused": torch_fused_step,
}


def machine_rates() -> tuple[float, float]:
    """The best matrix-product rate (flop/s) and update bandwidth (byte/s) of JAX and PyTorch."""
    n = 1536
    square = np.random.default_rng(0).standard_normal((n, n), np.float32)
    on_torch, on_jax = torch.from_numpy(square), jnp.asarray(square)
    jax_product = jax.jit(lambda a: a @ a)
    product = min(
        timed_loop(lambda: torch.mm(on_torch, on_torch), 0.5),
        timed_loop(lambda: jax_product(on_jax).block_until_ready(), 0.5),
    )
    # The momentum update alone, on arrays the size of the paper's network: reads A and w, writes
    # both, in whatever cache they fit.
    size = PIXELS * HIDDEN
    w, a = torch.zeros(size), torch.ones(size)

    def torch_update() -> None:
        a.mul_(MOMENTUM)
        w.add_(a, alpha=-LEARNING_RATE)

    @jax.jit
    def jax_updates(w: jax.Array, a: jax.Array) -> tuple[jax.Array, jax.Array]:
        def update(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            w, a = carry
            a = MOMENTUM * a
            return w - LEARNING_RATE * a, a

        return jax.lax.fori_loop(0, 100, update, (w, a))

    state = (jnp.zeros(size), jnp.ones(size))
    bandwidth = max(
        4 * size * 5 / timed_loop(torch_update, 0.5),  # PyTorch touches A once more
        4 * size * 4 * 100 / timed_loop(lambda: jax.block_until_ready(jax_updates(*state)), 0.5),
    )
    return 2 * n**3 / product, bandwidth


def floor(batch_size: int, pixels: int, flop_rate: float, bandwidth: float) -> float:
    """Seconds that a dense step cannot beat: forward, then backward fused with the update.

    Each part costs its arithmetic or its traffic, whichever is longer. Forward reads the weights;
    the best update reads and writes weights and accumulator, the gradient never stored.
    """
    weights = pixels * HIDDEN + HIDDEN * CLASSES
    arithmetic = 2 * batch_size * weights / flop_rate
    traffic = 4 * weights / bandwidth
    return max(arithmetic, traffic) + max(arithmetic, 4 * traffic)


def summary(
    times: dict[str, list[float]],
    batch_size: int,
    n_train: int,
    pixels: int,
    flop_rate: float,
    bandwidth: float,
) -> dict[str, object]:
    ours = statistics.median(times["noisescale"])
    dense, live = (floor(batch_size, width, flop_rate, bandwidth) for width in (PIXELS, pixels))
    return {
        "batch_size": batch_size,
        "n_train": n_train,
        "live_pixels": pixels,
        "seconds": {name: statistics.median(values) for name, values in times.items()},
        "all_seconds": times,
        "floor_seconds": dense,
        "floor_seconds_live_pixels": live,
        "speedup_over_torch": paired_ratio(times["torch"], times["noisescale"]),
        "speedup_over_torch_fused": paired_ratio(times["torch_fused"], times["noisescale"]),
        "fraction_of_floor": dense / ours,
        "fraction_of_floor_live_pixels": live / ours,
    }


def paired_ratio(slow: list[float], fast: list[float]) -> float:
    """Median over rounds of the ratio within a round, where the machine's mood is the same."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns each implementation takes")
    parser.add_argument("--seconds", type=float, default=0.7, help="length of a turn")
    arguments = parser.parse_args()

    data = load_mnist()
    sets = {n: (data.x_train[:n], data.y_train[:n]) for n in {n for _, n in CASES}}
    times = {case: {name: [] for name in IMPLEMENTATIONS} for case in CASES}
    rates = []
    for turn in range(arguments.rounds):
        print(f"round {turn + 1} of {arguments.rounds}", file=sys.stderr)
        rates.append(machine_rates())
        for batch_size, n_train in CASES:
            for name, step in IMPLEMENTATIONS.items():
                seconds = step(*sets[n_train], batch_size, arguments.seconds)
                times[batch_size, n_train][name].append(seconds)
    flop_rate, bandwidth = (max(rate) for rate in zip(*rates, strict=True))
    rows = [
        summary(times[case], *case, len(live_features(sets[case[1]][0])), flop_rate, bandwidth)
        for case in CASES
    ]
    growth = paired_ratio(times[30, 60_000]["noisescale"], times[30, 1_000]["noisescale"])

    print(
        f"{'B':>5} {'N':>6} | ms per step: noisescale   torch  fused   floor | "
        "torch/ns  fused/ns  floor/ns (live pixels)"
    )
    for row in rows:
        seconds = row["seconds"]
        print(
            f"{row['batch_size']:5d} {row['n_train']:6d} | {1e3 * seconds['noisescale']:22.3f} "
            f"{1e3 * seconds['torch']:7.3f} {1e3 * seconds['torch_fused']:6.3f} "
            f"{1e3 * row['floor_seconds']:7.3f} | {row['speedup_over_torch']:8.2f} "
            f"{row['speedup_over_torch_fused']:9.2f} {row['fraction_of_floor']:9.2f} "
            f"({row['fraction_of_floor_live_pixels']:.2f})"
        )
    print(f"A step at B = 30 costs {growth:.2f} x as much with N = 60,000 as with N = 1,000.")
    RESULTS.parent.mkdir(exist_ok=True)
    document = {
        "what": "one SGD step of the paper's network, sampling included",
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "versions": {
            "noisescale": ns.__version__,
            "jax": jax.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "flop_rate": flop_rate,
        "bandwidth": bandwidth,
        "rounds": arguments.rounds,
        "cost_of_large_n": growth,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(f"Written to {RESULTS}")


if __name__ == "__main__":
    main()
