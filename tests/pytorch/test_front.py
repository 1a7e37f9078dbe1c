"""PyTorch's door to the same estimators."""

import copy
import inspect
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]

NETWORK = ns.DenseNetwork((8, 7, 4))


@pytest.fixture(scope="module")
def pair():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8)).astype(np.float32)
    return x, x[:, :4].argmax(axis=1)


@pytest.fixture(scope="module")
def params():
    return NETWORK.init(0)


@pytest.fixture
def module(params):
    made = torch.nn.Sequential(torch.nn.Linear(8, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4))
    for layer, linear in zip(params, (made[0], made[2]), strict=True):
        linear.weight.data = torch.tensor(np.asarray(layer["w"]).T.copy())
        linear.bias.data = torch.tensor(np.asarray(layer["b"]))
    return made


OF_OPTIMISERS = {"prior_precision_of", "fit_function"}  # speak of PyTorch's own
SHARED = sorted({*nst.__all__} & {*ns.__all__} - OF_OPTIMISERS)


@pytest.mark.parametrize("name", SHARED)
def test_arguments_are_those_of_jax(name):
    """But for the model: a module in place of a function and its params."""
    theirs, ours = (
        [
            (p.name, p.kind, p.default)
            for p in inspect.signature(getattr(front, name)).parameters.values()
            if p.name not in {"apply_fn", "params", "module"}
        ]
        for front in (nst, ns)
    )
    assert theirs == ours


def test_everything_is_shared_that_a_module_has():
    alone = {"Watch", "WatchWarning", "watch", "train_function"}
    assert {*nst.__all__} == {*SHARED} | OF_OPTIMISERS | alone
    assert {"log_evidence", "evidence_curve", "spectrum", "posterior_predict"} <= {*SHARED}
    assert {"gradient_noise", "map_estimate"} <= {*SHARED}


@pytest.mark.parametrize(
    ("curvature", "method"),
    [("ggn", "dense"), ("ggn", "dual"), ("ggn", "diagonal"), ("hessian", "dense")],
)
def test_the_same_as_jax(module, params, pair, curvature, method):
    settings = {"prior_precision": 0.3, "curvature": curvature, "method": method, "at": "point"}
    theirs = nst.log_evidence(module, pair, **settings)
    ours = ns.log_evidence(NETWORK, params, pair, **settings)
    for field in ("log_evidence", "nll", "penalty", "log_occam_factor", "newton_decrement", "E"):
        assert getattr(theirs, field) == pytest.approx(getattr(ours, field), rel=1e-7)
    assert (theirs.n_params, theirs.n_train, theirs.n_negative) == (
        ours.n_params,
        ours.n_train,
        ours.n_negative,
    )


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_lanczos_holds_the_exact_value(module, pair, curvature):
    settings = {"prior_precision": 0.3, "curvature": curvature}
    exact = nst.log_evidence(module, pair, method="dense", **settings)
    found = nst.log_evidence(module, pair, method="lanczos", max_probes=8, **settings)
    assert abs(found.log_evidence - exact.log_evidence) < 3 * found.log_evidence_std


@pytest.mark.parametrize("prior", ["auto", "per_layer"])
def test_chosen_priors_are_those_of_jax(module, params, pair, prior):
    # Zero biases would leave a layer of zeros undetermined nowhere here: they share their layer.
    theirs = nst.log_evidence(module, pair, prior_precision=prior)
    ours = ns.log_evidence(NETWORK, params, pair, prior_precision=prior)
    assert theirs.log_evidence == pytest.approx(ours.log_evidence, rel=1e-6)


def test_priors_by_parameter_name(module, pair):
    by_name = {name: 0.1 + 0.1 * p.dim() for name, p in module.named_parameters()}
    found = nst.log_evidence(module, pair, prior_precision=by_name)
    expected = 0.5 * sum(
        by_name[name] * float((p.detach().double() ** 2).sum())
        for name, p in module.named_parameters()
    )
    assert found.penalty == pytest.approx(expected, rel=1e-6)


def test_a_dataset_a_loader_and_tensors_are_the_same(module, pair):
    x, y = torch.tensor(pair[0]), torch.tensor(pair[1])
    dataset = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(dataset, batch_size=16)
    values = [
        nst.log_evidence(module, data, prior_precision=0.3).log_evidence
        for data in (dataset, loader, (x, y))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert values[0] == pytest.approx(values[2], rel=1e-12)


def test_frozen_parameters_are_not_part_of_the_model(module, params, pair):
    module[0].requires_grad_(requires_grad=False)
    last = nst.log_evidence(module, pair, prior_precision=0.3)
    ours = ns.log_evidence(
        NETWORK, params, pair, prior_precision=0.3, select=lambda path: path.startswith("1/")
    )
    assert last.n_params == 32
    assert last.log_evidence == pytest.approx(ours.log_evidence, rel=1e-7)


class Odd(torch.nn.Module):
    """A convolution, batch normalisation and dropout."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(3)
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(3 * 16, 3)

    def forward(self, x):
        h = torch.tanh(self.norm(self.conv(x.reshape(-1, 1, 4, 4))))
        return self.head(self.drop(h.reshape(len(x), -1)))


@pytest.fixture
def odd():
    torch.manual_seed(0)
    made = Odd()
    made.train()
    made(torch.randn(32, 16))  # running statistics of its own
    made.conv.weight.grad = torch.ones_like(made.conv.weight)
    return made


def test_the_module_is_left_as_it_is(odd):
    before = copy.deepcopy(odd.state_dict())
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(20, 16)).astype(np.float32), rng.integers(3, size=20))
    dual = nst.log_evidence(odd, data, prior_precision=0.3, method="dual")
    dense = nst.log_evidence(odd, data, prior_precision=0.3, method="dense")
    assert dual.log_evidence == pytest.approx(dense.log_evidence, rel=1e-9)
    nst.gradient_noise(odd, data)
    assert odd.training
    assert odd.drop.training
    assert all(p.dtype == torch.float32 for p in odd.parameters())
    assert torch.equal(odd.conv.weight.grad, torch.ones_like(odd.conv.weight))
    assert odd.head.weight.grad is None
    for name, value in odd.state_dict().items():
        assert torch.equal(value, before[name])


def test_gradient_noise_is_that_of_jax(module, params, pair):
    theirs, ours = nst.gradient_noise(module, pair), ns.gradient_noise(NETWORK, params, pair)
    for field in ("trace", "trace_std", "gradient_sq_norm", "gradient_sq_norm_std"):
        assert getattr(theirs, field) == pytest.approx(getattr(ours, field), rel=1e-5)
    np.testing.assert_allclose(
        theirs.variance["0.weight"].T, ours.variance[0]["w"], rtol=1e-3, atol=1e-8
    )


def test_bernoulli_and_gaussian():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)).astype(np.float32)
    linear = torch.nn.Linear(3, 1)
    params = ({"w": linear.weight.detach().numpy().T.copy(), "b": linear.bias.detach().numpy()},)
    labels = (x[:, 0] > 0).astype(int)
    for likelihood, y in (("bernoulli", labels), ("gaussian", x[:, :1] * 2)):
        settings = {"prior_precision": 0.5, "likelihood": likelihood, "method": "dual"}
        theirs = nst.log_evidence(linear, (x, y), **settings)
        ours = ns.log_evidence(ns.logistic_regression(3), params, (x, y), **settings)
        assert theirs.log_evidence == pytest.approx(ours.log_evidence, rel=1e-8)


def test_labels_as_two_class_losses_want_them():
    rng = np.random.default_rng(0)
    x, linear = rng.normal(size=(30, 3)).astype(np.float32), torch.nn.Linear(3, 1)
    y = torch.tensor(x[:, 0] > 0)
    plain, *others = (
        nst.log_evidence(
            linear, (torch.tensor(x), labels), prior_precision=0.5, likelihood="bernoulli"
        )
        for labels in (y.long(), y.float(), y.long()[:, None], y.double()[:, None])
    )
    assert [other.log_evidence for other in others] == [plain.log_evidence] * 3
    with pytest.raises(ns.InputError, match="labels must be 0 or 1 for two classes, got 0.5"):
        nst.log_evidence(linear, (x, y / 2), prior_precision=0.5, likelihood="bernoulli")


def test_a_noise_precision_is_that_of_jax():
    rng = np.random.default_rng(0)
    x, linear = rng.normal(size=(30, 3)).astype(np.float32), torch.nn.Linear(3, 1)
    params = ({"w": linear.weight.detach().numpy().T.copy(), "b": linear.bias.detach().numpy()},)
    settings = {"prior_precision": 0.5, "likelihood": ns.gaussian(4.0)}
    theirs = nst.log_evidence(linear, (x, x[:, :1] * 2), **settings)
    ours = ns.log_evidence(ns.logistic_regression(3), params, (x, x[:, :1] * 2), **settings)
    assert theirs.log_evidence == pytest.approx(ours.log_evidence, rel=1e-8)


class Rate(torch.nn.Module):
    """Outputs that overflow far away, or are refused there."""

    def __init__(self, largest):
        super().__init__()
        self.layer, self.largest = torch.nn.Linear(8, 1), largest
        torch.nn.init.constant_(self.layer.weight, 0.01)

    def forward(self, x):
        log_rate = self.layer(x)
        if (log_rate > self.largest).any():
            raise ValueError("too far")
        return log_rate.exp()


@pytest.mark.parametrize(
    ("largest", "at"), [(float("inf"), "point"), (float("inf"), "map"), (50.0, "point")]
)
def test_a_model_that_overflows_far_away_has_an_evidence(largest, at):
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(60, size, generator=generator) * 60 for size in (8, 1))
    module = Rate(largest)
    found = nst.log_evidence(module, (x, y / 20), prior_precision=1.0, likelihood="gaussian", at=at)
    assert found.kind is (ns.Kind.ONE_MODE if at == "map" else ns.Kind.NEIGHBOURHOOD)
    w, b = (p.detach().double().numpy() for p in module.parameters())
    twin = ns.log_evidence(
        lambda p, x: jnp.exp(x @ p[0].T + p[1]),
        (w, b),
        (x.double().numpy(), (y / 20).double().numpy()),
        prior_precision=1.0,
        likelihood="gaussian",
        at=at,
    )
    assert found.log_evidence == pytest.approx(twin.log_evidence, rel=1e-6)
    assert found.kind is twin.kind


def test_the_spectrum_the_curve_and_the_noise_are_those_of_jax(module, params, pair):
    theirs = nst.spectrum(module, pair, top_k=3, n_steps=16)
    ours = ns.spectrum(NETWORK, params, pair, top_k=3, n_steps=16)
    np.testing.assert_allclose(theirs.top, ours.top, rtol=1e-5)
    grid = [0.1, 1.0, 10.0]
    theirs = nst.evidence_curve(module, pair, prior_precisions=grid)
    ours = ns.evidence_curve(NETWORK, params, pair, prior_precisions=grid)
    np.testing.assert_allclose(theirs.log_evidence, ours.log_evidence, rtol=1e-7)
    theirs = nst.gradient_noise(module, pair, n_eigenvalues=2).spectrum
    ours = ns.gradient_noise(NETWORK, params, pair, n_eigenvalues=2).spectrum
    np.testing.assert_allclose(theirs.eigenvalues, ours.eigenvalues, rtol=1e-4)
    assert theirs.overlap == pytest.approx(ours.overlap, abs=1e-3)


@pytest.mark.filterwarnings("always::noisescale.NotAMinimumWarning")
def test_warnings_point_to_the_users_line(module, pair):
    with pytest.warns(ns.NotAMinimumWarning) as caught:
        nst.log_evidence(module, pair, prior_precision=0.3)
    assert caught[0].filename == __file__


def test_what_is_listed_can_be_done(module, pair):
    listed = [c.method for c in nst.log_evidence(module, pair, prior_precision=1.0).preflight.costs]
    assert listed == ["dense", "dual", "lanczos", "kfac", "diagonal"]


def test_without_pytorch_the_import_says_what_to_install():
    code = """
        import sys
        sys.modules["torch"] = None  # as if it were not installed
        try:
            import noisescale.torch
        except ImportError as error:
            assert not isinstance(error, ValueError)
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "noisescale.torch needs PyTorch: pip install 'noisescale[torch]'.\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": 3}, "module must be a torch.nn.Module, got int"),
        ({"data": 3}, "data must be a Dataset, a DataLoader or a pair of tensors, got int"),
        ({"labels": 7}, "labels must lie in 0..3"),
        ({"prior_precision": {"0": 1.0}}, r"names every layer \(0, 2\) or every parameter, got 0"),
        ({"prior_precision": None}, "an unpenalised parameter has no evidence"),
        ({"likelihood": "binomial"}, "likelihood must be one of"),
        ({"likelihood": "bernoulli"}, "needs one logit an example"),
        ({"nan": True}, "the module's outputs are not finite"),
    ],
)
def test_bad_input(module, pair, change, message):
    x, y = pair
    data = change.pop(
        "data",
        (x, np.where(np.arange(50) == 3, change.pop("labels"), y) if "labels" in change else y),
    )
    if change.pop("nan", False):
        data = (np.where(np.arange(50)[:, None] == 0, np.nan, x), y)
    made = change.pop("module", module)
    with pytest.raises(ns.InputError, match=message):
        nst.log_evidence(made, data, **{"prior_precision": 1.0} | change)
