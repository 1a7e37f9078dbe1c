"""Modules in the state that training leaves them in: wrapped, padded, checkpointed, autocast."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from noisescale.torch.packed import PlainPacking  # noqa: E402

nn = torch.nn
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]
X, Y = torch.randn(8, 4, generator=torch.manual_seed(0)), torch.arange(8) % 3
POINT = {"prior_precision": 1.0, "at": "point"}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config)


def padded():
    """Sequences of six, five and four tokens, padded on the left, as generation wants them."""
    tokens = torch.randint(1, 11, (3, 6), generator=torch.manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[1, :1], mask[2, :2] = 0, 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


def test_sequences_may_be_padded_on_the_left(llama):
    """The fit is that of the model's own loss, which is a mean over labels but the first."""
    data = padded()
    found = {
        method: nst.log_evidence(llama, data, method=method, **POINT)
        for method in ("dense", "dual", "kfac")
    }
    with torch.no_grad():
        loss = float(llama.eval()(**data).loss)
    nll = loss * int((data["labels"][:, 1:] != -100).sum())
    for evidence in found.values():
        assert evidence.nll == pytest.approx(nll, rel=1e-5)
    assert found["dual"].log_evidence == pytest.approx(found["dense"].log_evidence, rel=1e-9)
    assert np.isfinite(nst.gradient_noise(llama, data).trace)


def test_checkpoints_are_not_in_the_way(llama):
    plain = nst.log_evidence(llama, padded(), method="dual", **POINT)
    with warnings.catch_warnings():  # of its new name
        warnings.simplefilter("ignore", FutureWarning)
        llama.gradient_checkpointing_enable()
    llama.enable_input_require_grads()
    found = nst.log_evidence(llama.train(), padded(), method="dual", **POINT)
    assert found.log_evidence == pytest.approx(plain.log_evidence, rel=1e-12)
    assert llama.model.gradient_checkpointing
    assert llama.training


@pytest.mark.parametrize("method", ["dual", "kfac", "lanczos"])
def test_the_callers_autocast_changes_nothing(method):
    module = network()
    plain = nst.log_evidence(module, (X, Y), method=method, **POINT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = nst.log_evidence(module, (X, Y), method=method, **POINT)
        assert torch.is_autocast_enabled("cpu")
    assert found.log_evidence == plain.log_evidence


class Autocasts(nn.Module):
    """As people write it who want it on wherever the model is called."""

    def __init__(self):
        super().__init__()
        self.net = network()

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x):
        first, *others = self.net
        h = first(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in others:
                h = layer(h)
        return h


@pytest.mark.parametrize("method", ["dense", "dual", "kfac", "diagonal", "lanczos"])
def test_a_modules_own_autocast_changes_nothing(method):
    plain = nst.log_evidence(network(), (X, Y), method=method, **POINT)
    module = Autocasts()
    found = nst.log_evidence(module, (X, Y), method=method, **POINT)
    assert found.log_evidence == pytest.approx(plain.log_evidence, rel=1e-6)
    assert module(X).dtype == torch.bfloat16  # as before


def test_a_modules_own_autocast_leaves_gradient_noise_alone():
    plain, found = (nst.gradient_noise(m, (X, Y)) for m in (network(), Autocasts()))
    assert found.trace == pytest.approx(plain.trace, rel=1e-5)


def test_other_threads_keep_their_autocast():
    seen = []

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16), ThreadPoolExecutor(1) as pool:
                seen.append(torch.is_autocast_enabled("cpu"))
                seen.append(pool.submit(autocasts).result())
            return self.net(x)

    def autocasts():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.is_autocast_enabled("cpu")

    nst.log_evidence(Asks(), (X, Y), method="dual", **POINT)
    assert seen[::2] == [False] * (len(seen) // 2)
    assert seen[1::2] == [True] * (len(seen) // 2)
    assert autocasts()


@pytest.mark.parametrize("method", ["dual", "kfac", "lanczos"])
def test_tables_with_sparse_gradients(method):
    torch.manual_seed(0)
    sparse = nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten(), nn.Linear(6, 3))
    tokens = torch.randint(0, 9, (8, 2), generator=torch.manual_seed(2))
    found = nst.log_evidence(sparse, (tokens, Y), method=method, **POINT)
    assert sparse[0].sparse
    sparse[0].sparse = False
    dense = nst.log_evidence(sparse, (tokens, Y), method=method, **POINT)
    assert found.log_evidence == dense.log_evidence


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_a_map_goes_back_into_the_wrapper(wrap):
    module = network()
    wrapped = wrap(module)
    found = nst.map_estimate(wrapped, (X, Y), prior_precision=1.0)
    assert wrapped.load_state_dict(found.params, strict=False).unexpected_keys == []
    again = nst.log_evidence(wrapped, (X, Y), prior_precision=1.0)
    assert again.newton_decrement < 1e-3
    assert set(found.params) == set(dict(wrapped.named_parameters()))


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x))


def by_its_batch():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (AlwaysDropping, "gives other outputs each time"),
        (by_its_batch, r"batch normalisation \(1\) has no running statistics"),
        (lambda: torch.jit.trace(network(), X), "a ScriptModule cannot be differentiated here"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_has_no_evidence_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(ns.InputError, match=sentence):
        nst.log_evidence(make(), (X, Y), prior_precision=1.0)


class Packed(nn.Module):
    """Sequences of several lengths, packed as tutorials do it, and a head behind them."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)
        self.head = nn.Linear(3, 3)

    def features(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.lstm(packed)[1][0][0]

    def forward(self, x, lengths):
        return self.head(self.features(x, lengths))


def test_packed_sequences_are_refused_in_a_sentence():
    torch.manual_seed(0)
    module, x, lengths = Packed(), torch.randn(8, 5, 2), torch.arange(8) % 4 + 2
    for function in (partial(nst.log_evidence, **POINT), nst.gradient_noise):
        with pytest.raises(ns.InputError, match="give the recurrent layer padded sequences and"):
            function(module, (x, lengths, Y))
    # What the layers after it see is data for these.
    known = module.features(x, lengths).detach()
    assert nst.log_evidence(module.head, (known, Y), **POINT).n_params == 12


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_in_plain_operations_is_pytorchs(batch_first):
    x, lengths = torch.randn(8, 5, 2), torch.arange(8) % 4 + 2

    def there_and_back():
        packed = nn.utils.rnn.pack_padded_sequence(
            x if batch_first else x.transpose(0, 1),
            lengths,
            batch_first=batch_first,
            enforce_sorted=False,
        )
        return (
            packed.data,
            packed.batch_sizes,
            *nn.utils.rnn.pad_packed_sequence(
                packed, batch_first=batch_first, padding_value=-1.0, total_length=7
            ),
        )

    theirs = there_and_back()
    with PlainPacking():
        ours = there_and_back()
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=0)


def test_packed_sequences_are_watched_but_for_the_recurrent_layer():
    torch.manual_seed(0)
    module, x, lengths = Packed(), torch.randn(8, 5, 2), torch.arange(8) % 4 + 2
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    with nst.watch(module, sgd, every=1) as noise:
        for _ in range(3):
            sgd.zero_grad()
            nn.functional.cross_entropy(module(x, lengths), Y).backward()
            sgd.step()
    assert noise.n_updates == 3
    left_out = {name for name, _ in module.named_parameters() if name.startswith("lstm")}
    assert {note.split(",")[0] for note in noise.notes} == {f"left out: {n}" for n in left_out}
