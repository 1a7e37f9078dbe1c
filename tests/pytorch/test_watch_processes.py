"""DistributedDataParallel: two processes read what one process with the whole batch reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from noisescale.torch import watch  # noqa: E402

pytestmark = pytest.mark.frameworks

CODE = """
import json, sys, torch, warnings
from torch import nn
from torch.nn import functional as F
from noisescale.torch import watch

rank, world, folder, passes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))
model = model.double()
x, y = torch.randint(9, (3, 16, 4)), torch.randint(3, (3, 16))
called = model
if world > 1:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )
    called = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
noise = watch(called, optimizer, n_train=100, every=1, per_layer=True)
warnings.simplefilter("ignore")
for step in range(3):
    optimizer.zero_grad()
    mine = torch.arange(rank, 16, world).chunk(passes)
    for k, part in enumerate(mine):
        factor = float("inf") if step == 1 and rank == 0 and world > 1 else 1.0
        scale = factor / passes
        if world > 1 and k < passes - 1:
            with called.no_sync():
                (F.cross_entropy(called(x[step, part]), y[step, part]) * scale).backward()
        else:
            (F.cross_entropy(called(x[step, part]), y[step, part]) * scale).backward()
    if step == 1:  # thrown away, as mixed precision does
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
    optimizer.step()
if world > 1:
    torch.distributed.destroy_process_group()
frame = noise.history
rows = frame[["update", "n_examples", "gradient_sq_norm", "trace", "noise_scale"]].values.tolist()
print(json.dumps({"rows": rows, "skipped": noise.whole.n_skipped, "layers": list(noise.layers.index)}))
"""


def run(world, folder, passes):
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(watch.__code__.co_filename).parents[2])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CODE, str(rank), str(world), str(folder), str(passes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for rank in range(world)
    ]
    told = [process.communicate(timeout=240) for process in started]
    assert all(process.returncode == 0 for process in started), told
    return [json.loads(out.splitlines()[-1]) for out, _ in told]


@pytest.mark.parametrize("passes", [1, 2])
def test_two_processes_read_what_one_reads(tmp_path, passes):
    first, second = run(2, tmp_path / "two", passes)
    (alone,) = run(1, tmp_path / "one", passes)
    assert first == second
    assert first["layers"] == alone["layers"]
    # The step that overflowed on one of them is skipped on both.
    assert first["skipped"] == 1
    assert [row[0] for row in first["rows"]] == [0, 2]
    kept = [row for row in alone["rows"] if row[0] != 1]
    for row, wanted in zip(first["rows"], kept, strict=True):
        assert row == pytest.approx(wanted, rel=1e-9)
