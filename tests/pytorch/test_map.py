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
