"""Data and modules in the forms that people have them."""

import subprocess
import sys

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import noisescale.torch as nst  # noqa: E402
from pytorch.zoo import Attention, animal  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]


def value(module, data, **settings):
    settings = {"prior_precision": 0.7, "method": "dual"} | settings
    return nst.log_evidence(module, data, **settings).log_evidence


class Pairs(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_tuples_of_inputs_in_every_form():
    a = animal("attention")
    x, c, y = *a.x, a.y
    threes = list(zip(x, c, y, strict=True))
    loader = torch.utils.data.DataLoader(Pairs(threes), batch_size=3)
    nested = [((p, q), label) for p, q, label in threes]
    plain = value(a.module, ((x, c), y))
    for data in ((x, c, y), [x, c, y], Pairs(threes), loader, nested):
        assert value(a.module, data) == pytest.approx(plain, rel=1e-12)


def test_dicts_in_every_form():
    a = animal("bert")
    whole = a.data
    each = [{name: part[i] for name, part in whole.items()} for i in range(len(a.y))]
    lists = [{name: part.tolist() for name, part in item.items()} for item in each]
    loader = torch.utils.data.DataLoader(Pairs(each), batch_size=3)
    plain = value(a.module, whole)
    for data in (each, Pairs(lists), loader, (a.x, a.y)):
        assert value(a.module, data) == pytest.approx(plain, rel=1e-12)


def test_a_list_of_two_pairs_is_two_examples():
    module, x = nn.Linear(3, 2), torch.randn(2, 3)
    y = torch.tensor([0, 1])
    plain = value(module, (x, y))
    assert value(module, [(x[0], 0), (x[1], 1)]) == pytest.approx(plain, rel=1e-12)
    assert value(module, [x, y]) == pytest.approx(plain, rel=1e-12)
    assert value(module, [x.tolist(), y.tolist()]) == pytest.approx(plain, rel=1e-12)


def test_wrappers_change_nothing():
    a = animal("cnn")
    plain = nst.log_evidence(a.module, a.data, prior_precision=0.7)
    wrapped = nst.log_evidence(nn.DataParallel(a.module), a.data, prior_precision=0.7)
    assert wrapped.log_evidence == plain.log_evidence
    by_name = dict.fromkeys((name for name, _ in a.module.named_parameters()), 0.7)
    again = nst.log_evidence(nn.DataParallel(a.module), a.data, prior_precision=by_name)
    assert again.log_evidence == pytest.approx(plain.log_evidence, rel=1e-12)


def test_half_precision_modules_and_inputs():
    a = animal("mlp")
    half = a.module.bfloat16()
    x = a.x.bfloat16()
    plain = value(half.double(), (x.double(), a.y))
    assert value(half.bfloat16(), (x, a.y)) == pytest.approx(plain, rel=1e-12)
    half[0].float()  # one layer in another precision than the rest
    assert value(half, (x, a.y)) == pytest.approx(plain, rel=1e-12)
    regression = nn.Linear(3, 1).bfloat16()
    x, y = torch.randn(5, 3).bfloat16(), torch.randn(5, 1).bfloat16()
    found = value(regression, (x, y), likelihood="gaussian")
    wide = value(regression.double(), (x.double(), y.double()), likelihood="gaussian")
    assert found == pytest.approx(wide, rel=1e-12)


def test_shared_weights_count_once():
    a = animal("gpt")
    found = nst.log_evidence(a.module, a.data, prior_precision=0.7)
    assert found.n_params == sum(p.numel() for p in a.module.parameters())
    squares = sum(float((p.detach().double() ** 2).sum()) for p in a.module.parameters())
    assert found.penalty == pytest.approx(0.35 * squares, rel=1e-9)


def test_labels_of_a_language_model_are_shifted_as_transformers_does():
    a = animal("hf gpt")
    twin = a.module.double().eval()
    n, T = a.y.shape
    mask = torch.ones(n, T, dtype=torch.long)
    mask[1, 3:] = 0  # padding, which the labels say as well, as their collator does
    labels = a.y.masked_fill(mask == 0, -100)
    with torch.no_grad():
        mean = twin(input_ids=a.y, attention_mask=mask, labels=labels).loss
    tokens = int((labels[:, 1:] != -100).sum())
    data = {"input_ids": a.y, "attention_mask": mask, "labels": a.y}
    found = nst.log_evidence(twin, data, prior_precision=0.7, method="dual")
    assert found.nll == pytest.approx(float(mean) * tokens, rel=1e-6)  # its loss is in float32
    assert found.log_null == pytest.approx(-tokens * np.log(4), rel=1e-12)
    assert "labels are those of the next token, as in transformers' own loss." in found.notes


def test_sequences_ignore_what_they_are_told_to():
    a = animal("gpt")
    y = a.y.clone()
    y[0, 1] = -100
    plain = nst.log_evidence(a.module, (a.x, y), prior_precision=0.7)
    zeros = torch.where(y == -100, 9, y)
    other = nst.log_evidence(
        a.module, (a.x, zeros), prior_precision=0.7, likelihood=ns.categorical(ignore_index=9)
    )
    assert other.log_evidence == pytest.approx(plain.log_evidence, rel=1e-12)
    assert plain.log_null == pytest.approx(-int((y != -100).sum()) * np.log(4), rel=1e-12)
    with torch.no_grad():
        logits = a.module.double().eval()(a.x)
    expected = functional.cross_entropy(logits.transpose(1, 2), y, reduction="sum")
    assert plain.nll == pytest.approx(float(expected), rel=1e-10)


def backends():
    """What PyTorch would do now: kernels of attention, fast paths, recurrence, new tensors."""
    return (
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_default_dtype(),
    )


class Looking(nn.Module):
    """Notes the backends while it runs, in copies too, and may raise in its first backward pass."""

    def __init__(self, seen, error=None):
        super().__init__()
        self.rnn, self.lin = nn.RNN(4, 4, batch_first=True), nn.Linear(4, 2)
        self.seen, self.error = seen, error

    def __deepcopy__(self, memo):
        made = Looking(self.seen, self.error)
        made.load_state_dict(self.state_dict())
        return made

    def forward(self, x):
        self.seen.add(backends())
        if self.error is not None and torch.is_grad_enabled():
            raise self.error
        return self.lin(self.rnn(x)[0][:, -1])


@pytest.mark.parametrize("error", [None, ValueError("no"), KeyboardInterrupt()])
def test_backends_are_chosen_and_restored(error):
    before, seen = backends(), set()
    data = torch.randn(4, 3, 4), torch.tensor([0, 1, 0, 1])
    module = Looking(seen, error)
    if error is None:
        value(module, data)
    elif isinstance(error, ValueError):
        with pytest.raises(ns.InputError, match="^Looking fails on these inputs .*: no; "):
            value(module, data)
    else:
        with pytest.raises(KeyboardInterrupt):
            value(module, data)
    # Fused attention stays as it was in passes that are differentiated once, backwards.
    assert {(fast, onednn) for _, fast, onednn, _ in seen} == {(False, False)}
    assert {flash for flash, _, _, _ in seen} <= {False, before[0]}
    assert (False, False, False, torch.float64) in seen
    assert backends() == before


class Sign(torch.autograd.Function):
    """As old extensions are written: PyTorch's transforms cannot look into it."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


class Straight(nn.Module):
    def forward(self, x):
        return Sign.apply(x)


class Tutorial(nn.Module):
    """As tutorials write it: a first state of zeros, and constants that are no buffers."""

    def __init__(self, own):
        super().__init__()
        self.rnn, self.head, self.own = nn.LSTM(3, 2, batch_first=True), nn.Linear(2, 2), own
        self.mix = torch.tensor([[1.0, 0.5], [0.0, 1.0]])

    def forward(self, x):
        zeros = torch.zeros(1, len(x), 2)
        h, _ = self.rnn(x, (zeros, zeros)) if self.own else self.rnn(x)
        self.kept = h  # as is done to look at it later
        return self.head(h[:, -1] @ self.mix)


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos"])
def test_tensors_that_a_module_makes_itself(method):
    torch.manual_seed(0)
    own, plain = Tutorial(own=True), Tutorial(own=False)
    plain.load_state_dict(own.state_dict())
    data = torch.randn(4, 3, 3), torch.tensor([0, 1, 0, 1])
    own(data[0])
    assert not own.kept.is_leaf
    settings = {"method": method, "max_probes": 2}
    assert value(own, data, **settings) == pytest.approx(value(plain, data, **settings), rel=1e-12)
    assert own.mix.dtype == own.kept.dtype == torch.float32


class Float(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        return self.lin(x) @ torch.eye(2, dtype=torch.float32)


def test_what_cannot_be_had_names_the_module():
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ns.InputError, match=r"^Straight \(1\) fails on these.*replace that layer"):
        value(nn.Sequential(nn.Linear(3, 2), Straight()), (x, y))
    with pytest.raises(ns.InputError, match=r"^Linear \(0\) fails on these inputs"):
        value(nn.Sequential(nn.Linear(4, 2)), (x, y))
    with pytest.raises(ns.InputError, match=r"^Float \(0\) fails .*new_zeros\(\.\.\.\) does"):
        value(nn.Sequential(Float()), (x, y))
    with pytest.raises(ns.InputError, match="returns a dict of a, b: name its outputs 'logits'"):
        value(Returns({"a": 1, "b": 2}), (x, y))
    with pytest.raises(ns.InputError, match="but returns a str"):
        value(Returns("no"), (x, y))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.b(self.a(x).detach())


def test_outputs_must_depend_on_parameters():
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    module = Detached()
    after = value(module.b, (module.a.double()(x.double()), y))
    assert value(module, (x, y), select="b") == pytest.approx(after, rel=1e-12)
    for function in (nst.log_evidence, nst.gradient_noise):
        settings = {"prior_precision": 1.0} if function is nst.log_evidence else {}
        with pytest.raises(ns.InputError, match="outputs do not depend on its free parameters"):
            function(module, (x, y), select="a", **settings)
    with pytest.raises(ns.InputError, match="parameter weight has no shape yet: call the module"):
        value(nn.LazyLinear(2), (x, y))


def test_examples_come_first():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 2)

        def forward(self, x):
            return self.lin(x).transpose(0, 1)

    x, y = torch.randn(4, 5, 3), torch.zeros(4, 5, dtype=int)
    with pytest.raises(ns.InputError, match=r"returns shape \(5, 1, 2\) for one example"):
        value(TimeFirst(), (x, y))


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.lin, self.what = nn.Linear(3, 2), what

    def forward(self, x):
        h = self.lin(x)
        return dict.fromkeys(self.what, h) if isinstance(self.what, dict) else self.what


class Reverse(torch.autograd.Function):
    """Differentiable in reverse alone, twice, one example or many at a time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Cube(nn.Module):
    def __init__(self, own):
        super().__init__()
        self.lin, self.own = nn.Linear(3, 2), own

    def forward(self, x):
        h = self.lin(x)
        return Reverse.apply(h) if self.own else h**3


@pytest.mark.parametrize("method", ["dense", "dual", "lanczos"])
@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_reverse_mode_where_forward_mode_is_missing(method, curvature):
    if (method, curvature) == ("dual", "hessian"):
        return
    torch.manual_seed(0)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    plain, own = Cube(own=False), Cube(own=True)
    own.load_state_dict(plain.state_dict())
    settings = {"method": method, "curvature": curvature, "max_probes": 2}
    found, expected = (value(module, (x, y), **settings) for module in (own, plain))
    # Lanczos' products are in float32.
    assert found == pytest.approx(expected, rel=1e-6 if method == "lanczos" else 1e-9)
    assert nst.gradient_noise(own, (x, y)).trace == pytest.approx(
        nst.gradient_noise(plain, (x, y)).trace, rel=1e-5
    )


class Branches(nn.Module):
    """Does something else when an input is large: no vmap over examples looks through that."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 2)

    def forward(self, x):
        return self.lin(x) if x.abs().max() < 1e6 else x[:, :2]


def test_control_flow_that_depends_on_data():
    torch.manual_seed(0)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    module = Branches()
    assert value(module, (x, y)) == pytest.approx(value(module.lin, (x, y)), rel=1e-12)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda x, y: {"x": x, "y": y}, "needs its targets under 'labels', but has x, y"),
        (lambda x, y: (x, y[:3]), "data has 4 inputs but 3 labels"),
        (lambda x, y: ((x, x[:2]), y), "one row an example, but have 2, 4 rows"),
        (lambda x, y: [(x[0], y[0]), (x[1, :2], y[1])], "pad sequences to one length"),
        (lambda x, y: [3, 4], "must return one row|fails on these inputs|one row an example"),
        (lambda x, y: [("a", 0), ("b", 1)], "a str that is no array of numbers"),
        (lambda x, y: torch.utils.data.DataLoader([]), "data holds no examples"),
        (lambda x, y: (x, torch.zeros(4, 5, dtype=int)), "are those of sequences"),
    ],
)
def test_bad_data(data, message):
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ns.InputError, match=message):
        value(nn.Linear(3, 2), data(x, y))


def test_bad_sequences():
    a = animal("gpt")
    for y, message in (
        (a.y[:, :2], r"need a label for each token, shape \(4, 5\)"),
        (a.y + 7, r"or be -100 where a token does not count, got"),
        (torch.full_like(a.y, -100), "no token counts"),
        (a.y.float(), "must be whole numbers"),
    ):
        with pytest.raises(ns.InputError, match=message):
            value(a.module, (a.x, y))


def test_nothing_loads_jax():
    code = """
import sys, warnings
warnings.simplefilter("ignore")
import torch, noisescale as ns, noisescale.torch as nst
x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
module = torch.nn.Linear(3, 2)
nst.log_evidence(module, (x, y), prior_precision=1.0)
nst.evidence_curve(module, (x, y))
nst.spectrum(module, (x, y), top_k=1)
nst.gradient_noise(module, (x, y), n_eigenvalues=1)
nst.posterior_predict(module, (x, y), x, prior_precision=1.0)
noise = ns.gaussian("estimate")
nst.log_evidence(module, (x, x[:, :2]), prior_precision=1.0, likelihood=noise)
function = nst.train_function(lambda: torch.nn.Linear(3, 2), (x, y), (x, y))
function(batch_size=2, learning_rate=0.1, momentum=0.0, steps=2, seed=0)
print("jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_train_function_takes_tuples_and_dicts():
    a = animal("attention")

    def make():
        return Attention()

    scores = [
        nst.train_function(make, data, data)(
            batch_size=2, learning_rate=0.1, momentum=0.0, steps=3, seed=0
        )
        for data in ((*a.x, a.y), list(zip(*a.x, a.y, strict=True)))
    ]
    assert scores[0] == scores[1]
    b = animal("bert")
    score = nst.train_function(lambda: animal("bert").module, b.data, b.data)(
        batch_size=2, learning_rate=0.1, momentum=0.0, steps=2, seed=0
    )
    assert 0 <= score <= 1


@pytest.mark.filterwarnings("ignore")  # those of transformers are its own
def test_a_decoder_is_given_what_transformers_makes_of_its_labels():
    """The encoder's mask is of another sequence, though as long as the labels."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=11,
            d_model=8,
            d_kv=4,
            d_ff=12,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    ).eval()
    tokens, labels = torch.randint(1, 11, (2, 4, 5), generator=torch.manual_seed(1))
    labels[0, 3:] = -100
    mask = torch.ones(4, 5, dtype=torch.long)
    mask[1, 4:] = 0
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    with torch.no_grad():
        own = float(model(**batch).loss) * int((labels != -100).sum())
    dense, dual = (
        nst.log_evidence(model, batch, prior_precision=1.0, at="point", method=method)
        for method in ("dense", "dual")
    )
    assert dense.nll == pytest.approx(own, rel=1e-5)
    assert dual.log_evidence == pytest.approx(dense.log_evidence, rel=1e-8)
    given = batch | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    again = nst.log_evidence(model, given, prior_precision=1.0, at="point", method="dual")
    assert again.log_evidence == dual.log_evidence


class Tokens(nn.Module):
    """A label for every token, which sees those before."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, ids):
        return self.head(self.table(ids).cumsum(1).tanh())


def by_loop(module, losses):
    """tr S and |G|^2 from one backward pass an example."""
    made = []
    for loss in losses:
        module.zero_grad()
        loss.backward()
        made.append(torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.requires_grad]))
    g = torch.stack(made).double()
    trace = float((g - g.mean(0)).square().sum()) / (len(g) - 1)
    return trace, float(g.mean(0).square().sum()) - trace / len(g)


def with_batches_of(*lengths):
    torch.manual_seed(0)
    batches = [(torch.randint(11, (n, T)), torch.randint(11, (n, T))) for n, T in lengths]
    for _, y in batches:
        y[0, -1:] = -100
    return torch.utils.data.DataLoader(batches, batch_size=None), batches


@pytest.mark.parametrize("lengths", [[(4, 5), (4, 7), (3, 4), (1, 6), (2, 7)], [(4, 6), (4, 6)]])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_batches_of_their_own_length_and_the_mean_over_tokens(lengths, reduction):
    """A loader is taken as it comes; tr S says of which loss it is."""
    loader, batches = with_batches_of(*lengths)
    module = Tokens().double()
    noise = nst.gradient_noise(module, loader, reduction=reduction)
    labels = [y for _, Y in batches for y in Y]
    T = sum(int((y >= 0).sum()) for y in labels) / len(labels)
    scale = 1.0 if reduction == "sum" else 1 / T
    losses = (
        scale * functional.cross_entropy(module(x[None])[0], y, reduction="sum")
        for X, Y in batches
        for x, y in zip(X, Y, strict=True)
    )
    wanted = by_loop(module, losses)
    assert (noise.trace, noise.gradient_sq_norm) == pytest.approx(wanted, rel=1e-5)
    verb = "summed" if reduction == "sum" else "averaged"
    assert f"sequences of {T:.4g} tokens, loss {verb} over tokens" in repr(noise).splitlines()[0]
    assert noise.to_dict()["tokens"] == pytest.approx(T)
    assert noise.mean["head.bias"].shape == (11,)


def test_the_mean_over_tokens_has_the_same_critical_batch_size():
    data = (torch.randint(11, (40, 6)), torch.zeros(40, 6, dtype=torch.long))
    module = Tokens().double()
    total, mean = (nst.gradient_noise(module, data, reduction=r) for r in ("sum", "mean"))
    losses = (functional.cross_entropy(module(x[None])[0], y) for x, y in zip(*data, strict=True))
    assert (mean.trace, mean.gradient_sq_norm) == pytest.approx(by_loop(module, losses), rel=1e-5)
    assert mean.critical_batch_size == pytest.approx(total.critical_batch_size)
    assert (mean.low, mean.high) == pytest.approx((total.low, total.high))


def test_a_loader_whose_collator_pads_each_batch():
    transformers = pytest.importorskip("transformers", reason="an extra: make torch adds it")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=3,
        attn_implementation="eager",
    )
    model = transformers.BertForSequenceClassification(config).double().eval()
    sizes = torch.randint(2, 9, (14,)).tolist()
    ids = [torch.randint(1, 13, (n,)) for n in sizes]
    items = [
        {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": k % 3}
        for k, x in enumerate(ids)
    ]

    def padded(some):
        join = torch.nn.utils.rnn.pad_sequence
        made = {name: join([one[name] for one in some], True) for name in list(some[0])[:2]}
        return made | {"labels": torch.tensor([one["labels"] for one in some])}

    loader = torch.utils.data.DataLoader(items, batch_size=4, collate_fn=padded)
    noise = nst.gradient_noise(model, loader)
    losses = (
        functional.cross_entropy(model(input_ids=x[None]).logits, torch.tensor([k % 3]))
        for k, x in enumerate(ids)
    )
    wanted = by_loop(model, losses)
    assert (noise.trace, noise.gradient_sq_norm) == pytest.approx(wanted, rel=1e-5)
    assert "examples" in repr(noise).splitlines()[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_eigenvalues": 1}, "need examples of one length"),
        ({"reduction": "token"}, "reduction must be one of sum, mean"),
    ],
)
def test_what_batches_of_their_own_length_do_not_have(settings, message):
    loader, _ = with_batches_of((3, 5), (3, 6))
    with pytest.raises(ns.InputError, match=message):
        nst.gradient_noise(Tokens(), loader, **settings)
    loader, _ = with_batches_of((3, 5), (3, 5))
    with pytest.raises(ns.InputError, match="leave out reduction"):
        nst.gradient_noise(Tokens(), loader, n_eigenvalues=1, reduction="mean")
