"""The same little training in one process or several: ``python FILE RANK WORLD FOLDER``."""

import json
import math
import sys
import warnings
from datetime import timedelta

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from noisescale.errors import InputError
from noisescale.torch import watch
from noisescale.torch.adapter import begin, settings


def train(rank, world, passes):
    """Three updates of which the second overflows in the first of several processes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Flatten(), nn.Linear(24, 3))
    model = model.double()
    x, y = torch.randint(9, (3, 16, 4)), torch.randint(3, (3, 16))
    called = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = watch(called, optimizer, n_train=100, every=1, per_layer=True)

    def backward(step, part):
        overflow = step == 1 and rank == 0
        loss = cross_entropy(called(x[step, part]), y[step, part]) / passes
        (loss * (math.inf if overflow else 1.0)).backward()

    for step in range(3):
        optimizer.zero_grad()
        *first, last = torch.arange(rank, 16, world).chunk(passes)
        for part in first:
            if world > 1:
                with called.no_sync():
                    backward(step, part)
            else:
                backward(step, part)
        backward(step, last)
        if step == 1:  # thrown away, as mixed precision does
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        optimizer.step()
    columns = ["update", "n_examples", "gradient_sq_norm", "trace", "noise_scale"]
    return {
        "rows": noise.history[columns].to_numpy().tolist(),
        "skipped": noise.whole.n_skipped,
        "layers": noise.layers[["gradient_sq_norm", "trace"]].T.to_dict(),
    }


def paced(rank):
    """Which updates are measured if the pace is chosen, where processes have unlike batches."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 3))
    called, n = nn.parallel.DistributedDataParallel(model), 8 * (1 + 3 * rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = watch(called, optimizer, overhead=0.4)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(called(torch.randn(n, 32)), torch.randint(3, (n,))).backward()
        optimizer.step()
    return {"every": noise.every, "updates": [row.update for row in noise.rows]}


def sharded(world):
    """What is said of a model whose gradients are in parts: by itself, and by callbacks."""
    model = nn.Sequential(nn.Linear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        watch(model, optimizer)
    except InputError as error:
        record = begin(model, optimizer, settings({}), dataset=None, hooked=True)
        return [str(error), *record.notes]


if __name__ == "__main__":
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    meeting = f"file://{sys.argv[3]}/meeting"
    torch.distributed.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    trained = [train(rank, world, passes) for passes in (1, 2)]
    print(json.dumps([*trained, paced(rank), sharded(world)]))
    torch.distributed.destroy_process_group()
