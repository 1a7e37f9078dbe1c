"""The MAP of a PyTorch module is that of the same network in JAX."""

import numpy as np
import pytest

import noisescale as ns

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]


def pair():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    return x, x.argmax(axis=1)


def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))


def as_jax(made):
    values = [p.detach().numpy() for p in made.parameters()]
    params = {name: value.T for name, value in zip("abcd", values, strict=True)}

    def apply_fn(params, x):
        import jax.numpy as jnp

        return jnp.tanh(x @ params["a"] + params["b"]) @ params["c"] + params["d"]

    return apply_fn, params


def test_the_map_and_its_evidence_agree_with_jax():
    made = module()
    before = {name: value.clone() for name, value in made.state_dict().items()}
    apply_fn, params = as_jax(made)
    theirs = nst.log_evidence(made, pair(), prior_precision=0.5, at="map")
    ours = ns.log_evidence(apply_fn, params, pair(), prior_precision=0.5, at="map")
    assert theirs.map.status is ours.map.status is ns.MapStatus.MAP
    assert theirs.kind is ns.Kind.ONE_MODE
    assert theirs.map.cost == pytest.approx(ours.map.cost, abs=1e-8)
    assert theirs.log_evidence == pytest.approx(ours.log_evidence, abs=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert nst.log_evidence(made, pair(), prior_precision=0.5).E is None


def test_the_params_go_back_into_the_module():
    made = module()
    found = nst.map_estimate(made, pair(), prior_precision=0.5)
    made.load_state_dict(found.params, strict=False)
    again = nst.log_evidence(made, pair(), prior_precision=0.5)
    # In float32 the parameters are off by 1e-7 of themselves, the cost by the square of that.
    assert again.nll + again.penalty == pytest.approx(found.cost, abs=1e-4)
    assert again.withheld is None
    assert "params" not in found.to_dict()


@pytest.mark.parametrize("prior", ["auto", "per_layer"])
def test_a_prior_chosen_from_zeros_is_that_of_the_evidence(prior):
    from noisescale.sklearn import EvidenceLogisticRegression

    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 6))
    y = (rng.random(40) < 1 / (1 + np.exp(-0.9 * x[:, 0]))).astype(int)
    line = torch.nn.Linear(6, 1, bias=False).double()
    torch.nn.init.zeros_(line.weight)
    found = nst.log_evidence(line, (x, y), prior_precision=prior, likelihood="bernoulli", at="map")
    exact = EvidenceLogisticRegression(fit_intercept=False).fit(x, y)
    assert found.prior_precision == pytest.approx(exact.prior_precision_, rel=0.03)
    assert pytest.approx(exact.E_, abs=1e-4) == found.E


@pytest.mark.parametrize("start", [0.0, pytest.param(7.0, marks=pytest.mark.long)])
def test_an_estimated_noise_is_that_of_the_best_fit(start):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = x @ [3.0, -2.0, 1.0] + 0.5 * rng.normal(size=60)
    noise = 60 / ((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2).sum()
    line = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.constant_(line.weight, start)
    settings = {"prior_precision": 30.0, "at": "map"}
    for more in ({}, {"conditional_on": 20}):
        found, known = (
            nst.log_evidence(line, (x, y), likelihood=likelihood, **settings | more)
            for likelihood in (ns.gaussian("estimate"), ns.gaussian(noise))
        )
        assert found.log_evidence == pytest.approx(known.log_evidence, abs=1e-3)
    x, y = np.ones((60, 1)), y + 5  # the null model itself
    line = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(line.weight, start)
    found = nst.log_evidence(
        line, (x, y), likelihood=ns.gaussian("estimate"), conditional_on=20, **settings
    )
    assert abs(found.E) < 1e-4


def test_the_curve_tells_how_far_it_is(monkeypatch):
    from noisescale.evidence import pace

    monkeypatch.setattr(pace, "EVERY", 0.0)
    heard = []
    nst.evidence_curve(module(), pair(), progress=heard.append)
    assert heard


def test_conditional_null_and_last_layers():
    made = module()
    for p in made[0].parameters():
        p.requires_grad = False
    settings = {"prior_precision": 0.5, "at": "map"}
    last = nst.log_evidence(made, pair(), null="frequencies", **settings)
    assert last.kind is ns.Kind.LINEAR
    counts = np.bincount(pair()[1])
    assert last.log_null == pytest.approx(
        ns.log_evidence_from_operator(
            np.eye(1), nll=0.0, penalty=0.0, prior_precision=1.0, n_train=40, class_counts=counts
        ).log_null
    )
    given = nst.log_evidence(made, pair(), conditional_on=30, **settings)
    x, y = pair()
    first = nst.log_evidence(made, (x[:30], y[:30]), **settings)
    assert given.log_evidence == pytest.approx(last.log_evidence - first.log_evidence, abs=1e-6)
