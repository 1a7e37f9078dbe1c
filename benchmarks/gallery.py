"""The critical batch size through real trainings, and by direct measurement: docs/gallery.md.

    python benchmarks/gallery.py [text] [images] [trainer] [direct]

Draws docs/gallery-NAME.png and writes what was measured into benchmarks/results/gallery.json. Each
takes a minute or two of one core.

text     a transformer on the sources of Python's standard library, byte by byte, by AdamW
images   a convolutional network on MNIST, by SGD with momentum
trainer  a small Llama from a configuration by transformers' Trainer: trained on those sources, then
         fine-tuned on the sources of noisescale
direct   the network of `images` from a checkpoint on: gradients' word against branches
"""

import json
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import noisescale as ns
from noisescale.drawing import house_style
from noisescale.noise.watch.ratio import RunningRatio
from noisescale.torch import gradient_noise, watch
from noisescale.uncertainty import Estimate, finite_only

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "gallery.json"
F, nn = torch.nn.functional, torch.nn
LENGTH = 64


def sources(folder: Path, n_bytes: int) -> torch.Tensor:
    """Python files of a folder one after the other, cut into sequences of bytes."""
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:n_bytes]
    length = len(text) // LENGTH * LENGTH
    return torch.tensor(np.frombuffer(text[:length], np.uint8).reshape(-1, LENGTH).astype(np.int64))


def standard_library(n_bytes: int = 1_000_000) -> torch.Tensor:
    return sources(Path(sysconfig.get_path("stdlib")), n_bytes)


class Transformer(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, width: int = 96, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.bytes(x) + self.places(torch.arange(x.shape[1])).expand(len(x), -1, -1)
        for block in self.blocks:
            h = block(h)
        return self.out(self.norm(h))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        B, T, W = h.shape
        qkv = self.qkv(self.first(h)).view(B, T, 3, self.heads, -1)  # (B, T, 3, heads, W/heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, heads, T, W/heads)
        h = h + self.mix(mixed.transpose(1, 2).reshape(B, T, W))
        return h + self.narrow(F.gelu(self.wide(self.second(h))))


class Convolutions(nn.Module):
    """conv-GroupNorm-relu twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=2, padding=2),
            nn.GroupNorm(2, 8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(16 * 49, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.view(-1, 1, 28, 28))


def mnist(n_train: int, n_test: int) -> tuple[torch.Tensor, ...]:
    data = ns.data.load_mnist()
    return (
        torch.tensor(np.asarray(data.x_train[:n_train])),
        torch.tensor(np.asarray(data.y_train[:n_train]), dtype=torch.int64),
        torch.tensor(np.asarray(data.x_test[:n_test])),
        torch.tensor(np.asarray(data.y_test[:n_test]), dtype=torch.int64),
    )


def summary(record, *, unit: str) -> dict:
    """A few points of a history, and the advice at the end."""
    rows = record.rows
    at = [rows[k] for k in np.linspace(len(rows) // 10, len(rows) - 1, 5).astype(int)]
    points = [
        {"update": r.update, "value": r.critical_batch_size, "low": r.low, "high": r.high}
        for r in at
    ]
    return {"unit": unit, "points": points, "advice": repr(record.advice()), "notes": record.notes}


def draw(name: str, *panels) -> None:
    with house_style():
        figure = Figure(figsize=(5.6 * len(panels), 3.6), layout="constrained")
        for axes, (title, panel) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            panel(axes)
            axes.set_title(title)
        figure.savefig(ROOT / "docs" / f"gallery-{name}.png", dpi=80)


def text(updates: int = 800) -> dict:
    torch.manual_seed(0)
    data, model = standard_library(), Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noise = watch(model, optimizer, n_train=len(data), every=4, unit="token", decay=0.97)
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        x = data[torch.randint(len(data), (32,), generator=generator)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:])
        loss.backward()
        optimizer.step()
    noise.close()
    draw("text", ("a transformer on Python's sources", noise.plot))
    parameters = sum(p.numel() for p in model.parameters())
    return summary(noise, unit="token") | {"parameters": parameters, "loss": loss.item()}


def images(updates: int = 1500) -> dict:
    torch.manual_seed(0)
    x, y, *_ = mnist(60_000, 1)
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    noise = watch(model, optimizer, n_train=len(x), every=2, decay=0.98)
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        batch = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    noise.close()
    advice = noise.advice()
    draw("images", ("a CNN on MNIST", noise.plot), ("what another batch would cost", advice.plot))
    return summary(noise, unit="example") | {"loss": loss.item()}


def trainer(updates: int = 500) -> dict:
    import transformers

    from noisescale.transformers import NoiseScaleCallback

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=LENGTH,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config)
    own = torch.cat([sources(path, 10**6) for path in sorted((ROOT / "src").rglob("*/"))])
    phases = {}
    for name, data, rate, steps in (
        ("training", standard_library(), 2e-3, updates),
        ("fine-tuning", own, 5e-4, updates // 2),
    ):
        callback = NoiseScaleCallback(every=2, unit="token", decay=0.97)
        with tempfile.TemporaryDirectory() as folder:
            transformers.Trainer(
                model=model,
                args=transformers.TrainingArguments(
                    output_dir=folder,
                    per_device_train_batch_size=8,
                    gradient_accumulation_steps=2,
                    max_steps=steps,
                    learning_rate=rate,
                    lr_scheduler_type="constant",
                    save_strategy="no",
                    logging_steps=100,
                    report_to=[],
                    disable_tqdm=True,
                    use_cpu=True,
                ),
                train_dataset=[{"input_ids": row, "labels": row} for row in data],
                callbacks=[callback],
            ).train()
        phases[name] = callback.watch
    draw("trainer", *((name, record.plot) for name, record in phases.items()))
    return {name: summary(record, unit="token") for name, record in phases.items()}


def direct(updates: int = 200, n_examples: int = 8192, seeds: int = 8) -> dict:
    """From a checkpoint on, by SGD without momentum."""
    torch.manual_seed(0)
    x, y, *_ = mnist(60_000, 1)
    model, generator = Convolutions(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.025)
    for _ in range(updates):
        batch = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    checkpoint = {name: p.numpy().copy() for name, p in model.state_dict().items()}
    # What gradients say: of many images at the checkpoint, and on the smallest batch's way.
    noise = gradient_noise(model, (x[:8000], y[:8000]))
    exact = Estimate(noise.critical_batch_size or np.nan, low=noise.low, high=noise.high)
    rate, readings = 0.00625, []
    at = {"batch_size": 16, "learning_rate": rate, "n_examples": n_examples}
    for seed in range(seeds):
        seen = {}
        branch(checkpoint, **at, seed=seed, seen=seen)
        readings.append([(row.gradient_sq_norm, row.trace) for row in seen["record"].rows])
    quarter = average(reading for row in readings for reading in row[: len(row) // 4])
    proxy = average(reading for row in readings for reading in row)
    found = ns.measure_critical_batch(
        branch,
        checkpoint,
        batch_sizes=[16, 64, 128, 256, 512],
        learning_rate=rate,
        n_examples=n_examples,
        seeds=seeds,
        workers=1,
        progress=True,
    )
    print(found)
    draw("direct", ("examples to the same loss", lambda axes: found.plot(axes, proxy=proxy)))
    return {
        "at_checkpoint": exact.to_dict(),
        "first_quarter": quarter.to_dict(),
        "proxy": proxy.to_dict(),
        "direct": found.to_dict(),
        "text": repr(found),
        "seconds": found.seconds,
    }


def average(readings) -> Estimate:
    """Over all of them alike."""
    ratio = RunningRatio()
    for signal, trace in readings:
        ratio.take(signal, trace)
    return ratio.interval()


def branch(checkpoint, *, batch_size, learning_rate, n_examples, seed, seen=None):
    """Loss on the first 2,000 test images on the way; with ``seen``, watched."""
    torch.set_num_threads(1)
    x, y, x_test, y_test = mnist(60_000, 2_000)
    model = Convolutions()
    model.load_state_dict({name: torch.tensor(p) for name, p in checkpoint.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    if seen is not None:
        seen["record"] = watch(model, optimizer, n_train=len(x), every=1, decay=0.0)
    generator = torch.Generator().manual_seed(seed)

    def loss() -> float:
        with torch.no_grad():
            return float(F.cross_entropy(model(x_test), y_test))

    curve, done = [(0, loss())], 0
    marks = iter(np.linspace(0, n_examples, 17)[1:])
    mark = next(marks)
    while done < n_examples:
        batch = torch.randint(len(x), (batch_size,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        done += batch_size
        if done >= mark:
            curve.append((done, loss()))
            while done >= mark:
                mark = next(marks, np.inf)
    return curve


def main() -> None:
    for name in sys.argv[1:] or ("text", "images", "trainer", "direct"):
        began = time.process_time()
        found = globals()[name]()
        seconds = time.process_time() - began + found.get("seconds", 0.0)  # of workers
        measured = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        measured[name] = found | {"seconds": round(seconds)}
        print(json.dumps(measured[name], indent=1))
        RESULTS.write_text(json.dumps(finite_only(measured), indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
