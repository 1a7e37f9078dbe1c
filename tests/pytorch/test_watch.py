"""Watching a run under what happens in runs, against gradients of single examples by definition."""

import copy
import io
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from torch.utils.checkpoint import checkpoint  # noqa: E402

import noisescale as ns  # noqa: E402
from noisescale.errors import InputError  # noqa: E402
from noisescale.noise.watch.ratio import RunningRatio  # noqa: E402
from noisescale.noise.watch.record import WatchWarning  # noqa: E402
from noisescale.torch import watch  # noqa: E402
from noisescale.torch.loss_weight import row_weight  # noqa: E402
from noisescale.torch.optimizers import adam_metric  # noqa: E402
from oracles.example_gradients import contributions, noise_of  # noqa: E402
from pytorch.watched_net import Net, close, data, last, made, sgd, update, wanted  # noqa: E402

nn = torch.nn
F = nn.functional
pytestmark = [
    pytest.mark.frameworks,
]


def test_it_has_the_answer_and_its_interval():
    model, optimizer = made(), None
    optimizer = sgd(model, lr=1e-9, momentum=0.5)  # one place, so that nothing drifts
    noise = watch(model, optimizer, n_train=600, every=1, decay=0.0)
    assert noise.critical_batch_size is None
    for k in range(90):
        update(model, optimizer, *data(60, seed=k))
    estimate = noise.interval()
    assert noise.critical_batch_size == estimate.value
    assert estimate.low < estimate.value < estimate.high
    assert noise.noise_scale == pytest.approx(ns.noise_scale(1e-9, 60, 600, 0.5))
    frame = noise.history
    assert list(frame["update"]) == list(range(90))
    mean = frame["trace"].mean() / frame["gradient_sq_norm"].mean()
    assert noise.critical_batch_size == pytest.approx(mean)
    assert f"critical batch size {estimate}" in repr(noise)
    assert noise.to_dict()["n_updates"] == 90
    assert noise.notes == ()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_mean_and_sum(reduction):
    model, (x, y) = made(), data()
    truth, optimizer = wanted(model, x, y), sgd(model)
    noise = watch(model, optimizer, every=1, reduction=reduction)
    update(model, optimizer, x, y, reduction)
    close(last(noise), truth)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation_and_ragged_batches(set_to_none):
    """Three micro-batches, the last one shorter, whose means count alike."""
    model, (x, y) = made(), data()
    parts = [slice(0, 5), slice(5, 10), slice(10, 12)]
    losses = F.cross_entropy(model(x), y, reduction="none")
    sizes = torch.tensor([5, 5, 2])
    weight = (1 / (3 * sizes.double())).repeat_interleave(sizes)
    c = contributions(losses * weight, list(model.parameters()))
    optimizer = sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=1)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        for p in parts:
            (F.cross_entropy(model(x[p]), y[p]) / 3).backward()
        optimizer.step()
    q = float((weight**2).sum())
    total, squares = float(c.sum(0) @ c.sum(0)), float((c**2).sum())
    signal = (total - squares) / (1 - q)
    for row in noise.history.itertuples():
        close((row.gradient_sq_norm, row.trace), (signal, (squares - q * signal) / q))
        assert row.n_examples == 12
    assert noise.whole.n_skipped == 0


@pytest.mark.parametrize("sizes", [(4, 4, 4)])
def test_equal_micro_batches_are_one_batch(sizes):
    model, (x, y) = made(), data()
    truth, optimizer = wanted(model, x, y), sgd(model)
    noise = watch(model, optimizer, every=1)
    for part in torch.arange(12).split(sizes):
        (F.cross_entropy(model(x[part]), y[part]) / len(sizes)).backward()
    optimizer.step()
    close(last(noise), truth)


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_gradients_are_taken_before_clipping(clip):
    model, (x, y) = made(), data()
    truth, optimizer = wanted(model, x, y), sgd(model)
    noise = watch(model, optimizer, every=1)
    F.cross_entropy(model(x), y).backward()
    if clip == "norm":
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    else:
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    optimizer.step()
    close(last(noise), truth)


def test_a_scaled_loss_and_overflows():
    model, (x, y) = made(), data()
    truth, optimizer = wanted(model, x, y), sgd(model, lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    noise = watch(model, optimizer, every=1)
    for step in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * (math.inf if step == 1 else 1)).backward()
        if step == 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        scaler.step(optimizer)
        scaler.update()
    assert len(noise.history) == 3
    assert noise.whole.n_skipped == 1
    for row in noise.history.itertuples():
        close((row.gradient_sq_norm, row.trace), truth)


def test_autocast(monkeypatch):
    """Half precision inside: as exact as its gradients, which have three digits."""
    model, (x, y) = made(dtype=torch.float32), data(32)
    truth, optimizer = wanted(model, x, y), sgd(model)
    noise = watch(model, optimizer, every=1)
    # Not every CPU has the instructions that oneDNN wants for half precision.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    assert noise.history.trace.iloc[0] == pytest.approx(truth[1], rel=0.02)
    assert noise.notes == ()


def test_frozen_parameters():
    model, (x, y) = made(), data()
    model.table.requires_grad_(False)
    model.inner.weight.requires_grad_(False)
    model.norm.bias.requires_grad_(False)
    model.out.weight.requires_grad_(False)
    free = [p for p in model.parameters() if p.requires_grad]
    truth, optimizer = wanted(model, x, y, free), sgd(model)
    noise = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    close(last(noise), truth)


def test_dropout_with_the_masks_of_the_run():
    model, (x, y) = made(dropout=0.4), data()
    torch.manual_seed(5)
    truth, optimizer = wanted(model, x, y), sgd(model)
    noise = watch(model, optimizer, every=1)
    torch.manual_seed(5)
    update(model, optimizer, x, y)
    close(last(noise), truth)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpoints(use_reentrant):
    class Checkpointed(Net):
        def forward(self, x):
            h = checkpoint(self.body, self.table(x), use_reentrant=use_reentrant)
            h = checkpoint(self.body, h, use_reentrant=use_reentrant)  # one layer, two uses
            return self.out(h.mean(1))

    torch.manual_seed(0)
    model, (x, y) = Checkpointed().double(), data()
    losses = F.cross_entropy(model(x), y, reduction="none")
    # Reentrant checkpoints refuse autograd.grad: one backward pass an example.
    rows = []
    for i in range(12):
        model.zero_grad()
        losses[i].backward(retain_graph=True)
        rows.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
    truth = noise_of(torch.stack(rows))
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    close(last(noise), truth)


def test_batch_normalisation_gives_contributions():
    """What each example adds through copies of the parameters that are its own."""
    torch.manual_seed(0)
    x, y = torch.randn(8, 5, dtype=torch.float64), torch.randint(3, (8,))
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()
    nn.init.normal_(model[1].weight)
    own = [p.detach().expand(8, *p.shape).clone().requires_grad_() for p in model.parameters()]
    W, b, scale, shift, V, c = own
    h = torch.einsum("noi,ni->no", W, x) + b
    h = (h - h.mean(0)) / (h.var(0, unbiased=False) + model[1].eps).sqrt() * scale + shift
    out = torch.einsum("noi,ni->no", V, h.tanh()) + c
    g = torch.autograd.grad(F.cross_entropy(out, y, reduction="sum"), own)
    truth = noise_of(torch.cat([part.reshape(8, -1) for part in g], 1))
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    close(last(noise), truth)
    assert any("couples the examples" in note for note in noise.notes)


def test_a_model_that_is_called_in_parts():
    """As a LightningModule calls its own modules, and never itself."""
    model, (x, y) = made(), data()
    whole = nn.Module()
    whole.encoder, whole.head = nn.Sequential(model.table, model.inner), nn.Linear(6, 3).double()

    def losses(reduction):
        return F.cross_entropy(whole.head(whole.encoder(x).mean(1)), y, reduction=reduction)

    truth = noise_of(contributions(losses("none"), list(whole.parameters())))
    optimizer = sgd(whole)
    noise = watch(whole, optimizer, every=1)
    for _ in range(2):
        optimizer.zero_grad()
        losses("mean").backward()
        optimizer.step()
    row = noise.history.iloc[0]
    close((row.gradient_sq_norm, row.trace), truth)
    assert len(noise.history) == 2


class Recurrent(nn.Module):
    """Without a rule for its middle; ``returns`` names what it gives back."""

    def __init__(self, returns="outputs", batch_first=True):
        super().__init__()
        self.table, self.rnn = nn.Embedding(9, 4), nn.GRU(4, 5, batch_first=batch_first)
        self.out, self.returns = nn.Linear(5, 3), returns

    def forward(self, x, y=None):
        h = self.rnn(self.table(x))[0]
        if self.returns == "all":  # (batch times tokens, classes)
            return self.out(h).flatten(0, 1)
        outputs = self.out(h[:, -1] if self.rnn.batch_first else h[-1])
        return F.cross_entropy(outputs, y) if self.returns == "loss" else outputs


def recurrent(**options):
    torch.manual_seed(0)
    return Recurrent(**options).double()


def test_parameters_without_a_rule():
    model, (x, y) = recurrent(), data()
    truth, few = (
        wanted(model, x, y),
        wanted(model, x, y, [*model.table.parameters(), *model.out.parameters()]),
    )
    optimizer = sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    close(last(noise), truth)
    assert "rnn.weight_hh_l0" in noise.notes[0]
    noise.close()
    noise = watch(model, optimizer, every=1, uncovered="leave_out")
    update(model, optimizer, x, y)
    close(last(noise), few)
    assert noise.notes[0].startswith("left out, because no rule covers them: rnn.bias_hh_l0")


def test_parameters_without_a_rule_whose_module_returns_its_loss_are_left_out():
    model, (x, y) = recurrent(), data()
    covered = [*model.table.parameters(), *model.out.parameters()]
    truth, model.returns = wanted(model, x, y, covered), "loss"
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    model(x, y).backward()
    optimizer.step()
    close(last(noise), truth)
    left = [note for note in noise.notes if note.startswith("left out: rnn.")]
    assert len(left) == 4
    assert "no gradient was seen at their module's output" in left[0]


def test_examples_along_another_axis_get_a_sentence():
    """Time comes first: nothing that is differentiated alone adds up to the batch's gradient."""
    model, (x, y) = recurrent(batch_first=False), data()
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    for step in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x.T), y).backward()
        if step:
            optimizer.step()  # said once
        else:
            with pytest.warns(WatchWarning, match="along the first axis"):
                optimizer.step()
    assert (len(noise.rows), noise.whole.n_skipped) == (0, 2)


def test_rows_of_tokens_as_outputs():
    """Outputs (batch times tokens, classes), as their loss wants them."""
    model, (x, _) = recurrent(returns="all"), data()
    y = x % 3
    truth = noise_of(
        contributions(
            F.cross_entropy(model(x), y.flatten(), reduction="none").reshape(12, 4).mean(1),
            list(model.parameters()),
        )
    )
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1, unit="token")
    update(model, optimizer, x, y.flatten())
    close(last(noise), (truth[0], 4 * truth[1]))


def test_forward_passes_before_the_first_backward():
    """Two micro-batches, and a layer with two uses in each of them."""

    class Twice(Net):
        def body(self, h):
            return super().body(super().body(h))

    torch.manual_seed(0)
    model, (x, y) = Twice().double(), data()
    truth, optimizer = wanted(model, x, y), sgd(model)
    noise = watch(model, optimizer, every=1)
    losses = [F.cross_entropy(model(x[part]), y[part]) / 2 for part in torch.arange(12).split(6)]
    for loss in losses:
        loss.backward()
    optimizer.step()
    close(last(noise), truth)


@pytest.mark.parametrize("norm", ["l2", "adam"])
def test_parameters_in_half_precision(norm, monkeypatch):
    """Norms have more digits than what they are of: the sums that bfloat16 gradients do have."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # as for autocast
    torch.manual_seed(0)
    model = nn.Linear(7, 5).bfloat16()
    x, y = torch.randn(64, 7).bfloat16(), torch.randint(5, (64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, eps=1e-3)
    noise = watch(model, optimizer, every=1, norm=norm)
    for _ in range(2):
        v = [state["exp_avg_sq"].double() for state in optimizer.state.values()]
        optimizer.zero_grad()
        out = model(x)
        out.retain_grad()
        F.cross_entropy(out.float(), y).backward()
        optimizer.step()
    divisors = [1.0 if norm == "l2" else (each / (1 - 0.999)).sqrt() + 1e-3 for each in v]
    b = out.grad.double()
    parts = b[:, :, None] * x.double()[:, None], b
    squares, total = 0.0, 0.0
    for p, part, divisor in zip(model.parameters(), parts, divisors, strict=True):
        squares += float((part / divisor).square().sum())
        total += float((p.grad.double() / divisor).square().sum())
    truth = (total - squares) / (1 - 1 / 64), (squares - total / 64) / (1 - 1 / 64) * 64
    close(last(noise), truth, rel=1e-5)


@pytest.mark.parametrize("make", [made, recurrent], ids=["rules", "parameters without a rule"])
def test_two_calls_in_one_graph(make):
    """Pairs, as in contrastive training: an example's two gradients are added, then squared."""
    model, (x, y), (x2, _) = make(), data(), data(seed=2)

    def losses(reduction):
        return F.cross_entropy(model(x) * model(x2), y, reduction=reduction)

    truth = noise_of(contributions(losses("none"), list(model.parameters())))
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    losses("mean").backward()
    optimizer.step()
    close(last(noise), truth)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set; hours, as real seconds are counted beside it."""
    clock = SimpleNamespace(now=0.0)
    hands = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr("noisescale.torch.watching.time", hands)
    return clock


def timed(clock, noise, model, optimizer, n_updates, seconds_of):
    """Updates of so many seconds, by their number and whether they are measured."""
    x, y = data(32)
    for _ in range(n_updates):
        optimizer.zero_grad()
        for part in torch.arange(32).split(16):
            (F.cross_entropy(model(x[part]), y[part]) / 2).backward()
        clock.now += seconds_of(noise.n_updates, noise.pending)
        optimizer.step()


def test_the_pace_is_chosen_from_the_first_updates(clock):
    model = made()
    optimizer = sgd(model)
    noise = watch(model, optimizer)
    assert noise.every is None
    # The first ones are compiled; measuring takes .28 of an update.
    timed(clock, noise, model, optimizer, 60, lambda k, m: 9e6 if k < 2 else 1e4 + 2.8e3 * m)
    assert set(np.diff(noise.history["update"])) == {3, 4}  # four to save what was timed first
    assert noise.notes == ()
    # It takes 2.8 updates from now on.
    timed(clock, noise, model, optimizer, 320, lambda k, m: 1e4 + 2.8e4 * m)
    assert noise.every == 20
    assert noise.examples is None or noise.examples <= 16
    assert np.diff(noise.history["update"]).max() == 20
    assert noise.notes == (
        "every update takes 1e+07 ms: measuring one in 20 takes 14 % of the run's time, more than "
        "the 10 % asked for",
    )


def test_a_pace_that_costs_nothing(clock):
    model = made()
    optimizer = sgd(model)
    noise = watch(model, optimizer, overhead=1e6)
    timed(clock, noise, model, optimizer, 28, lambda k, m: 1e4)
    assert (noise.every, noise.examples) == (1, None)
    assert list(noise.history["update"]) == [0, 3, 6, 9, 12, 15, 18, 21, 22, 23, 26, 27]


@pytest.mark.parametrize("n_before", [10, 70])
def test_a_run_that_goes_on_has_no_longer_gaps(clock, n_before):
    first, dear = made(), lambda k, m: 1e4 + 1e5 * m
    optimizer = sgd(first)
    noise = watch(first, optimizer)
    timed(clock, noise, first, optimizer, n_before, dear)
    noise.close()
    second = made()
    optimizer = sgd(second)
    later = watch(second, optimizer)
    timed(clock, later, second, optimizer, 25, dear)  # of which the coming one is not measured
    later.load_state_dict(noise.state_dict())
    timed(clock, later, second, optimizer, 90, dear)
    updates = later.history["update"].to_numpy()
    assert np.diff(updates).max() <= 20
    assert later.n_updates - 20 <= updates[-1]


def test_a_gap_is_noted(clock):
    model = made()
    optimizer, (x, y) = sgd(model), data(32)
    noise = watch(model, optimizer)
    timed(clock, noise, model, optimizer, 10, lambda k, m: 1e4)
    for _ in range(33):  # batches of one example show no noise
        update(model, optimizer, x[:1], y[:1])
    assert noise.notes == ("no reading between updates 9 and 42",)
    timed(clock, noise, model, optimizer, 5, lambda k, m: 1e4)
    assert noise.notes[0].startswith("no reading between updates 9 and 4")
    assert len(noise.notes) == 1


def test_tokens_are_weighted_as_the_loss_weights_them():
    """A mean over the valid tokens of sequences of unlike lengths."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 5), nn.Tanh(), nn.Linear(5, 9)).double()
    x, _ = data(n=8, length=6)
    lengths = torch.tensor([6, 1, 3, 5, 2, 6, 4, 2])
    y = torch.where(torch.arange(6) < lengths[:, None], x.roll(-1, 1), -100)
    each = F.cross_entropy(model(x).mT, y, reduction="none").sum(1)
    M = int(lengths.sum())
    c = contributions(each / M, list(model.parameters()))
    q = float(((lengths / M).double() ** 2).sum())
    total, squares = float(c.sum(0) @ c.sum(0)), float((c**2).sum())
    truth = (total - squares) / (1 - q), (squares - q * total) / (1 - q) * M
    for reduction in ("mean", "sum"):
        optimizer = sgd(model, lr=0.0)
        with watch(model, optimizer, every=1, unit="token", reduction=reduction) as noise:
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction=reduction).backward()
            optimizer.step()
        close(last(noise), truth)
        assert noise.history.batch_size.iloc[0] == M
        loss = {"mean": "mean", "sum": "summed"}[reduction]
        assert f"in tokens ({loss} loss over tokens) (1 of 1" in repr(noise)


def test_some_updates_and_some_examples_without_bias():
    """At fixed weights and one batch: the mean over random parts is what all examples give."""
    model, (x, y) = made(), data(12)
    truth, optimizer = wanted(model, x, y), sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=2, examples=5, decay=0.0)
    for _ in range(800):
        update(model, optimizer, x, y)
    frame = noise.history
    assert list(frame["update"]) == list(range(0, 800, 2))
    assert frame.trace.nunique() == 12  # as many neighbourhoods
    for column, value in zip(("gradient_sq_norm", "trace"), truth, strict=True):
        std = frame[column].std() / math.sqrt(len(frame))
        assert abs(frame[column].mean() - value) < 4 * std


def test_an_epoch_covers_the_noise_of_all_gradients():
    """Fixed weights, 60 epochs in another order each, against ``gradient_noise`` of all data."""
    torch.manual_seed(0)
    x = torch.randn(160, 3)
    y = (x[:, 0] + torch.randn(160) > 0).long()
    model = nn.Linear(3, 2)
    truth = ns.torch.gradient_noise(model, (x, y))
    optimizer, hits, ratios = sgd(model, lr=0.0), 0, []
    for seed in range(60):
        order = torch.randperm(160, generator=torch.Generator().manual_seed(seed))
        with watch(model, optimizer, every=1, decay=0.0) as noise:
            for batch in order.split(16):
                update(model, optimizer, x[batch], y[batch])
        hits += truth.critical_batch_size in noise.interval()
        ratios.append((noise.gradient_sq_norm.value, noise.trace.value))
    # Batches of one epoch share no example, so that intervals for independent ones are not short.
    assert hits >= 60 * 0.95 - 3 * math.sqrt(60 * 0.95 * 0.05)
    for values, value in zip(
        zip(*ratios, strict=True), (truth.gradient_sq_norm, truth.trace), strict=True
    ):
        std = np.std(values, ddof=1) / math.sqrt(60)
        assert abs(np.mean(values) - value) < 4 * std + 1e-5 * value


def test_readings_are_unbiased_over_batches():
    """500 batches at fixed weights, against the gradients of all examples."""
    model, (x, y) = made(), data(300)
    truth, optimizer = wanted(model, x, y), sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=1, decay=0.0)
    rng = np.random.default_rng(0)
    for _ in range(500):
        batch = torch.as_tensor(rng.choice(300, 8, replace=False))
        update(model, optimizer, x[batch], y[batch])
    for estimate, value in zip((noise.gradient_sq_norm, noise.trace), truth, strict=True):
        assert abs(estimate.value - value) < 4 * estimate.std
        assert estimate.std < 0.2 * value


def trained(watching, **options):
    torch.manual_seed(3)
    model = Net(dropout=0.3, batch_norm=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    noise = watch(model, optimizer, **options) if watching else None
    for k in range(12):
        update(model, optimizer, *data(16, seed=k))
    return model, noise


@pytest.mark.parametrize(
    "options",
    [{}, {"every": 1}, {"examples": 5}, {"every": 3}, {"every": 1, "norm": "adam"}],
    ids=str,
)
def test_weights_are_the_same_to_the_bit(options):
    plain, _ = trained(False)
    seen, noise = trained(True, **options)
    for key, value in plain.state_dict().items():
        assert torch.equal(value, seen.state_dict()[key]), key
    assert noise.whole.n_updates > 0


def test_the_same_to_the_bit_where_positions_are_shared_and_parameters_uncovered():
    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.places = nn.Embedding(9, 8), nn.Embedding(4, 8)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            return self.out(self.block(self.table(x) + self.places(torch.arange(4))).mean(1))

    def run(watching):
        torch.manual_seed(0)
        model = Places()
        optimizer = sgd(model)
        noise = watch(model, optimizer, every=2) if watching else None
        for k in range(6):
            update(model, optimizer, *data(16, seed=k))
        return model.state_dict(), noise

    (plain, _), (seen, noise) = run(False), run(True)
    assert all(torch.equal(plain[key], seen[key]) for key in plain)
    assert len(noise.history) == 3


def test_it_goes_on_from_its_state():
    def run(noise, model, optimizer, batches):
        for k in batches:
            update(model, optimizer, *data(16, seed=k))

    model = made()
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1, per_layer=True, n_train=100)
    run(noise, model, optimizer, range(6))
    whole = noise.state_dict()
    noise.close()
    model = made()
    optimizer = sgd(model)
    first = watch(model, optimizer, every=1, per_layer=True, n_train=100)
    run(first, model, optimizer, range(3))
    first.close()
    second = watch(model, optimizer, every=1, per_layer=True, n_train=100)
    second.load_state_dict(first.state_dict())
    run(second, model, optimizer, range(3, 6))
    assert second.state_dict() == whole
    with pytest.raises(InputError, match="the state must have"):
        second.load_state_dict({"whole": {}})


def test_copies_and_checkpoints_of_a_watched_model_are_not_watched():
    model, (x, y) = made(), data()
    optimizer = sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    twin = copy.deepcopy(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (twin, torch.load(buffer, weights_only=False)):
        F.cross_entropy(other(x), y).backward()
    update(model, optimizer, x, y)
    assert len(noise.history) == 2
    assert noise.notes == ()
    noise.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_pre_hooks


def test_validation_in_between_changes_nothing():
    model, (x, y) = made(), data()
    truth, optimizer = wanted(model, x, y), sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=1)
    for _ in range(2):
        update(model, optimizer, x, y)
        model.eval()
        with torch.no_grad():
            model(x[:5])
        model.train()
    assert len(noise.history) == 2
    close(last(noise), truth)


def test_without_an_optimiser():
    model, (x, y) = made(), data()
    truth = wanted(model, x, y)
    with watch(model, every=1) as noise:
        F.cross_entropy(model(x), y).mul(8).backward()
        noise.step(loss_scale=8)
    close(last(noise), truth)
    assert noise.noise_scale is None


def bad(model, optimizer, x, y, use):
    """One update after a good one."""
    optimizer.zero_grad()
    if use == "backward twice":
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
    elif use == "never zeroed":
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        F.cross_entropy(model(x), y).backward()
    elif use == "unlike batches":
        (F.cross_entropy(model(x), y) + F.cross_entropy(model(x[:5]), y[:5])).backward()
    elif use == "clipped in between":
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        F.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        ("backward twice", "backward ran twice"),
        ("never zeroed", "call zero_grad()"),
        ("unlike batches", "batches of different sizes"),
        ("clipped in between", "gradients changed between"),
        ("no gradient", "no gradient reached"),
    ],
)
def test_bad_use_gets_a_sentence_and_the_run_goes_on(use, sentence):
    (x, y), ends = data(), []
    for watching in (False, True):
        model = made()
        optimizer = sgd(model)
        noise = watch(model, optimizer, every=1) if watching else None
        update(model, optimizer, x, y)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bad(model, optimizer, x, y, use)
            bad(model, optimizer, x, y, use)
        update(model, optimizer, x, y)
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*ends)
    (warning,) = [w for w in caught if w.category is WatchWarning]
    assert sentence in str(warning.message)
    assert noise.whole.n_skipped >= 2
    assert math.isfinite(noise.history.trace.iloc[-1])


def test_a_loss_that_is_not_what_it_was_said_to_be():
    model, (x, y) = made(), data()
    for said, really in (("mean", "sum"), ("sum", "mean")):
        optimizer = sgd(model, lr=0.0)
        with watch(model, optimizer, every=1, reduction=said) as noise:
            with pytest.warns(WatchWarning, match=f"the loss is a {really} over the batch"):
                update(model, optimizer, x, y, really)
            update(model, optimizer, x, y, really)  # said once
        assert len(noise.history) == 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_of_rows_are_read_from_cross_entropies_alone(smoothing):
    z = torch.randn(6, 4, 5, requires_grad=True)
    y = torch.randint(5, (6, 4))
    y[2:] = -100
    loss = F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=smoothing)
    (3 * loss).backward()
    told = row_weight(z, z.grad)
    assert (told is None) == bool(smoothing)
    if not smoothing:
        assert told == (pytest.approx(3 / 8, rel=1e-5), 8)
    squared = torch.randn(6, 5, requires_grad=True)
    (squared**2).mean().backward()
    assert row_weight(squared, squared.grad) is None


def test_numbers_that_are_not_finite_are_skipped_and_counted():
    model, (x, y) = made(), data()
    optimizer = sgd(model, lr=0.0)
    noise = watch(model, optimizer, every=1)
    for factor in (1, math.nan, math.inf, 1):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) * factor).backward()
        optimizer.param_groups[0]["lr"] = 0.0
        for p in model.parameters():
            p.grad = torch.nan_to_num(p.grad, 0, 0, 0)
        optimizer.step()
    assert (noise.whole.n_updates, noise.whole.n_skipped) == (2, 2)
    assert "2 skipped" in repr(noise)


def test_a_second_watch_takes_over():
    model, (x, y) = made(), data()
    optimizer = sgd(model)
    first = watch(model, optimizer, every=1)
    with pytest.warns(WatchWarning, match="watched already"):
        second = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    assert (len(first.history), len(second.history)) == (0, 1)


def test_a_failure_inside_does_not_reach_the_run(monkeypatch):
    from noisescale.torch import observer

    def broken(*_):
        raise RuntimeError("no memory left\nfor this")

    monkeypatch.setattr(observer, "sum_of_squares", broken)
    model, (x, y) = made(), data()
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    with pytest.warns(WatchWarning, match="measuring failed, RuntimeError: no memory left"):
        update(model, optimizer, x, y)
    assert noise.whole.n_skipped == 1


def test_a_failure_of_the_reading_does_not_reach_the_run(monkeypatch):
    from noisescale.torch import watching

    def broken(*_, **__):
        raise ZeroDivisionError("nothing to divide by")

    model, (x, y) = made(), data()
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1)
    update(model, optimizer, x, y)
    with monkeypatch.context() as patch:
        patch.setattr(watching, "batches", broken)
        with pytest.warns(WatchWarning, match="measuring failed, ZeroDivisionError: nothing to"):
            update(model, optimizer, x, y)
    update(model, optimizer, x, y)
    assert (len(noise.rows), noise.whole.n_skipped, noise.n_updates) == (2, 1, 3)


@pytest.mark.parametrize("uncovered", [False, True])
def test_adams_metric_has_plain_gradients_beside_it(uncovered):
    """The same run, watched in both metrics: the second one of the first is the other."""
    records = {}
    for norm in ("l2", "adam"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 9))
        if uncovered:
            model[1] = Gained(5, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        noise = records[norm] = watch(model, optimizer, every=1, norm=norm, per_layer=True)
        rng = torch.Generator().manual_seed(1)
        for _ in range(30):
            x = torch.randint(9, (16, 3), generator=rng)
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), (x.flatten() * 2) % 9).backward()
            optimizer.step()
        noise.close()
    plain, adam = records["l2"].history, records["adam"].history
    assert plain["l2"].isna().all()
    assert list(adam["update"]) == list(plain["update"])[1:]  # no second moments at the first
    together = RunningRatio()
    for row in records["l2"].rows[1:]:
        together.take(row.gradient_sq_norm, row.trace, row.update)
    assert adam["l2_low"].iloc[-1] == pytest.approx(together.estimate.low, rel=1e-4)
    assert records["adam"].plain.noise == pytest.approx(together.noise, rel=1e-4)
    assert "of plain gradients:" in repr(records["adam"])
    assert set(records["adam"].layers.index) == set(records["l2"].layers.index)
    again = watch(model, optimizer, norm="adam")
    again.load_state_dict(records["adam"].state_dict())
    assert again.to_dict() == records["adam"].to_dict()
    earlier = {k: v for k, v in records["adam"].state_dict().items() if k not in _YOUNGER}
    again.load_state_dict(earlier)
    assert again.adam
    with pytest.raises(InputError, match="of norm='l2', this watch measures 'adam'"):
        again.load_state_dict(records["l2"].state_dict())
    again.close()


_YOUNGER = ("plain", "counted", "adam")  # of a state


def test_plain_gradients_beside_adams_metric_in_half_precision():
    torch.manual_seed(0)
    model = nn.Sequential(Gained(6, 5), nn.Linear(5, 3)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with watch(model, optimizer, every=1, norm="adam") as noise:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6).bfloat16()), torch.randint(3, (8,))).backward()
            optimizer.step()
    assert len(noise.rows) == 2
    assert not any("left out" in note and "gain" in note for note in noise.notes)


class Gained(nn.Module):
    """A layer with a parameter that no rule covers."""

    def __init__(self, i, o):
        super().__init__()
        self.linear, self.gain = nn.Linear(i, o), nn.Parameter(torch.ones(o))

    def forward(self, x):
        return self.linear(x) * self.gain


def test_the_first_line_says_what_is_counted():
    """Examples, or sequences of so many tokens; of a mean or of a sum."""
    torch.manual_seed(0)
    words = {}
    for reduction in ("mean", "sum"):
        for shape in ((8,), (8, 6)):
            model = nn.Sequential(nn.Embedding(9, 5), nn.Tanh(), nn.Linear(5, 9))
            optimizer = sgd(model, lr=0.0)
            x = torch.randint(9, shape)
            with watch(model, optimizer, every=1, reduction=reduction) as noise:
                loss = F.cross_entropy(model(x).view(-1, 9), x.flatten(), reduction=reduction)
                loss.backward()
                optimizer.step()
            words[reduction, len(shape)] = noise.counted
            assert f" {noise.counted} (1 of 1 updates measured)" in repr(noise)
    assert words == {
        ("mean", 1): "examples (mean loss)",
        ("mean", 2): "sequences of 6 tokens (mean loss over tokens)",
        ("sum", 1): "examples (summed loss)",
        ("sum", 2): "sequences of 6 tokens (summed loss over tokens)",
    }


def test_adam_is_measured_from_its_second_step_on():
    model, (x, y) = made(), data()
    optimizer = torch.optim.Adam(model.parameters())
    noise = watch(model, optimizer, n_train=100, every=1, norm="adam")
    for _ in range(3):
        update(model, optimizer, x, y)
    assert list(noise.history["update"]) == [1, 2]
    assert noise.noise_scale is None  # the paper's is of SGD
    model = made()
    optimizer = sgd(model)
    noise = watch(model, optimizer, every=1, norm="adam")
    update(model, optimizer, x, y)
    with pytest.warns(WatchWarning, match="needs the second moments"):
        update(model, optimizer, x, y)
    update(model, optimizer, x, y)  # said once


def test_rows_that_were_never_looked_up_are_left_out_of_adams_metric():
    """Not divided by eps; the others are as by definition."""
    torch.manual_seed(0)
    table = nn.Embedding(9, 4).double()
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(8, 3).double())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    noise = watch(model, optimizer, every=1, norm="adam")
    x, y = torch.tensor([[0, 1], [2, 3], [4, 0], [1, 2]]), torch.tensor([0, 1, 2, 0])
    update(model, optimizer, x, y)
    metric = adam_metric(optimizer, dict(model.named_parameters()))
    assert not metric["0.weight"][5:].any()
    c = contributions(F.cross_entropy(model(x + 2), y, reduction="none"), [*model.parameters()])
    m = torch.cat([metric[name].reshape(-1) for name, _ in model.named_parameters()])
    want = noise_of(c * m.sqrt())
    update(model, optimizer, x + 2, y)
    row = noise.rows[-1]
    assert (row.gradient_sq_norm, row.trace) == pytest.approx(want)
    assert noise.notes == ("16 of 36 entries of 0.weight never had a gradient before: left out",)
    assert noise.to_dict()["notes"] == list(noise.notes)


@pytest.mark.parametrize(
    ("kind", "norm", "suggested"),
    [
        (torch.optim.Adam, "l2", True),
        (torch.optim.AdamW, "l2", True),
        (torch.optim.AdamW, "adam", False),
        (torch.optim.SGD, "l2", False),
    ],
)
def test_adams_own_metric_is_suggested_once(kind, norm, suggested):
    model, (x, y) = made(), data()
    optimizer = kind(model.parameters(), lr=1e-3)
    noise = watch(model, optimizer, every=1, norm=norm)
    for _ in range(3):
        update(model, optimizer, x, y)
    assert sum("norm='adam'" in note for note in noise.notes) == suggested


def test_warnings_point_to_the_line_that_led_to_them():
    """Not to the library's, nor to that of PyTorch which calls its hook."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(model, optimizer, every=1)
    with pytest.warns(WatchWarning, match="watched already") as first:
        watch(model, optimizer, every=1)
    F.cross_entropy(model(torch.randn(8, 3)), torch.arange(8) % 3, reduction="sum").backward()
    with pytest.warns(WatchWarning, match="a sum over the batch") as second:
        optimizer.step()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    for (one,), call in ((first, "watch(model, optimizer, every=1)"), (second, "optimizer.step()")):
        assert Path(one.filename) == Path(__file__)
        assert lines[one.lineno - 1].strip() == call


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_examples_that_are_alike_have_no_noise(kind):
    """Not one of 1e-8 with an interval, whatever the precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 20), nn.Tanh(), nn.Linear(20, 3)).to(kind)
    x, y = torch.randn(1, 7, dtype=kind).expand(33, 7), torch.zeros(33, dtype=torch.long)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = watch(model, optimizer, every=1, per_layer=True)
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert noise.critical_batch_size is None
    assert noise.interval().low == 0.0
    assert noise.layers["critical_batch_size"].isna().all()
    assert any("alike within rounding" in note for note in noise.notes)


FORMS = {
    "Adam": (torch.optim.Adam, {}),
    "Adam, large eps": (torch.optim.Adam, {"eps": 0.1}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "amsgrad, a loop": (torch.optim.Adam, {"amsgrad": True, "foreach": False}),
    "amsgrad, foreach": (torch.optim.Adam, {"amsgrad": True, "foreach": True}),
    "amsgrad, fused": (torch.optim.Adam, {"amsgrad": True, "fused": True}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.0}),
    "AdamW, amsgrad": (torch.optim.AdamW, {"weight_decay": 0.0, "amsgrad": True}),
    "NAdam": (torch.optim.NAdam, {"eps": 0.1}),
    "SparseAdam": (torch.optim.SparseAdam, {"eps": 0.1}),
    "RAdam": (torch.optim.RAdam, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "Adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 1.0}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "Adafactor": (torch.optim.Adafactor, {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_metric_is_what_the_step_divides_by(form):
    """By the step that a tiny learning rate makes, without an average of gradients."""
    kind, options = FORMS[form]
    x, y = data()
    model, rate = nn.Linear(x.shape[1], 3, bias=False).double(), 1e-9
    optimizer = kind(model.parameters(), lr=rate, **options)
    for group in optimizer.param_groups:
        if "betas" in group:
            group["betas"] = (0.0, 0.5)
    for scale in (10.0, 1.0, 0.1, 0.01):
        optimizer.zero_grad()
        (scale * F.cross_entropy(model(x.double()), y % 3)).backward()
        before, g = model.weight.detach().clone(), model.weight.grad.clone()
        if form == "SparseAdam":
            model.weight.grad = g.to_sparse()
        optimizer.step()
    metric = adam_metric(optimizer, dict(model.named_parameters()))
    if form in ("RAdam", "Adamax", "Adagrad", "RMSprop", "Adafactor"):
        assert metric is None
    else:
        divisor = g * rate / (before - model.weight.detach())
        torch.testing.assert_close(metric["weight"].rsqrt(), divisor, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, o: watch("x", o), "model must be a torch.nn.Module, got str"),
        (lambda m, o: watch(m, "x"), "optimizer must be a torch.optim.Optimizer, got str"),
        (lambda m, o: watch(m, o, every=0), "every must be at least 1, got 0"),
        (lambda m, o: watch(m, o, examples=1.5), "examples must be a whole number, got 1.5"),
        (lambda m, o: watch(m, o, overhead=0), "overhead must be .* above 0, got 0"),
        (lambda m, o: watch(m, o, reduction="none"), "reduction must be one of mean, sum"),
        (lambda m, o: watch(m, o, norm="l1"), "norm must be one of l2, adam"),
        (lambda m, o: watch(m, o, unit="word"), "unit must be one of example, token"),
        (lambda m, o: watch(m, o, uncovered="no"), "uncovered must be one of func, leave_out"),
        (lambda m, o: watch(m, o, decay=1), r"decay must be .* in \[0, 1\)"),
        (lambda m, o: watch(m, norm="adam"), "needs the optimizer"),
        (lambda m, o: watch(nn.DataParallel(m), o), "use DistributedDataParallel"),
        (lambda m, o: watch(m.requires_grad_(False), o), "no parameters that require gradients"),
    ],
)
def test_bad_input_gets_one_sentence(call, message):
    model = made()
    with pytest.raises(InputError, match=message):
        call(model, sgd(model))
