"""The callback in Lightning's own Trainer, against gradients of single examples by definition."""

import logging
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import median_high

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
lightning = pytest.importorskip("lightning", reason="an extra: make torch adds it")
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402

from noisescale.errors import InputError  # noqa: E402
from noisescale.lightning import NoiseScaleCallback  # noqa: E402
from noisescale.noise.watch.record import WatchWarning  # noqa: E402
from oracles.example_gradients import contributions  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # Lightning's own, about workers, loggers and versions
    pytest.mark.filterwarnings("error::noisescale.noise.watch.record.WatchWarning"),
]
F = torch.nn.functional


class Module(lightning.LightningModule):
    """Remembers weights and batches, so that readings can be made again by definition."""

    def __init__(self, dtype=torch.float64, two=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.ReLU(inplace=True), torch.nn.Linear(6, 3)
        ).to(dtype)
        self.seen, self.two = [], two
        self.automatic_optimization = not two

    def training_step(self, batch):
        x, y = batch
        weights = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        self.seen.append((weights, x, y))
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        make = torch.optim.SGD
        if self.two:
            return [make(part.parameters(), lr=0.1) for part in (self.net[0], self.net[2])]
        return make(self.parameters(), lr=0.2, momentum=0.5)


def loader(n=44, size=8, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=generator, dtype=dtype)
    y = torch.randint(3, (n,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size)


def fit(module, callbacks, folder, *, epochs=2, path=None, data=None, **others):
    trainer = lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=epochs,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **({"logger": False, "enable_checkpointing": False} | others),
    )
    trainer.fit(module, data or loader(), ckpt_path=path)
    return trainer


def truth(module, updates):
    """|G|^2 and tr S of every update, whose micro-batches are given; each counts alike."""
    made = []
    for parts in updates:
        net, weights = module.net, module.seen[parts[0]][0]
        net.load_state_dict(weights)
        losses, shares = [], []
        for k in parts:
            _, x, y = module.seen[k]
            losses.append(F.cross_entropy(net(x), y, reduction="none"))
            shares.append(torch.full((len(x),), 1 / (len(x) * len(parts)), dtype=torch.float64))
        weight = torch.cat(shares)
        c = contributions(torch.cat(losses) * weight, list(net.parameters()))
        q, total, squares = weight @ weight, c.sum(0).square().sum(), c.square().sum()
        signal, variance = (total - squares) / (1 - q), (squares - q * total) / (1 - q)
        made.append((float(signal), float(variance / q)))
    return made


def readings(callback):
    return [(row.gradient_sq_norm, row.trace) for row in callback.watch.rows]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_readings_are_by_definition_and_weights_the_same(tmp_path, accumulate):
    options = {"gradient_clip_val": 0.05, "accumulate_grad_batches": accumulate}
    callback, module, plain = NoiseScaleCallback(every=1), Module(), Module()
    fit(module, [callback], tmp_path, **options)
    fit(plain, [], tmp_path, **options)
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)
    # Six batches an epoch, the last of four examples; of fours, the last update has two.
    starts = [(e, k) for e in (0, 6) for k in range(e, e + 6, accumulate)]
    groups = [range(k, min(k + accumulate, e + 6)) for e, k in starts]
    wanted = truth(module, groups)
    assert len(readings(callback)) == len(groups)
    for got, want in zip(readings(callback), wanted, strict=True):
        assert got == pytest.approx(want, rel=1e-8)
    last = callback.watch.rows[-1]
    assert callback.watch.n_train == 44
    assert (last.learning_rate, last.momentum) == (0.2, 0.5)
    assert callback.watch.noise_scale == pytest.approx(
        0.2 * (44 / median_high(row.n_examples for row in callback.watch.rows) - 1) / 0.5
    )
    assert callback.watch.closed


def test_it_logs_under_its_prefix(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    callback = NoiseScaleCallback(every=2, log_key_prefix="gns/", decay=0.0)
    trainer = fit(Module(), [callback], tmp_path, logger=logger)
    assert len(callback.watch.rows) == 6
    logged = pd.read_csv(f"{logger.log_dir}/metrics.csv")
    traces = logged["gns/trace"].dropna()
    assert traces.nunique() == 6
    assert traces.iloc[-1] == pytest.approx(callback.watch.trace.value, rel=1e-6)
    g = float(trainer.callback_metrics["gns/noise_scale"])
    assert g == pytest.approx(callback.watch.noise_scale, rel=1e-6)


def test_the_end_of_a_run_says_the_answer_once(tmp_path, caplog):
    """By Lightning's own logger, which shows such lines unless it is told not to."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    assert logger.isEnabledFor(logging.INFO)
    logger.addHandler(caplog.handler)
    callback = NoiseScaleCallback(every=2)
    fit(Module(), [callback], tmp_path)
    logger.removeHandler(caplog.handler)
    (line,) = {m for m in caplog.messages if "critical batch size" in m}
    assert line == f"noise scale: {repr(callback.watch).removeprefix('Watch: ').splitlines()[0]}"
    assert "6 of 12 updates measured" in line


def test_a_run_that_goes_on_from_a_checkpoint_goes_on_measuring(tmp_path):
    whole, module = NoiseScaleCallback(every=1), Module()
    fit(module, [whole], tmp_path, epochs=4)
    first = NoiseScaleCallback(every=1)
    trainer = fit(Module(), [first], tmp_path, epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    second = NoiseScaleCallback(every=1)
    fit(Module(), [second], tmp_path, epochs=4, path=tmp_path / "half.ckpt")
    assert second.watch.n_updates == whole.watch.n_updates == 24
    one, other = (c.watch.state_dict() for c in (whole, second))
    for name, value in one["whole"].items():
        kept = np.asarray(other["whole"][name], float)
        np.testing.assert_allclose(kept, np.asarray(value, float), rtol=1e-12)
    assert one["n_train"] == other["n_train"]
    np.testing.assert_allclose(readings(second), readings(whole), rtol=1e-12)


def test_a_scaled_loss_is_seen_unscaled(tmp_path):
    plain, scaled = NoiseScaleCallback(every=1), NoiseScaleCallback(every=1)
    data = loader(dtype=torch.float32)
    fit(Module(torch.float32), [plain], tmp_path, data=data, epochs=1)
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
    fit(Module(torch.float32), [scaled], tmp_path, data=data, epochs=1, plugins=[plugin])
    # Half precision has eleven bits, and gradients are sums of such numbers.
    for one, other in zip(readings(plain), readings(scaled), strict=True):
        assert other == pytest.approx(one, rel=0.05, abs=0.01)


def test_several_optimisers_are_not_measured(tmp_path):
    callback = NoiseScaleCallback()
    with pytest.warns(WatchWarning, match="2 optimisers"):
        fit(Module(two=True), [callback], tmp_path, epochs=1)
    assert not callback.watch.rows
    assert math.isnan(callback.watch.interval().value)


def test_settings_that_there_are_not_are_refused():
    with pytest.raises(InputError, match="no setting 'batch'"):
        NoiseScaleCallback(batch=3)


TWO = """
import sys
import torch
from test_lightning import Module, NoiseScaleCallback, fit, loader, readings

if __name__ == "__main__":
    callback = NoiseScaleCallback(every=1)
    fit(Module(), [callback], sys.argv[1], epochs=1, data=loader(16, 8), devices=2, strategy="ddp")
    print("READ", *readings(callback)[0], flush=True)
"""


@pytest.mark.long
def test_two_processes_read_what_one_reads(tmp_path):
    """One update of all 16 examples, so that how they are shared out makes no difference."""
    callback = NoiseScaleCallback(every=1)
    fit(Module(), [callback], tmp_path, epochs=1, data=loader(16, 16))
    (tmp_path / "two.py").write_text(TWO)
    tests = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, tmp_path / "two.py", tmp_path],
        env=os.environ | {"PYTHONPATH": tests, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    told = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("READ")]
    assert len(told) == 2, done.stderr
    for numbers in told:
        assert tuple(map(float, numbers)) == pytest.approx(readings(callback)[0], rel=1e-9)
