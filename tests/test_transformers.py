"""The callback in transformers' own Trainer, against gradients of sequences by definition."""

import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
transformers = pytest.importorskip("transformers", reason="an extra: make torch adds it")
pytest.importorskip("accelerate", reason="what the Trainer needs: make torch adds it")

from noisescale.transformers import NoiseScaleCallback  # noqa: E402
from oracles.example_gradients import contributions  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),  # transformers' own
    pytest.mark.filterwarnings("error::noisescale.noise.watch.record.WatchWarning"),
]
F = torch.nn.functional
VOCABULARY, LENGTH = 13, 7


def causal(dtype=torch.float64):
    """A Llama of one layer, made from a configuration, in double precision."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config).to(dtype)


class Sequences(torch.utils.data.Dataset):
    """Of unlike lengths, padded."""

    def __init__(self, n=24, ragged=True):
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(VOCABULARY, (n, LENGTH), generator=generator)
        lengths = torch.randint(3, LENGTH + 1, (n,), generator=generator)
        self.labels = self.ids.clone()
        if ragged:
            self.labels[torch.arange(LENGTH) >= lengths[:, None]] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, k):
        return {"input_ids": self.ids[k], "labels": self.labels[k]}


class InOrder(transformers.Trainer):
    """Sequences in order; weights are remembered before every micro-batch."""

    seen = None

    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def training_step(self, model, inputs, *args, **kwargs):
        if self.seen is not None:
            weights = {name: p.detach().clone() for name, p in model.named_parameters()}
            self.seen.append((weights, inputs))
        return super().training_step(model, inputs, *args, **kwargs)


def trainer(folder, callbacks, *, model=None, data=None, **others):
    arguments = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": 6,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.01,
        "logging_steps": 2,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    } | others
    return InOrder(
        model=causal() if model is None else model,
        args=transformers.TrainingArguments(output_dir=str(folder), **arguments),
        train_dataset=Sequences() if data is None else data,
        callbacks=callbacks,
    )


def by_definition(model, micro_batches):
    """|G|^2 and tr S of one update: sequences weighted by their tokens, counted in tokens."""
    losses, tokens = [], []
    model.load_state_dict(micro_batches[0][0])
    for _, inputs in micro_batches:
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
        labels = inputs["labels"][:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
        losses.append(each.sum(1))
        tokens.append((labels != -100).sum(1))
    t = torch.cat(tokens).double()
    c = contributions(torch.cat(losses) / t.sum(), list(model.parameters()))
    q, total, squares = float(t @ t / t.sum() ** 2), c.sum(0).square().sum(), c.square().sum()
    signal, variance = (total - squares) / (1 - q), (squares - q * total) / (1 - q)
    return float(signal), float(variance * t.sum())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_readings_are_by_definition_and_weights_the_same(tmp_path, accumulate):
    """Of sequences of unlike lengths, with a loss that is a mean over all tokens of an update."""
    callback = NoiseScaleCallback(every=1, unit="token")
    run = trainer(tmp_path, [callback], gradient_accumulation_steps=accumulate, max_steps=4)
    run.seen = []
    run.train()
    plain = trainer(tmp_path, [], gradient_accumulation_steps=accumulate, max_steps=4)
    plain.train()
    for one, other in zip(run.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)
    rows = callback.watch.rows
    assert len(rows) == 4
    for k, row in enumerate(rows):
        wanted = by_definition(causal(), run.seen[k * accumulate : (k + 1) * accumulate])
        # transformers takes the loss of logits in single precision.
        assert (row.gradient_sq_norm, row.trace) == pytest.approx(wanted, rel=1e-5)
    assert callback.watch.n_train == 24
    assert rows[-1].learning_rate == 0.05
    assert callback.watch.noise_scale == pytest.approx(0.05 * (24 / (4 * accumulate) - 1))
    assert callback.watch.notes == ()  # rules follow all of it, transformers' own norms too
    assert callback.watch.closed


@pytest.mark.parametrize("told", [False, True])
def test_losses_that_are_means_of_micro_batches(tmp_path, told):
    """A classifier's, a mean even if it is told of the whole update.

    The Trainer divides the loss of one that is not told by the number of micro-batches. Of one that
    is told it adds up means, here three, and the readings are of that threefold gradient.
    """
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
        attn_implementation="eager",
    )
    model = transformers.BertForSequenceClassification(config).double()
    model.accepts_loss_kwargs = told
    start = {name: p.detach().clone() for name, p in model.state_dict().items()}
    data = Sequences(ragged=False)
    data.labels = data.ids[:, 0] % 3
    callback = NoiseScaleCallback(every=1)
    trainer(tmp_path, [callback], model=model, data=data, gradient_accumulation_steps=3).train()
    model.load_state_dict(start)
    losses = F.cross_entropy(model(data.ids[:12]).logits, data.labels[:12], reduction="none")
    used = [p for name, p in model.named_parameters() if p.requires_grad]
    c = contributions(losses / 12, used)
    total, squares = c.sum(0).square().sum(), c.square().sum()
    wanted = (total - squares) / (1 - 1 / 12), 12 * (squares - total / 12) / (1 - 1 / 12)
    row, fold = callback.watch.rows[0], 9 if told else 1
    got = row.gradient_sq_norm / fold, row.trace / fold
    assert got == pytest.approx(tuple(map(float, wanted)), rel=1e-5)
    # Nothing had to be differentiated again; the bias of attention's keys has no gradient at all.
    assert callback.watch.notes == ()


def test_it_logs_through_the_trainer(tmp_path):
    told = []

    class Listener(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            told.append(dict(logs))

    callback = NoiseScaleCallback(every=1, log_key_prefix="gns/")
    run = trainer(tmp_path, [Listener(), callback])
    run.train()
    mine = [row for row in run.state.log_history if "gns/trace" in row]
    assert [row["step"] for row in mine] == [2, 4, 6]
    assert [row["step"] for row in run.state.log_history if "loss" in row] == [2, 4, 6]
    assert mine[-1]["gns/trace"] == pytest.approx(callback.watch.trace.value)
    assert sum("gns/noise_scale" in row for row in told) == 3


def test_logs_hold_what_is_known_and_the_end_says_it_once(tmp_path, capsys):
    """Of AdamW, which has no noise scale: no number is NaN, and a bound of 0 is left out."""
    callback = NoiseScaleCallback(every=1)
    options = {"optim": "adamw_torch", "learning_rate": 1e-3, "max_steps": 60, "logging_steps": 1}
    data = Sequences(200, ragged=False)
    data.labels[:] = data.ids[:] = torch.arange(LENGTH) % 3  # a rule to learn, but for
    data.ids[::2, 2] = data.labels[::2, 2] = 5  # every second sequence
    run = trainer(tmp_path, [callback], data=data, **options)
    run.train()
    logged = [row for row in run.state.log_history if "noise_scale/trace" in row]
    names = {name.partition("/")[2] for row in logged for name in row if "/" in name}
    assert len(logged) == 60
    assert "noise_scale" not in names
    assert {"critical_batch_size", "critical_batch_size_latest"} <= names
    assert all(math.isfinite(v) for row in logged for k, v in row.items() if "/" in k)
    assert all(row.get("noise_scale/critical_batch_size_low", 1.0) > 0 for row in logged)
    assert logged[-1]["noise_scale/critical_batch_size_latest"] == callback.watch.latest().value
    lines = [line for line in capsys.readouterr().out.splitlines() if "updates measured" in line]
    answer = repr(callback.watch).removeprefix("Watch: ").splitlines()[0]
    assert lines == [f"noise scale: {answer}"]
    callback.on_train_end(run.args, transformers.TrainerState(is_world_process_zero=False), None)
    assert not capsys.readouterr().out


def test_a_run_that_goes_on_from_a_checkpoint_goes_on_measuring(tmp_path):
    whole = NoiseScaleCallback(every=1)
    trainer(tmp_path / "whole", [whole]).train()
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    first = NoiseScaleCallback(every=1)
    run = trainer(tmp_path / "parts", [first], **saving)
    run.train()
    stored = json.loads((tmp_path / "parts/checkpoint-3/trainer_state.json").read_text())
    kept = stored["stateful_callbacks"]["NoiseScaleCallback"]
    json.dumps(kept, allow_nan=False)  # as JSON has it
    assert len(kept["attributes"]["measured"]["history"]) == 3
    again = trainer(
        tmp_path / "parts",
        [NoiseScaleCallback(every=1)],
        restore_callback_states_from_checkpoint=True,
        **saving,
    )
    again.train(resume_from_checkpoint=str(tmp_path / "parts/checkpoint-3"))
    second = again.pop_callback(NoiseScaleCallback)
    assert second.options["every"] == 1
    assert second.watch.n_updates == whole.watch.n_updates == 6
    one, other = (c.watch.state_dict()["whole"] for c in (whole, second))
    # The checkpoint's file holds weights as they are.
    for name, value in one.items():
        kept = np.asarray(other[name], float)
        np.testing.assert_allclose(kept, np.asarray(value, float), rtol=1e-9)
