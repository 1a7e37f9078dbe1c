"""The noise of gradients, side by side with PyTorch: times, values and peak memory in one run.

tr S, |G|^2 and the diagonal of S on the paper's network (636,010 parameters) at initialisation:

1. ``ns.gradient_noise`` over all of N = 60,000 MNIST images.
2. PyTorch, one ``backward`` an example: on a part of the images, its time scaled to N.
3. PyTorch, ``torch.func.vmap(grad)`` over blocks of examples, the block size that was fastest; also
   on a part, scaled to N.

All sum the same three things (squared norms, gradients, squared gradients) on both cores, in
float32. noisescale's second pass, from which its intervals come, is part of its time; the peers
give no intervals. Rounds take turns, and the ratio of each round is reported. Memory is the peak of
a process of its own that does nothing else.
"""

import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import noisescale as ns
from noisescale.data import load_mnist
from twins import torch_twin

ROUNDS = 3
LOOP_EXAMPLES = 300
VMAP_EXAMPLES = 3_000
VMAP_BLOCKS = (16, 64, 256)
RESULTS = Path(__file__).parent / "results" / "gradient_noise.json"

# The kernel's own count of the process: getrusage's starts from the parent's.
MEMORY = """
import re
from pathlib import Path
import noisescale as ns
from noisescale.data import load_mnist
def peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) / 2**20
data = load_mnist()
network = ns.paper_network()
before = peak()
ns.gradient_noise(network, network.init(0), (data.x_train, data.y_train))
print(before, peak())
"""


def summary(sq_norms: float, gradient: list, squares: list, n: int) -> dict:
    """tr S and |G|^2 without its bias; the summed squares are computed but only compared in sum."""
    total = sum(float((g.double() ** 2).sum()) for g in gradient)
    assert abs(sum(float(s.double().sum()) for s in squares) / sq_norms - 1) < 1e-3
    return {
        "trace": (sq_norms - total / n) / (n - 1),
        "gradient_sq_norm": (total - sq_norms) / (n * (n - 1)),
    }


def loop(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict:
    gradient = [torch.zeros_like(p) for p in module.parameters()]
    squares = [torch.zeros_like(p) for p in module.parameters()]
    sq_norms = 0.0
    for i in range(len(x)):
        module.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1]).backward()
        for p, g, s in zip(module.parameters(), gradient, squares, strict=True):
            sq_norms += float((p.grad**2).sum())
            g += p.grad
            s.addcmul_(p.grad, p.grad)
    return summary(sq_norms, gradient, squares, len(x))


def vmapped(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, block: int) -> dict:
    params = {name: p.detach() for name, p in module.named_parameters()}

    def nll(params: dict, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        outputs = torch.func.functional_call(module, params, (x[None],))
        return torch.nn.functional.cross_entropy(outputs, y[None])

    each = torch.func.vmap(torch.func.grad(nll), in_dims=(None, 0, 0))
    gradient = {name: torch.zeros_like(p) for name, p in params.items()}
    squares = {name: torch.zeros_like(p) for name, p in params.items()}
    sq_norms = 0.0
    for start in range(0, len(x), block):
        g = each(params, x[start : start + block], y[start : start + block])
        for name, leaf in g.items():
            gradient[name] += leaf.sum(0)
            squared = leaf.square_().sum(0)
            squares[name] += squared
            sq_norms += float(squared.sum())
    return summary(sq_norms, list(gradient.values()), list(squares.values()), len(x))


def main() -> None:
    data = load_mnist()
    network = ns.paper_network()
    params = network.init(0)
    module = torch_twin(params)
    x, y = torch.tensor(data.x_train), torch.tensor(data.y_train, dtype=torch.long)
    N = len(y)

    def seconds(function, *args) -> float:
        began = time.perf_counter()
        function(*args)
        return time.perf_counter() - began

    few = 500
    ours = ns.gradient_noise(network, params, (data.x_train[:few], data.y_train[:few]))
    peers = {"loop": loop(module, x[:few], y[:few]), "vmap": vmapped(module, x[:few], y[:few], 64)}
    agreement = {
        name: max(abs(found[key] / getattr(ours, key) - 1) for key in found)
        for name, found in peers.items()
    }
    best = min(VMAP_BLOCKS, key=lambda block: seconds(vmapped, module, x[:1024], y[:1024], block))

    seconds(ns.gradient_noise, network, params, (data.x_train, data.y_train))  # compiles
    rounds = []
    for _ in range(ROUNDS):
        mine = seconds(ns.gradient_noise, network, params, (data.x_train, data.y_train))
        one = seconds(loop, module, x[:LOOP_EXAMPLES], y[:LOOP_EXAMPLES]) * N / LOOP_EXAMPLES
        many = seconds(vmapped, module, x[:VMAP_EXAMPLES], y[:VMAP_EXAMPLES], best)
        many *= N / VMAP_EXAMPLES
        rounds.append({"loop": one / mine, "vmap": many / mine, "seconds": mine})
        print(f"noisescale {mine:.1f} s; loop {one / mine:.1f} x, vmap {many / mine:.1f} x as long")
    told = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    before, peak = map(float, told.stdout.split())
    result = {
        "what": "time over noisescale's, N = 60,000, the paper's network",
        "loop": statistics.median(r["loop"] for r in rounds),
        "vmap": statistics.median(r["vmap"] for r in rounds),
        "vmap_block": best,
        "rounds": rounds,
        "largest relative difference on 500 examples": agreement,
        "peak_gib": peak,
        "peak_gib_with_the_data_alone": before,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "noisescale": ns.__version__,
        },
    }
    print(
        f"median: loop {result['loop']:.1f} x, vmap (blocks of {best}) {result['vmap']:.1f} x; "
        f"values agree to {max(agreement.values()):.1g}; peak memory {peak:.2f} GiB, of which "
        f"{before:.2f} before the call"
    )
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
